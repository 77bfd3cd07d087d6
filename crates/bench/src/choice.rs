//! `--list` and `--only`: the benchmarks of a command by their names.

use std::fmt::Write;
use std::path::Path;

use crate::error::Error;
use crate::output;

/// Something that has a name.
pub trait Named: Copy {
    /// Returns its name, and what it measures.
    fn row(&self) -> (&'static str, &'static str);
}

/// Prints all of them, the names in a column of this width.
pub fn list<T: Named>(all: &[T], width: usize) -> Result<(), Error> {
    let mut text = String::new();
    for (name, what) in all.iter().map(Named::row) {
        // Writing into a String cannot fail.
        let _ = writeln!(text, "{name:<width$}{what}");
    }
    output::table(&text, Path::new(""))
}

/// Returns those that `--only` names, all of them for none.
pub fn chosen<T: Named>(all: &[T], only: &[String]) -> Result<Vec<T>, Error> {
    let is_called = |one: &T, name: &String| one.row().0 == name;
    if let Some(name) = only.iter().find(|name| !all.iter().any(|one| is_called(one, name))) {
        return Err(Error::NoBenchmark { name: name.clone(), names: names(all) });
    }
    let is_chosen = |one: &&T| only.is_empty() || only.iter().any(|name| is_called(one, name));
    Ok(all.iter().filter(is_chosen).copied().collect())
}

/// Returns the names of all, for messages.
pub fn names<T: Named>(all: &[T]) -> String {
    all.iter().map(|one| one.row().0).collect::<Vec<_>>().join(", ")
}

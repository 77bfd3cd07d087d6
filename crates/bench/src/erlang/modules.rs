//! Where the compiled Erlang modules are.

use std::env;
use std::path::{Path, PathBuf};

use crate::error::Error;

/// Says where they are, if they are not beside the program.
const VARIABLE: &str = "CARAVAN_ERLANG_DIR";

/// The two folders for `erl -pa`.
#[derive(Clone, Debug, PartialEq)]
pub struct Modules {
    pub carrier: PathBuf,
    pub bench: PathBuf,
}

impl Modules {
    /// Looks in [`VARIABLE`] alone where it is set; otherwise beside the program, in a checkout
    /// (`target/release/caravan`) or under an installed prefix (`bin/caravan`). Plain TCP is
    /// measured without the carrier.
    pub fn find(needs_carrier: bool) -> Result<Self, Error> {
        let roots = match env::var_os(VARIABLE) {
            Some(root) => vec![PathBuf::from(root)],
            None => env::current_exe().map_or_else(|_| Vec::new(), |program| beside(&program)),
        };
        Self::in_one_of(&roots, needs_carrier)
    }

    fn in_one_of(roots: &[PathBuf], needs_carrier: bool) -> Result<Self, Error> {
        let found = roots.iter().map(|root| Self::under(root)).find(|modules| {
            (!needs_carrier || modules.carrier.join("caravan_dist.beam").is_file())
                && modules.bench.join("caravan_bench.beam").is_file()
        });
        found.ok_or_else(|| {
            let searched: Vec<_> = roots.iter().map(|root| root.display().to_string()).collect();
            Error::ModulesMissing { searched: searched.join(" or ") }
        })
    }

    fn under(root: &Path) -> Self {
        Self { carrier: root.join("erlang/ebin"), bench: root.join("bench/erlang/ebin") }
    }
}

fn beside(program: &Path) -> Vec<PathBuf> {
    let program = program.canonicalize().unwrap_or_else(|_| program.to_owned());
    let above = |levels| program.ancestors().nth(levels).map(Path::to_owned);
    let installed = above(2).map(|prefix| prefix.join("lib/caravan"));
    above(3).into_iter().chain(installed).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkout_and_a_prefix_are_searched() {
        let roots = beside(Path::new("/none/target/release/caravan"));
        assert_eq!(roots, [Path::new("/none"), Path::new("/none/target/lib/caravan")]);
        let roots = beside(Path::new("/none/prefix/bin/caravan"));
        assert_eq!(roots[1], Path::new("/none/prefix/lib/caravan"));
    }

    #[test]
    fn missing_modules_say_where_they_were_sought_and_what_to_do() {
        let error = Modules::in_one_of(&["/none/a".into(), "/none/b".into()], false).expect_err("none");
        let text = error.to_string();
        assert!(text.contains("not in /none/a or /none/b"), "{text}");
        assert!(text.contains("make build") && text.contains(VARIABLE), "{text}");
    }
}

//! A home folder for the nodes of one cluster: it holds their cookie, and keeps the user's own
//! `~/.erlang.cookie` and `~/.erlang` out of the measurement.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::error::Error;
use crate::scratch::{Scratch, random_word};

/// Removed when it is dropped. The cookie is random and in a file only the user can read: on the
/// command line every user of the host could read it, and a cookie lets its holder run code.
#[derive(Debug)]
pub struct Home(Scratch);

impl Home {
    pub fn create() -> Result<Self, Error> {
        let scratch = Scratch::create()?;
        let path = scratch.path().join(".erlang.cookie");
        let cookie = random_word()?;
        let file = OpenOptions::new().write(true).create_new(true).mode(0o400).open(&path);
        file.and_then(|mut file| file.write_all(cookie.as_bytes())).map_err(|source| Error::File {
            what: "write",
            path,
            source,
        })?;
        Ok(Self(scratch))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_cookie_is_private() {
        let home = Home::create().expect("a folder");
        let cookie = home.path().join(".erlang.cookie");
        assert_eq!(fs::metadata(&cookie).expect("there").permissions().mode() & 0o777, 0o400);
        assert_eq!(fs::read_to_string(&cookie).expect("a cookie").len(), 32);
    }
}

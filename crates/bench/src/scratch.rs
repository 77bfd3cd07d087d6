//! A folder that only this user can read, and that is removed when the value is dropped.

use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::rand::{GetRandomFlags, getrandom};

use crate::error::Error;

/// A folder for temporary files, under a name that nobody can guess.
#[derive(Debug)]
pub struct Scratch(PathBuf);

impl Scratch {
    /// Creates the folder.
    pub fn create() -> Result<Self, Error> {
        let path = std::env::temp_dir().join(format!("caravan-{}", random_word()?));
        DirBuilder::new().mode(0o700).create(&path).map_err(Error::file("make", &path))?;
        Ok(Self(path))
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Nothing can be done about a folder that cannot be removed.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Returns 128 random bits as 32 hexadecimal digits.
pub fn random_word() -> Result<String, Error> {
    let mut bytes = [0_u8; 16];
    // Up to 256 bytes come whole (getrandom(2)).
    getrandom(&mut bytes, GetRandomFlags::empty()).map_err(|why| Error::Random(why.into()))?;
    Ok(format!("{:032x}", u128::from_be_bytes(bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_folder_is_private_and_goes() {
        let scratch = Scratch::create().expect("a folder");
        let path = scratch.path().to_owned();
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o700);
        fs::write(path.join("file"), "text").expect("written");
        drop(scratch);
        assert!(!path.exists());
    }

    #[test]
    fn random_words_differ() {
        assert_ne!(random_word().expect("a word"), random_word().expect("a word"));
    }
}

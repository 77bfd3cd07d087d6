//! What two ends of a hop know each other by.

use std::fmt;

use rustix::rand::{GetRandomFlags, getrandom};
use serde::{Deserialize, Serialize};

use crate::Error;

/// 128 random bits, fresh for each hop. They travel over control channels (ssh) alone: never in an
/// argument, an environment or a log.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PipeKey([u8; Self::BYTES]);

impl PipeKey {
    /// Its length.
    pub const BYTES: usize = 16;

    /// A new one, from getrandom(2).
    pub fn random() -> Result<Self, Error> {
        let mut bytes = [0; Self::BYTES];
        // Up to 256 bytes come whole.
        getrandom(&mut bytes, GetRandomFlags::empty()).map_err(Error::Random)?;
        Ok(Self(bytes))
    }

    /// For whoever derives others from it.
    pub fn bytes(&self) -> &[u8; Self::BYTES] {
        &self.0
    }

    /// One that somebody was told.
    pub fn from_bytes(bytes: [u8; Self::BYTES]) -> Self {
        Self(bytes)
    }
}

impl fmt::Debug for PipeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PipeKey")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_differ_and_do_not_show() {
        let (a, b) = (PipeKey::random().expect("random"), PipeKey::random().expect("random"));
        assert_ne!(a, b);
        assert_eq!(format!("{a:?}"), "PipeKey");
    }
}

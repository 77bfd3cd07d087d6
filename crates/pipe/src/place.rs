//! Where a process is.

use serde::{Deserialize, Serialize};

/// Where a process is: two processes of the same place can share memory and pass descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    boot: String,
    network: String,
    user: u32,
}

impl Place {
    /// Returns the place of this process.
    pub fn here() -> Self {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let network = network.to_string_lossy().into_owned();
        Self { boot: boot.trim().to_owned(), network, user: rustix::process::geteuid().as_raw() }
    }

    /// True if both places claim the same host. This is no proof: machines that were restored from one snapshot
    /// make the same claim.
    pub fn is_same_host(&self, other: &Self) -> bool {
        !self.boot.is_empty() && self.boot == other.boot
    }

    /// True if both places claim the same host and the same network namespace.
    pub fn is_same_network(&self, other: &Self) -> bool {
        self.is_same_host(other) && self.network == other.network
    }

    /// Returns why two processes of one host cannot share memory; `None` if they can.
    pub fn apart(&self, other: &Self) -> Option<&'static str> {
        match (self.user == other.user, self.network == other.network) {
            (false, _) => Some("shared memory takes the same user on both sides"),
            (true, false) => Some("shared memory takes the same network namespace on both sides"),
            (true, true) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_tell_who_can_share_memory() {
        let here = Place::here();
        assert!(here.is_same_host(&here) && here.is_same_network(&here) && here.apart(&here).is_none());
        let user = Place { user: here.user + 1, ..here.clone() };
        assert!(here.apart(&user).expect("apart").contains("same user"));
        let network = Place { network: "net:[1]".to_owned(), ..here.clone() };
        assert!(here.apart(&network).expect("apart").contains("namespace"));
        assert!(here.is_same_network(&user) && !here.is_same_network(&network));
        assert!(!here.is_same_host(&Place { boot: "another".to_owned(), ..here.clone() }));
    }
}

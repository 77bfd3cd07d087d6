//! Why RDMA cannot be used. Every face shows and logs these sentences.

use crate::contract::{Error, Provider};

/// How a user may lock more memory: one of these lines.
pub const MEMORY_LOCK_REMEDY: &str = "raise it with `ulimit -l unlimited`, `* - memlock unlimited` in /etc/security/limits.conf, or LimitMEMLOCK=infinity of the service";

/// Why this machine, or a peer, cannot use RDMA.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Obstacle {
    /// The kernel knows no RDMA device.
    #[error("this machine has no RDMA device")]
    NoDevice,
    /// rdma-core cannot be loaded.
    #[error(
        "rdma-core is not installed or broken ({why}); on Debian: apt-get install libibverbs1 librdmacm1 ibverbs-providers"
    )]
    NoLibrary {
        /// The error of the loader.
        why: String,
    },
    /// The kernel knows a device that rdma-core has no provider for.
    #[error(
        "{device}: rdma-core has no provider library for it; on Debian: apt-get install ibverbs-providers"
    )]
    NoProvider {
        /// The device.
        device: String,
    },
    /// The kernel knows a device but gives programs no access to it.
    #[error("{device}: the kernel gives programs no access to it: `modprobe ib_uverbs`, as root")]
    NoUserAccess {
        /// The device.
        device: String,
    },
    /// The device file is missing, as in a container without access to it.
    #[error(
        "{device}: {path} is missing; a container must be given it (docker run --device=/dev/infiniband), elsewhere udev makes it"
    )]
    NoDeviceFile {
        /// The device.
        device: String,
        /// Its device file.
        path: String,
    },
    /// The device file cannot be opened.
    #[error(
        "{device}: no permission on {path}; make it readable and writable for this user (udev rules of rdma-core do)"
    )]
    NoPermission {
        /// The device.
        device: String,
        /// Its device file.
        path: String,
    },
    /// The device cannot be opened for another reason.
    #[error("{device}: it cannot be opened: {why}")]
    NotOpened {
        /// The device.
        device: String,
        /// The error of the kernel.
        why: String,
    },
    /// The device has no reliable connections.
    #[error("{device}: it has no reliable connections (RC queue pairs), which Caravan needs")]
    NoReliableConnections {
        /// The device.
        device: String,
    },
    /// The port is not active.
    #[error("{device} port {port}: the port is {state}; check its cable and `ip link`")]
    PortDown {
        /// The device.
        device: String,
        /// Its port, from 1.
        port: u8,
        /// The state that the port reports.
        state: &'static str,
    },
    /// The port has no address at which a peer could reach it.
    #[error("{device} port {port}: it has no usable address (GID); give its network interface an IP address")]
    NoAddress {
        /// The device.
        device: String,
        /// Its port, from 1.
        port: u8,
    },
    /// The user may not lock enough memory.
    #[error(
        "{device}: {needed_bytes} bytes are to be registered, and this user may lock {limit_bytes}; {MEMORY_LOCK_REMEDY}"
    )]
    MemoryLock {
        /// The device.
        device: String,
        /// The number of bytes that were to be registered.
        needed_bytes: u64,
        /// RLIMIT_MEMLOCK.
        limit_bytes: u64,
    },
    /// This machine's own packet filter stops RoCE v2.
    #[error(
        "this machine's firewall drops UDP port 4791, which RoCE v2 uses ({rule}); `nft insert rule FAMILY TABLE CHAIN udp dport 4791 accept` lets it through"
    )]
    Firewall {
        /// The rule, or the policy, that stops it.
        rule: String,
    },
    /// No port of one side reaches a port of the other.
    #[error("no RDMA port of this machine ({ours}) reaches one of the peer's ({theirs})")]
    NoPath {
        /// The ports of this side.
        ours: String,
        /// The ports of the peer.
        theirs: String,
    },
    /// The queue pairs are set up, but no packet gets through.
    #[error("{device}: the peer's device does not answer within {seconds} s; {hint}")]
    NoAnswer {
        /// The device.
        device: String,
        /// How long this side waited.
        seconds: u64,
        /// The usual cause.
        hint: &'static str,
    },
}

impl Obstacle {
    /// Returns the obstacle that `error` reports, if any.
    pub fn of(error: &Error) -> Option<&Self> {
        match error {
            Error::Unavailable { why, .. } => why.downcast_ref(),
            _ => None,
        }
    }
}

impl From<Obstacle> for Error {
    fn from(obstacle: Obstacle) -> Self {
        Self::Unavailable { provider: Provider::Rdma, why: Box::new(obstacle) }
    }
}

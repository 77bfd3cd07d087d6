//! Every limit of a cluster of stores, and the reason for each.

use std::time::Duration;

/// The most members of a store. Every member has a lease with the manager, and a change of members waits for all.
pub const MEMBERS_MAX: usize = 1024;

/// The most parts of a store: with more, a configuration would no longer fit in one request of etcd.
pub const PARTS_MAX: usize = 4096;

/// The most copies of a part. Each commit writes all of them.
pub const COPIES_MAX: u8 = 8;

/// The copies of each part, and the parts, of a store whose maker says nothing.
pub const COPIES_DEFAULT: u8 = 2;
/// See [`COPIES_DEFAULT`].
pub const PARTS_DEFAULT: u16 = 16;

/// The most bytes of the name of a store or of a member.
pub const NAME_BYTES_MAX: usize = 64;

/// The most bytes of an address.
pub const ADDRESS_BYTES_MAX: usize = 256;

/// The most bytes of a configuration as JSON: etcd refuses a request of more than 1.5 MiB, and carries the value in
/// base64.
pub const CONFIGURATION_BYTES_MAX: usize = 1 << 20;

/// The lease of a store whose maker says nothing: short enough that a lost host is missed for a moment only, and several
/// times as long as a thread waits for the processor on a machine that has much to do.
pub const LEASE_DEFAULT: Duration = Duration::from_millis(250);

/// The shortest lease: less, and servers lose it whenever something else runs.
pub const LEASE_MIN: Duration = Duration::from_millis(50);

/// The longest lease: after the loss of a host its parts are silent for so long.
pub const LEASE_MAX: Duration = Duration::from_secs(10);

//! How a socket is set up for a stream of data.
//!
//! - **Congestion control.** On short paths (loopback, veth, one switch) cubic has two to three times the rate of
//!   bbr, which paces each packet: iperf3 over veth had 9 to 16 Gbit/s with the one and 4.4 to 4.6 with the other, in
//!   turns. So it is chosen there for the one socket, where the system allows it. On long paths the system's
//!   choice stays: it knows what losses mean there. It is chosen before there is a connection, and taken back
//!   where the path turns out to be long: a connection that began with bbr goes on pacing under cubic, at
//!   a third of the rate (2.1 and 7.0 GB/s over veth, from one reused buffer).
//! - **Send buffer.** It is left to the kernel's own tuning, which stops at `tcp_wmem` (4 MiB): half of it
//!   holds what is under way, or 200 MB/s at 20 ms. Only beyond that is a size set: a fixed one ends the tuning.
//!   Without privileges the system caps it at `wmem_max`, and where that is less than the tuning would
//!   reach nothing is set.
//! - **Receive buffer.** Never set: the kernel tunes it up to `tcp_rmem`, and a fixed one is capped lower.
//! - **Keepalive** finds a dead host while nothing is under way. `TCP_USER_TIMEOUT` is not set, since it also
//!   ends connections whose reader only takes a long rest.

use std::fs;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::net::sockopt;

use crate::limits::{KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, SEND_BUFFER_BYTES_MAX, SHORT_PATH};

/// The rate that a send buffer is made for, in bytes a second: 10 Gbit/s.
const RATE_AIM: u64 = 1_250_000_000;

/// Congestion control on short paths.
const SHORT_PATH_CONGESTION: &str = "cubic";

/// Prepares a socket before it connects or listens. The system may not allow it.
pub fn prepare(socket: &OwnedFd) {
    let _ = sockopt::set_tcp_congestion(socket, SHORT_PATH_CONGESTION);
}

/// Tunes a connected socket. Failures do not matter: the socket carries the same bytes.
pub fn tune(socket: &OwnedFd, round_trip: Duration) {
    let _ = sockopt::set_tcp_nodelay(socket, true);
    keep_alive(socket, KEEPALIVE_INTERVAL * KEEPALIVE_PROBES);
    if round_trip <= SHORT_PATH {
        return;
    }
    if let Ok(default) = fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control") {
        let _ = sockopt::set_tcp_congestion(socket, default.trim());
    }
    let tuned = setting("/proc/sys/net/ipv4/tcp_wmem", 2);
    let allowed = setting("/proc/sys/net/core/wmem_max", 0);
    if let (Some(bytes), Some(allowed)) = (send_buffer_bytes(round_trip, tuned), allowed) {
        let forced = sockopt::set_socket_send_buffer_size_force(socket, bytes);
        // The kernel doubles the size, for its own book-keeping.
        if forced.is_err() && allowed.saturating_mul(2) > tuned.unwrap_or(u64::MAX) {
            let _ = sockopt::set_socket_send_buffer_size(socket, bytes);
        }
    }
}

/// Ends the connection if the other host is silent for `silence`, and not earlier.
pub fn keep_alive(socket: &OwnedFd, silence: Duration) {
    let interval = (silence / KEEPALIVE_PROBES).max(KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepidle(socket, KEEPALIVE_INTERVAL);
    let _ = sockopt::set_tcp_keepintvl(socket, interval);
    let _ = sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES);
    let _ = sockopt::set_socket_keepalive(socket, true);
}

/// Returns the congestion control of a socket.
pub fn congestion(socket: &OwnedFd) -> Option<String> {
    sockopt::tcp_congestion(socket).ok()
}

/// Returns the send buffer that the path needs, if the kernel's own tuning stops below that.
fn send_buffer_bytes(round_trip: Duration, tuned: Option<u64>) -> Option<usize> {
    let path = u64::try_from(u128::from(RATE_AIM) * round_trip.as_nanos() / 1_000_000_000).ok()?;
    let bytes = path.min(SEND_BUFFER_BYTES_MAX);
    // The kernel doubles the size, as its tuning does.
    (bytes.checked_mul(2)? > tuned?).then(|| usize::try_from(bytes).ok())?
}

/// Returns one number of a kernel setting.
fn setting(path: &str, field: usize) -> Option<u64> {
    fs::read_to_string(path).ok()?.split_whitespace().nth(field)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_long_paths_have_a_fixed_buffer() {
        let bytes = |ms| send_buffer_bytes(Duration::from_millis(ms), Some(4 << 20));
        assert_eq!(bytes(0), None);
        assert_eq!(bytes(1), None);
        assert_eq!(bytes(20), Some(25_000_000));
        assert_eq!(bytes(100_000), Some(SEND_BUFFER_BYTES_MAX as usize));
        assert_eq!(send_buffer_bytes(Duration::MAX, Some(4 << 20)), None);
        assert_eq!(send_buffer_bytes(Duration::from_millis(20), Some(64 << 20)), None);
    }
}

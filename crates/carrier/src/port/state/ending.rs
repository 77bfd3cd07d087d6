//! What a port does last.

use std::time::{Duration, Instant};

use caravan_fabric::Link;
use caravan_fabric::contract::Armed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::super::unwatch;
use super::{Port, Stage};
use crate::error::Error;
use crate::limits::SETTLE_MS;

impl Drop for Port {
    fn drop(&mut self) {
        // Only an orderly end: a link that has failed takes nothing to the peer any more.
        if let (None, Stage::Connected(connection)) = (self.ended, &mut self.stage) {
            // An error says that the peer is gone, and nobody misses what was under way.
            let _ = settle(connection.link(), Duration::from_millis(SETTLE_MS));
        }
        // The control connection goes last: its end is what tells the peer of the link's.
        for raw in [self.watched_bell, self.own_bell, self.watched_lifeline].into_iter().flatten() {
            unwatch(self.handle, raw);
        }
    }
}

/// Waits until all that was sent is in the peer's memory. With shared memory it is there already; a
/// device needs this side's until it has written it.
fn settle(link: &mut Link, limit: Duration) -> Result<(), Error> {
    let end = Instant::now() + limit;
    while !link.is_settled()? {
        // What the peer sends meanwhile is for nobody; unread, it would keep this side from waiting.
        let unread = link.refresh()?;
        link.skip(unread);
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        if link.arm(0)? == Armed::LookAgain {
            continue;
        }
        let Some(bell) = link.wait_fd() else { return Ok(()) };
        let wait = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(&bell, PollFlags::IN)], Some(&wait)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => link.acknowledge()?,
            Err(source) => {
                return Err(caravan_fabric::Error::System { call: "poll", source: source.into() }.into());
            }
        }
    }
    Ok(())
}

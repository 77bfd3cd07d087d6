//! The endpoint of a link, shared with the link's user: one endpoint for each pair of a thread and a peer.
//!
//! The top bit of a context is the link's own, and so are immediates and the arena's first bytes. Everything else
//! belongs to the user: operations on regions that the peer lends, whose bytes come from and go to the rest of the
//! arena, from [`Link::arena_bytes`] on.

use caravan_segment::{SegmentView, SharedSlice};

use super::Link;
use crate::contract::{Capabilities, Completion, Endpoint, Error, Event, Exposure, Local, Operation};
use crate::region::{self, Region, RegionAccess, RegionNumber, RegionToken};

/// The bit that is set in the contexts of a link's own operations.
pub(crate) const LINK_CONTEXT: u64 = 1 << 63;
/// The number of operations that the user of a link has under way, or whose completions it has not taken.
pub const USER_OPERATIONS_MAX: usize = 1024;
/// The number of events taken from an endpoint at once.
const EVENTS_MAX: usize = 64;

/// The completions of the operations of a link's user. `done.len() <= under_way <= USER_OPERATIONS_MAX`
#[derive(Debug, Default)]
pub(crate) struct UserOperations {
    under_way: usize,
    done: Vec<Completion>,
}

impl UserOperations {
    /// Takes a completion, if it is the user's.
    #[inline]
    pub(crate) fn take(&mut self, completion: Completion) -> bool {
        let is_ours = completion.context & LINK_CONTEXT == 0;
        if is_ours {
            self.done.push(completion);
        }
        is_ours
    }
}

impl Link {
    /// Returns an exposure for a link whose user has `user_bytes` bytes of the arena, a multiple of 8.
    pub fn shared_exposure(ring_bytes: u64, user_bytes: u64) -> Result<Exposure, Error> {
        let link = Self::exposure(ring_bytes)?;
        let arena_bytes = link.arena_bytes.saturating_add(user_bytes);
        // Devices on which reads are writes of the peer's need to know that there will be reads.
        Ok(Exposure { arena_bytes, peer_reads: true, ..link })
    }

    /// Returns the memory of which the bytes from [`arena_bytes`](Self::arena_bytes) on are the user's.
    pub fn arena(&self) -> &SharedSlice {
        self.endpoint.arena()
    }

    /// Returns the endpoint of a link over which nothing was sent, for a user that has no use for the link.
    pub fn into_endpoint(self) -> Box<dyn Endpoint> {
        self.endpoint
    }

    /// Returns what the endpoint below promises.
    pub fn capabilities(&self) -> Capabilities {
        self.endpoint.capabilities()
    }

    /// Does what [`Endpoint::lend`](crate::Endpoint::lend) does.
    pub fn lend(&mut self, region: &Region, access: RegionAccess) -> Result<RegionToken, Error> {
        self.endpoint.lend(region, access)
    }

    /// Does what [`Endpoint::borrow`](crate::Endpoint::borrow) does.
    pub fn borrow(&mut self, token: &RegionToken) -> Result<RegionNumber, Error> {
        self.endpoint.borrow(token)
    }

    /// Does what [`Endpoint::revoke`](crate::Endpoint::revoke) does.
    pub fn revoke(&mut self, number: RegionNumber) -> Result<(), Error> {
        self.endpoint.revoke(number)
    }

    /// Returns the bytes of a borrowed region, if they are mapped.
    pub fn window(&self, number: RegionNumber) -> Option<&SegmentView> {
        self.endpoint.window(number)
    }

    /// Queues an operation on a region that the peer lends. Its context is below 2^63, it has no immediate, and its
    /// bytes on this side are the user's. Returns [`Error::Full`] if too many operations are under way: look for
    /// [completions](Self::completions), then post again.
    pub fn post(&mut self, operation: Operation) -> Result<(), Error> {
        let own = Self::arena_bytes(self.ring_bytes())?;
        let (context, local, immediate) = match operation {
            Operation::Write { from, immediate, context, .. } => (context, from, immediate),
            Operation::Read { into, context, .. } => (context, into, None),
            Operation::CompareAndSwap { context, .. } => (context, Local { offset: own, bytes: 0 }, None),
        };
        let (place, _) = region::target(&operation);
        if immediate.is_some() || context & LINK_CONTEXT != 0 {
            return Err(Error::Unsupported(self.provider(), "immediates or contexts for the user of a link"));
        }
        if !region::is_far(place) || local.offset < own {
            let arena_bytes = self.endpoint.arena().bytes();
            let (offset, bytes) = (local.offset, local.bytes.into());
            return Err(Error::OutOfArena { what: "the link's own bytes", offset, bytes, arena_bytes });
        }
        if self.user.under_way == USER_OPERATIONS_MAX {
            return Err(Error::Full(self.provider()));
        }
        self.endpoint.post(operation)?;
        self.user.under_way += 1;
        Ok(())
    }

    /// Starts all operations that were posted, and has their completions come as soon as they can.
    pub fn start(&mut self) -> Result<(), Error> {
        self.endpoint.doorbell()?;
        self.endpoint.flush()
    }

    /// Appends at most `limit` completions of the user's operations to `done`, and returns their number. All
    /// completions of before the peer's end can be taken before the error that reports the end.
    pub fn completions(&mut self, done: &mut Vec<Completion>, limit: usize) -> Result<usize, Error> {
        let progress = if self.user.done.is_empty() { self.look() } else { Ok(()) };
        let count = self.user.done.len().min(limit);
        if count == 0 {
            return progress.map(|()| 0);
        }
        done.extend(self.user.done.drain(..count));
        self.user.under_way -= count;
        Ok(count)
    }

    /// Takes what the endpoint has for the user.
    fn look(&mut self) -> Result<(), Error> {
        if self.staged.is_some() {
            return self.progress();
        }
        let mut events = Vec::new();
        self.endpoint.poll(&mut events, EVENTS_MAX)?;
        for event in events {
            match event {
                Event::Done(completion) if self.user.take(completion) => {}
                _ => {
                    let what = "it sent an immediate, which a link over mapped memory does not have";
                    return Err(Error::Protocol(self.provider(), what.to_owned()));
                }
            }
        }
        Ok(())
    }

    /// True if the user has a completion to take, or may have one without any event: then it must not sleep.
    pub(super) fn has_completions(&mut self) -> Result<bool, Error> {
        if self.user.under_way == 0 {
            return Ok(false);
        }
        if self.user.done.is_empty() && self.staged.is_none() {
            self.look()?;
        }
        Ok(!self.user.done.is_empty())
    }

    /// True if the user has operations under way whose completions have not come.
    pub(super) fn awaits_completions(&self) -> bool {
        self.user.under_way > self.user.done.len()
    }
}

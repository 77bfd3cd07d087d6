//! A client whose connection has become a link.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_fabric::contract::Armed;
use caravan_fabric::{Error, Link};
use caravan_store::StoreFunctions;
use caravan_store::calls::CallService;

use super::extents::LinkLender;
use crate::limits;
use crate::parts::ServedPart;
use crate::state::{ClientEntry, ServerState, count};

/// What a look at a client's link has brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    Nothing,
    /// Requests, or parts of them, are to be served.
    Requests,
}

/// A link, what arrived on it and is not served, and what waits for room.
///
/// Invariants: `sent <= output.len()`; nothing is read while output waits, so `output` is bounded by the longest reply
/// and [`caravan_store::limits::REPLIES_PAUSE_BYTES`]; `input` by one incomplete call.
#[derive(Debug)]
pub(crate) struct LinkClient {
    link: Link,
    channel: OwnedFd,
    service: CallService,
    /// Dropped after the service, which gives back what its client has allocated.
    part: Arc<ServedPart>,
    entry: ClientEntry,
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
    /// Something was received, or sent, that is not served yet.
    has_received: bool,
    /// When the client last took a byte of the output, or had none to take.
    moved: Instant,
}

impl LinkClient {
    pub(crate) fn new(
        link: Link,
        channel: OwnedFd,
        part: Arc<ServedPart>,
        entry: ClientEntry,
        functions: Arc<StoreFunctions>,
    ) -> Self {
        let service =
            CallService::with_functions(Arc::clone(&part.store), Arc::clone(&part.sessions), functions);
        let (input, output) = (Vec::new(), Vec::new());
        let (sent, has_received, moved) = (0, false, Instant::now());
        Self { link, channel, service, part, entry, input, output, sent, has_received, moved }
    }

    /// Sends what waits for room, and receives. An error says why the link is to be closed; it is empty if the client is just gone.
    pub(crate) fn receive(&mut self, state: &ServerState) -> Result<Received, String> {
        self.try_receive(state).map_err(reason)
    }

    fn try_receive(&mut self, state: &ServerState) -> Result<Received, Error> {
        self.has_received = !self.output.is_empty();
        if self.has_received && !self.send(state)? {
            return Ok(Received::Nothing);
        }
        let unread = self.link.refresh()?.min(limits::READ_BYTES);
        if unread > 0 {
            self.has_received = true;
            let before = self.input.len();
            self.input.resize(before + unread, 0);
            let read = self.link.read(&mut self.input[before..]);
            self.input.truncate(before + read);
            self.link.release()?;
            count(&state.counters.input_bytes, read as u64);
        }
        let is_over = self.input.is_empty() && !self.has_received;
        Ok(if is_over { Received::Nothing } else { Received::Requests })
    }

    /// Runs the requests that were received, and returns whether there was anything. May wait for copies.
    pub(crate) fn serve(&mut self, state: &ServerState) -> Result<bool, String> {
        self.try_serve(state).map_err(reason)?
    }

    fn try_serve(&mut self, state: &ServerState) -> Result<Result<bool, String>, Error> {
        let mut is_news = self.has_received;
        if self.input.is_empty() {
            return Ok(Ok(is_news));
        }
        let Self { link, service, part, input, output, .. } = self;
        let mut lender = LinkLender { link, part };
        let served = {
            let _turn = state.turn.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            service.serve(input, output, &mut lender)
        };
        match served {
            Ok((taken, counts)) => {
                if taken > 0 {
                    is_news = true;
                    input.drain(..taken);
                    input.shrink_to(limits::BUFFER_KEPT_BYTES);
                }
                count(&state.counters.commands, state.tallies.count_calls(&counts));
            }
            Err(error) => return Ok(Err(error.to_string())),
        }
        if !self.output.is_empty() {
            self.send(state)?;
        }
        Ok(Ok(is_news))
    }

    /// Returns whether its next request waits until the commits of the part no longer do.
    pub(crate) fn is_put_aside(&self) -> bool {
        self.service.is_put_aside()
    }

    /// Sends the output, and returns whether all of it is in the link.
    fn send(&mut self, state: &ServerState) -> Result<bool, Error> {
        let before = self.sent;
        if !state.parts.may_answer() {
            return Err(Error::NotConnected("this server may not answer any more".to_owned()));
        }
        loop {
            let bytes = self.link.append(&self.output[self.sent..])?;
            self.sent += bytes;
            if self.sent == self.output.len() || bytes == 0 && self.link.room()? == 0 {
                break;
            }
        }
        self.link.publish()?;
        if self.sent > before {
            self.moved = Instant::now();
            count(&state.counters.output_bytes, (self.sent - before) as u64);
        }
        let is_all = self.sent == self.output.len();
        if is_all {
            self.sent = 0;
            self.output.clear();
            self.output.shrink_to(limits::BUFFER_KEPT_BYTES);
        }
        Ok(is_all)
    }

    /// Announces that nobody looks at this link until its descriptor is readable.
    pub(crate) fn arm(&mut self) -> Result<Armed, String> {
        let room = usize::from(!self.output.is_empty());
        self.link.arm(room).map_err(reason)
    }

    /// Takes the wake-up of the descriptor.
    pub(crate) fn wake(&mut self) -> Result<(), String> {
        self.link.awake();
        self.link.acknowledge().map_err(reason)
    }

    /// Returns the descriptor that becomes readable when an armed link has news.
    pub(crate) fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.link.wait_fd()
    }

    /// Returns whether the client has left its replies unread for too long.
    pub(crate) fn is_stalled(&self, now: Instant, most: Duration) -> bool {
        !self.output.is_empty() && now.saturating_duration_since(self.moved) >= most
    }

    /// Returns the part of the store that the client calls.
    pub(crate) fn part(&self) -> &ServedPart {
        &self.part
    }

    /// Returns the client's number and address, for messages.
    pub(crate) fn name(&self) -> String {
        let card = &self.entry.card;
        format!("client {} ({})", card.id, card.address)
    }
}

/// Returns what the operator should know of the end of a link.
fn reason(error: Error) -> String {
    match error {
        Error::PeerGone(..) => String::new(),
        error => error.to_string(),
    }
}

impl AsFd for LinkClient {
    /// The connection, which is readable once the client is gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.channel.as_fd()
    }
}

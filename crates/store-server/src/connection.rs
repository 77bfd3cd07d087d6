//! A connection: a socket and its dialogue. It reads, serves and writes until one of them has to wait.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::dialogue::Dialogue;
use crate::limits;
use crate::links::LinkAttachment;
use crate::socket::StoreSocket;
use crate::state::{ServerState, count};

/// What a connection waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ConnectionWait {
    /// Bytes to read.
    Input,
    /// Room to write.
    Output,
    /// The end of DEBUG SLEEP.
    Time(Instant),
    /// The server to make it a link: CARAVAN.ATTACH.
    Attach,
    /// A thread that may wait for other servers, for the next request.
    Errand,
    /// Nothing: the connection is at its end.
    End,
}

/// A connection.
///
/// Invariants: `sent <= dialogue.output().len()`; nothing is read while output waits, so both buffers are bounded.
#[derive(Debug)]
pub(crate) struct StoreConnection {
    socket: StoreSocket,
    /// When it was accepted.
    begun: Instant,
    dialogue: Dialogue,
    input: Vec<u8>,
    sent: usize,
    paused_until: Option<Instant>,
    /// The bytes of the requests that [`receive`](Self::receive) has served since the last write; `None` if it has not
    /// been called.
    received: Option<usize>,
    /// When the client last took a byte of the output, or had none to take.
    moved: Instant,
}

impl StoreConnection {
    pub(crate) fn new(socket: StoreSocket, mut dialogue: Dialogue, now: Instant) -> Self {
        dialogue.is_sealed = socket.is_sealed();
        let (input, sent, paused_until, received) = (Vec::new(), 0, None, None);
        Self { socket, begun: now, dialogue, input, sent, paused_until, received, moved: now }
    }

    /// Reads once and serves the requests. The replies wait for [`advance`](Self::advance). Returns whether the
    /// connection is still there.
    ///
    /// The worker first calls this for all connections that have input: a reply wakes its client up, which would
    /// interrupt the service of the others.
    pub(crate) fn receive(
        &mut self,
        state: &ServerState,
        spare: &mut Vec<u8>,
        now: Instant,
        now_ms: u64,
    ) -> bool {
        if self.paused_until.is_some() || !self.dialogue.output().is_empty() || self.socket.has_unsent() {
            return true;
        }
        self.moved = now;
        let is_there = match self.read(state, spare) {
            Ok(ReadOutcome::Bytes | ReadOutcome::Nothing) => true,
            Ok(ReadOutcome::End) | Err(_) => false,
        };
        self.received = Some(self.serve(now_ms));
        self.return_to(spare);
        is_there
    }

    /// Serves requests, and returns the number of their bytes.
    fn serve(&mut self, now_ms: u64) -> usize {
        let taken = self.dialogue.serve(&self.input, now_ms);
        self.input.drain(..taken);
        taken
    }

    /// Gives the buffer back if it is empty.
    fn return_to(&mut self, spare: &mut Vec<u8>) {
        if self.input.is_empty() && self.input.capacity() > spare.capacity() {
            *spare = std::mem::take(&mut self.input);
            spare.shrink_to(limits::BUFFER_KEPT_BYTES);
        }
    }

    /// Goes on as far as possible: at most one read since the last call, so that other connections have their turn. The
    /// worker's `spare` buffer is lent to the connection while it has input, so that an idle connection has none.
    pub(crate) fn advance(
        &mut self,
        state: &ServerState,
        spare: &mut Vec<u8>,
        now: Instant,
        now_ms: u64,
    ) -> ConnectionWait {
        let wait = self.try_advance(state, spare, now, now_ms).unwrap_or(ConnectionWait::End);
        self.return_to(spare);
        wait
    }

    fn try_advance(
        &mut self,
        state: &ServerState,
        spare: &mut Vec<u8>,
        now: Instant,
        now_ms: u64,
    ) -> Result<ConnectionWait, Errno> {
        if let Some(until) = self.paused_until.filter(|until| *until > now) {
            return Ok(ConnectionWait::Time(until));
        }
        let mut has_read = self.received.is_some();
        loop {
            self.paused_until = None;
            if self.dialogue.output().is_empty() && !self.socket.has_unsent() {
                self.moved = now;
            }
            let taken = self.received.take().unwrap_or(0) + self.serve(now_ms);
            let pause = self.dialogue.take_pause();
            let is_aside = self.dialogue.is_put_aside();
            if !pause.is_zero() && !is_aside {
                // The reply comes after the pause.
                let until = now + pause;
                self.paused_until = Some(until);
                return Ok(ConnectionWait::Time(until));
            }
            if !self.write(state, now)? {
                return Ok(ConnectionWait::Output);
            }
            if is_aside {
                let until = now + pause.max(limits::RELIEF_LOOK);
                self.paused_until = Some(until);
                return Ok(ConnectionWait::Time(until));
            }
            if self.dialogue.is_closing() {
                self.socket.finish();
                return Ok(ConnectionWait::End);
            }
            if self.dialogue.attach.is_some() {
                // A client that says more than that does not know what it asked for.
                let wait = if self.input.is_empty() { ConnectionWait::Attach } else { ConnectionWait::End };
                return Ok(wait);
            }
            if self.dialogue.needs_errand() {
                return Ok(ConnectionWait::Errand);
            }
            // Requests are left if the output was long; they come before further bytes.
            if taken > 0 && !self.input.is_empty() {
                continue;
            }
            // An answer of the handshake may wait for room.
            let wait = if self.socket.has_unsent() { ConnectionWait::Output } else { ConnectionWait::Input };
            if has_read {
                return Ok(wait);
            }
            has_read = true;
            match self.read(state, spare)? {
                ReadOutcome::Nothing => return Ok(wait),
                ReadOutcome::End => return Ok(ConnectionWait::End),
                ReadOutcome::Bytes => {}
            }
        }
    }

    /// Does the request for which [`advance`](Self::advance) has returned [`ConnectionWait::Errand`]. Blocks. The reply waits for
    /// `advance`.
    pub(crate) fn run_errand(&mut self, now_ms: u64) {
        let taken = self.dialogue.run_errand(&self.input, now_ms);
        self.input.drain(..taken);
    }

    fn read(&mut self, state: &ServerState, spare: &mut Vec<u8>) -> Result<ReadOutcome, Errno> {
        if self.input.capacity() == 0 {
            self.input = std::mem::take(spare);
        }
        let outcome = self.socket.receive(&mut self.input);
        let bytes = outcome.unwrap_or(0);
        count(&state.counters.input_bytes, bytes as u64);
        match outcome {
            Ok(0) => Ok(ReadOutcome::End),
            Ok(_) => Ok(ReadOutcome::Bytes),
            Err(Errno::AGAIN | Errno::INTR) => Ok(ReadOutcome::Nothing),
            Err(error) => Err(error),
        }
    }

    /// Sends the output, and returns whether all of it is gone.
    fn write(&mut self, state: &ServerState, now: Instant) -> Result<bool, Errno> {
        let tells_of_parts = self.dialogue.tells_of_parts;
        let output = self.dialogue.output();
        if self.sent < output.len() && tells_of_parts && !state.parts.may_answer() {
            // Another server may have the parts by now, and what was read may be out of date.
            return Err(Errno::STALE);
        }
        while self.sent < output.len() {
            match self.socket.send(&output[self.sent..]) {
                Ok(bytes) => {
                    self.sent += bytes;
                    self.moved = now;
                    count(&state.counters.output_bytes, bytes as u64);
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let unsent_bytes = (output.len() - self.sent) as u64;
                    self.dialogue.entry.card.unsent_bytes.store(unsent_bytes, Ordering::Relaxed);
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
        self.sent = 0;
        output.clear();
        output.shrink_to(limits::OUTPUT_KEPT_BYTES);
        self.dialogue.entry.card.unsent_bytes.store(0, Ordering::Relaxed);
        let is_gone = self.socket.flush()?;
        if is_gone {
            self.moved = now;
        }
        Ok(is_gone)
    }

    /// Returns whether the client has left its replies unread for too long.
    pub(crate) fn is_stalled(&mut self, now: Instant, most: Duration) -> bool {
        (!self.dialogue.output().is_empty() || self.socket.has_unsent())
            && self.paused_until.is_none()
            && now.saturating_duration_since(self.moved) >= most
    }

    /// Returns whether the client takes too long to begin TLS.
    pub(crate) fn is_late(&self, now: Instant) -> bool {
        self.socket.is_handshaking() && now.saturating_duration_since(self.begun) >= limits::TLS_HANDSHAKE_MAX
    }

    /// Takes the connection apart, for an attachment that the client has asked for.
    pub(crate) fn into_attachment(self) -> Option<LinkAttachment> {
        let Self { socket, mut dialogue, .. } = self;
        let request = dialogue.attach.take()?;
        let StoreSocket::Plain(socket) = socket else { return None };
        Some(LinkAttachment { socket, request, entry: dialogue.entry })
    }

    /// Returns the client's address and name, for messages.
    pub(crate) fn client(&self) -> String {
        let card = &self.dialogue.entry.card;
        format!("client {} ({})", card.id, card.address)
    }
}

/// What a read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadOutcome {
    Nothing,
    Bytes,
    End,
}

impl AsFd for StoreConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    use caravan_store::{Store, StoreOptions};

    use super::*;
    use crate::parts::ServedParts;
    use crate::state::ServerFacts;

    #[test]
    fn a_client_that_takes_nothing_stalls_and_one_that_has_nothing_to_take_does_not() {
        let store = Arc::new(Store::embedded(StoreOptions::new(16 << 20)).expect("a store"));
        store.put(b"k", &[b'x'; 500_000]).expect("room");
        let state = Arc::new(ServerState::new(
            ServedParts::whole(store).expect("parts"),
            ServerFacts::new("test"),
            None,
        ));
        let (client, server) = UnixStream::pair().expect("a pair");
        let (begin, spare) = (Instant::now(), &mut Vec::new());
        let dialogue = Dialogue::new(Arc::clone(&state), "test".to_owned(), 0);
        let mut connection = StoreConnection::new(StoreSocket::Plain(server.into()), dialogue, begin);
        // It is idle for an hour before its first request.
        let asked = begin + Duration::from_secs(3600);
        assert!(!connection.is_stalled(asked, limits::OUTPUT_STALLED_MAX));
        rustix::io::write(&client, b"GET k\r\nGET k\r\n").expect("sent");
        assert_eq!(connection.advance(&state, spare, asked, 0), ConnectionWait::Output);
        let unsent_bytes = connection.dialogue.entry.card.unsent_bytes.load(Ordering::Relaxed);
        assert!((1..1_000_100).contains(&unsent_bytes), "{unsent_bytes}");
        let most = limits::OUTPUT_STALLED_MAX;
        assert!(!connection.is_stalled(asked + most - Duration::from_millis(1), most));
        assert!(connection.is_stalled(asked + most, most));
        // It takes something.
        rustix::io::read(&client, &mut vec![0; 100_000]).expect("read");
        let later = asked + most;
        assert_eq!(connection.advance(&state, spare, later, 0), ConnectionWait::Output);
        assert!(!connection.is_stalled(later, most));
    }

    #[test]
    fn a_client_that_does_not_begin_tls_is_late_after_a_while() {
        use rustls::server::ResolvesServerCertUsingSni;

        let store = Arc::new(Store::embedded(StoreOptions::new(16 << 20)).expect("a store"));
        let state = Arc::new(ServerState::new(
            ServedParts::whole(store).expect("parts"),
            ServerFacts::new("test"),
            None,
        ));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().expect("versions").with_no_client_auth();
        let config = Arc::new(config.with_cert_resolver(Arc::new(ResolvesServerCertUsingSni::new())));
        let (client, server) = UnixStream::pair().expect("a pair");
        let (begin, spare) = (Instant::now(), &mut Vec::new());
        let dialogue = Dialogue::new(Arc::clone(&state), "test".to_owned(), 0);
        let socket = StoreSocket::sealed(server.into(), config).expect("a socket");
        let mut connection = StoreConnection::new(socket, dialogue, begin);
        // A part of a greeting.
        rustix::io::write(&client, &[22, 3, 1]).expect("sent");
        assert_eq!(connection.advance(&state, spare, begin, 0), ConnectionWait::Input);
        assert!(!connection.is_late(begin));
        assert!(connection.is_late(begin + limits::TLS_HANDSHAKE_MAX));
        // A request that is no TLS.
        rustix::io::write(&client, b"PING\r\n").expect("sent");
        assert_eq!(connection.advance(&state, spare, begin, 0), ConnectionWait::End);
    }
}

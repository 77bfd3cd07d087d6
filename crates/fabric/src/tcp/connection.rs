//! One connection: its socket, and what both its threads share. The owner's thread and the agent's move it on in turns,
//! under one lock; neither waits for the socket.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};

use super::agent::system;
use super::fault::TcpFault;
use super::frame::TcpFrame;
use super::limits::{IMMEDIATES_MAX, RECORD_BYTES_MAX, TAKEN_EVERY, TURN_BYTES};
use super::records::RecordStream;
use super::requests::TcpRequests;
use super::target::TcpTarget;
use crate::byte_reader::ByteReader;
use crate::contract::{EndpointCounts, Error, Event};

const CLOSED: TcpFault = TcpFault::PeerGone("it has closed its end, or its process has ended");
const LOST: TcpFault = TcpFault::PeerGone("the connection was reset, or its host does not answer any more");

/// What the owner and the agent share.
#[derive(Debug)]
pub struct TcpConnection {
    state: Mutex<TcpState>,
    socket: OwnedFd,
    bell: OwnedFd,
    /// An epoll set with the socket and the bell.
    news: OwnedFd,
}

/// A connection without its socket.
#[derive(Debug)]
pub struct TcpState {
    stream: RecordStream,
    /// This side's operations.
    pub requests: TcpRequests,
    /// The peer's operations.
    pub target: TcpTarget,
    immediates: VecDeque<u32>,
    /// The number of immediates that the owner has taken and the peer does not know of.
    taken: u32,
    /// The owner wants the peer woken.
    pub wakes_peer: bool,
    /// The peer wants the owner woken.
    pub woken: bool,
    /// The owner is about to wait for the bell.
    pub armed: bool,
    /// The bell was rung, and the owner has not heard it.
    rung: bool,
    /// The owner has polled since the agent last asked.
    pub polled: bool,
    /// The agent leaves the socket to the owner, who polls, or waits for the socket itself.
    pub attended: bool,
    /// A post was refused: `Some(true)` if it was one with an immediate.
    pub refused: Option<bool>,
    /// Why the connection has ended.
    pub fault: Option<TcpFault>,
    /// What was counted.
    pub counts: EndpointCounts,
}

impl TcpState {
    /// Returns the state of a connection whose greetings have been exchanged.
    pub fn new(stream: RecordStream, target: TcpTarget) -> Self {
        Self {
            stream,
            requests: TcpRequests::default(),
            target,
            immediates: VecDeque::new(),
            taken: 0,
            wakes_peer: false,
            woken: false,
            armed: false,
            rung: false,
            polled: false,
            attended: false,
            refused: None,
            fault: None,
            counts: EndpointCounts::default(),
        }
    }

    /// True if there is anything for the owner.
    pub fn has_news(&self) -> bool {
        self.woken
            || self.has_events()
            || self.fault.is_some()
            || self.refused.is_some_and(|immediate| self.requests.has_room(immediate))
    }

    /// True if there are events to poll.
    pub fn has_events(&self) -> bool {
        self.requests.has_events() || !self.immediates.is_empty()
    }

    /// Moves at most `limit` events to `events`, and returns their number.
    pub fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> usize {
        let own = self.requests.poll(events, limit);
        let count = self.immediates.len().min(limit - own);
        events.extend(self.immediates.drain(..count).map(Event::Immediate));
        self.taken += count as u32;
        own + count
    }

    /// True if there are bytes that the socket has not taken.
    pub fn has_unsent(&self) -> bool {
        !self.stream.unsent().is_empty()
    }

    /// True if the peer waits for word of immediates that were taken.
    pub fn owes_taken(&self) -> bool {
        self.taken >= TAKEN_EVERY
    }

    /// Handles every whole record that has come.
    fn handle(&mut self) -> Result<(), TcpFault> {
        let Self { stream, requests, target, immediates, taken, woken, .. } = self;
        while let Some(body) = stream.take()? {
            let mut reader = ByteReader::new(body);
            while !reader.is_empty() {
                let frame = TcpFrame::parse(&mut reader);
                match frame.ok_or(TcpFault::Protocol("it sent a frame that makes no sense"))? {
                    TcpFrame::Write { place, bytes, ends, immediate } => {
                        if !target.write(place, bytes, ends)? {
                            continue;
                        }
                        if let Some(immediate) = immediate {
                            if immediates.len() + *taken as usize >= IMMEDIATES_MAX {
                                return Err(TcpFault::Protocol("it sent more immediates than it may"));
                            }
                            immediates.push_back(immediate);
                        }
                    }
                    TcpFrame::Read { place, bytes } => target.read(place, bytes)?,
                    TcpFrame::Swap { place, expected, desired } => target.swap(place, expected, desired)?,
                    TcpFrame::Written(count) => requests.written(count)?,
                    TcpFrame::Bytes { bytes, ends } => requests.read(target.arena(), bytes, ends)?,
                    TcpFrame::Found(word) => requests.found(word)?,
                    TcpFrame::Revoked(place) => return Err(requests.revoked(place)),
                    TcpFrame::Taken(count) => requests.taken(count)?,
                    TcpFrame::Wake => *woken = true,
                }
            }
        }
        Ok(())
    }

    /// Makes the next record, unless one is on its way. False if there is nothing to send.
    fn produce(&mut self) -> Result<bool, TcpFault> {
        let Self { stream, requests, target, taken, wakes_peer, .. } = self;
        stream.produce(|body, limit| {
            if *taken >= TAKEN_EVERY {
                TcpFrame::Taken(std::mem::take(taken)).append_to(body);
            }
            if std::mem::take(wakes_peer) {
                TcpFrame::Wake.append_to(body);
            }
            // Neither direction starves the other.
            let share = if requests.has_output() { limit - RECORD_BYTES_MAX / 2 } else { limit };
            target.fill(body, share);
            requests.fill(target.arena(), body, limit);
            target.fill(body, limit);
        })
    }
}

impl TcpConnection {
    /// Returns a connection over a socket that does not block.
    pub fn new(socket: OwnedFd, state: TcpState) -> Result<Self, Error> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let bell = rustix::event::eventfd(0, flags).map_err(system("eventfd"))?;
        let news = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll_create1"))?;
        for descriptor in [&socket, &bell] {
            let data = epoll::EventData::new_u64(0);
            epoll::add(&news, descriptor, data, epoll::EventFlags::IN).map_err(system("epoll_ctl"))?;
        }
        Ok(Self { state: Mutex::new(state), socket, bell, news })
    }

    /// Returns the state.
    pub fn lock(&self) -> MutexGuard<'_, TcpState> {
        // No code that holds the lock is expected to panic; a state in the middle of a change is checked again anyway.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the socket.
    pub fn socket(&self) -> &OwnedFd {
        &self.socket
    }

    /// Returns the descriptor that the owner waits for: it is readable if the bell was rung, or the socket has bytes.
    pub fn news(&self) -> &OwnedFd {
        &self.news
    }

    /// Takes the owner's wake-up.
    pub fn hear(&self, state: &mut TcpState) -> Result<(), Error> {
        state.woken = false;
        if !std::mem::take(&mut state.rung) {
            return Ok(());
        }
        match rustix::io::read(&self.bell, &mut [0; 8]) {
            Ok(_) | Err(Errno::AGAIN) => Ok(()),
            Err(source) => Err(system("read(eventfd)")(source)),
        }
    }

    /// Receives, does and sends what it can without waiting. True if there is more than one turn may take.
    pub fn advance(&self, state: &mut TcpState) -> bool {
        if state.fault.is_some() {
            return false;
        }
        let outcome = self.receive(state).and_then(|more| self.send(state).map(|()| more));
        let more = outcome.unwrap_or_else(|fault| self.end(state, fault));
        self.notify(state);
        more
    }

    /// Sends what it can without waiting.
    pub fn push(&self, state: &mut TcpState) {
        if state.fault.is_none() {
            if let Err(fault) = self.send(state) {
                // What the peer sent before its end may not have been read.
                while let Ok(true) = self.receive(state) {}
                self.end(state, fault);
            }
            self.notify(state);
        }
    }

    /// Ends the connection: nothing of the peer's is done any more.
    pub fn close(&self) {
        self.end(&mut self.lock(), TcpFault::PeerGone("this side has closed the connection"));
    }

    fn end(&self, state: &mut TcpState, fault: TcpFault) -> bool {
        state.fault.get_or_insert(fault);
        // The peer may have ended it already.
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        false
    }

    /// Rings the owner's bell if the owner waits and there is something for it.
    fn notify(&self, state: &mut TcpState) {
        if state.armed && state.has_news() {
            (state.armed, state.rung) = (false, true);
            // A full counter is readable already, and nothing else can fail.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    fn receive(&self, state: &mut TcpState) -> Result<bool, TcpFault> {
        let mut total = 0;
        while total < TURN_BYTES {
            let room = state.stream.room();
            let asked = room.len();
            match rustix::net::recv(&self.socket, room, RecvFlags::DONTWAIT) {
                Ok((0, _)) => return Err(CLOSED),
                Ok((count, _)) => {
                    state.counts.completions += 1;
                    total += count;
                    state.stream.came(count);
                    state.handle()?;
                    if count < asked {
                        // Nearly always there is no more; if there is, another event says so.
                        return Ok(false);
                    }
                }
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::INTR) => {}
                Err(_) => return Err(LOST),
            }
        }
        Ok(true)
    }

    fn send(&self, state: &mut TcpState) -> Result<(), TcpFault> {
        while state.produce()? {
            let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
            match rustix::net::send(&self.socket, state.stream.unsent(), flags) {
                Ok(count) => {
                    state.counts.doorbells += 1;
                    state.stream.sent(count);
                }
                // The agent goes on when the socket takes more.
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(LOST),
            }
        }
        Ok(())
    }
}

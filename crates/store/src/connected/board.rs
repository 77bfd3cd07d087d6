//! The calls and lookups of one client that are under way on its link. Nothing here waits.
//!
//! Writes outlive a link: they have numbers in the client's session, and those without an answer are sent again over
//! the next link, once the server has said that it goes on with the session.

use std::task::Waker;

use caravan_fabric::contract::{Armed, Completion};
use caravan_fabric::{Error as FabricError, Link};

use super::lookup::{KeyLookup, LookupStep, PlannedRead};
use super::one_sided::{OneSidedReads, RunningRead};
use super::unanswered::UnansweredWrites;
use crate::calls::{CallRecord, DONE, FoundKey, NUMBER_BYTES, RequestKind, append_record, decode_error};
use crate::commit::UnitKind;
use crate::copies::lease::now_ns;
use crate::error::StoreError;
use crate::limits;

/// What came of a call.
#[derive(Debug)]
pub(crate) enum CallOutcome {
    /// The server's reply.
    Body(Vec<u8>),
    /// What one-sided reads have found.
    Found(FoundKey),
    /// An error of the server, or the end of the connection.
    Failed(StoreError),
}

/// A call, from its start until its outcome is taken.
#[derive(Debug)]
enum CallState {
    Free,
    UnderWay {
        waker: Option<Waker>,
        /// Nobody will take the outcome.
        is_abandoned: bool,
        /// The number of a write in the session, 0 for none.
        request: u64,
        one_sided: Option<Box<OneSidedWork>>,
    },
    Ended(CallOutcome),
}

/// What a call does by one-sided reads.
#[derive(Debug)]
struct OneSidedWork {
    /// `None` for a read of some bytes, whatever they are.
    lookup: Option<KeyLookup>,
    running: Option<RunningRead>,
}

/// The session of a client, and the writes that it would repeat.
#[derive(Debug)]
struct WriteSession {
    /// 0 for none.
    number: u64,
    /// The server has said on this link that it goes on with the session, or has no room for one.
    is_joined: bool,
    /// The call that asks for that.
    call: Option<u32>,
    unanswered: UnansweredWrites,
}

/// The calls under way.
///
/// Invariants: `under_way` calls are `UnderWay`, at most `limits::CALLS_MAX`; numbers in `free` are of `Free` ones;
/// without a link only writes in `session.unanswered` are under way.
#[derive(Debug)]
pub(crate) struct CallBoard {
    pub(crate) link: Option<Link>,
    pub(crate) reads: Option<OneSidedReads>,
    calls: Vec<CallState>,
    free: Vec<u32>,
    under_way: usize,
    ended: u64,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The bytes of `output` that are in the link.
    sent: usize,
    /// One-sided reads were posted and not started.
    has_posted: bool,
    done: Vec<Completion>,
    spare: Vec<u8>,
    /// The call that asks for further regions and the lease, and when one was last asked, on the clock of leases.
    regions: (Option<u32>, Option<u64>),
    session: WriteSession,
}

impl CallBoard {
    pub(crate) fn new() -> Self {
        Self {
            link: None,
            reads: None,
            calls: Vec::new(),
            free: Vec::new(),
            under_way: 0,
            ended: 0,
            input: Vec::new(),
            output: Vec::new(),
            sent: 0,
            has_posted: false,
            done: Vec::new(),
            spare: Vec::new(),
            regions: (None, None),
            session: WriteSession {
                number: 0,
                is_joined: false,
                call: None,
                unanswered: UnansweredWrites::new(),
            },
        }
    }

    /// Begins to use a link.
    pub(crate) fn attach(&mut self, link: Link, reads: Option<OneSidedReads>) {
        (self.link, self.reads) = (Some(link), reads);
        if self.reads.is_some() {
            self.ask_for_regions();
        }
        if self.session.number != 0 {
            self.ask_for_session();
        }
    }

    /// Ends the link, and all calls under way with it but writes of a session.
    pub(crate) fn detach(&mut self) {
        (self.link, self.reads, self.regions) = (None, None, (None, None));
        (self.sent, self.has_posted) = (0, false);
        self.input.clear();
        self.output.clear();
        (self.session.call, self.session.is_joined) = (None, false);
        for call in 0..self.calls.len() as u32 {
            if !matches!(self.calls[call as usize], CallState::UnderWay { request: 1.., .. }) {
                self.end_call(call, || CallOutcome::Failed(StoreError::Disconnected));
            }
        }
    }

    /// True if a further call may start.
    pub(crate) fn has_room(&self) -> bool {
        self.under_way < limits::CALLS_MAX && self.output.len() - self.sent < limits::CALLS_WAITING_BYTES
    }

    /// Starts a call, and returns its number. It is sent by [`flush`](Self::flush).
    pub(crate) fn start(&mut self, kind: RequestKind, body: impl FnOnce(&mut Vec<u8>)) -> u32 {
        let call = self.enter(0, None);
        append_record(&mut self.output, call, kind as u16, body);
        call
    }

    /// Tells whether a further write may start, as far as the session goes.
    pub(crate) fn may_write(&self) -> bool {
        self.session.is_joined && self.session.unanswered.has_room()
    }

    /// Starts a write, and returns its number, if [`may_write`](Self::may_write). It is repeated until it has an
    /// answer, or [`fail_writes`](Self::fail_writes) is called.
    pub(crate) fn start_write(&mut self, kind: RequestKind, body: impl FnOnce(&mut Vec<u8>)) -> u32 {
        if self.session.number == 0 {
            return self.start(kind, |to| {
                to.extend_from_slice(&[0; NUMBER_BYTES]);
                body(to);
            });
        }
        let call = self.enter(self.session.unanswered.next(), None);
        self.output.extend_from_slice(self.session.unanswered.add(call, kind, body));
        call
    }

    /// Asks for a session, or to go on with the one that this client has, unless that is under way or done.
    pub(crate) fn ask_for_session(&mut self) {
        if self.session.call.is_none() && !self.session.is_joined {
            let number = self.session.number;
            let call = self.start(RequestKind::Session, |to| to.extend_from_slice(&number.to_be_bytes()));
            self.abandon(call);
            self.session.call = Some(call);
        }
    }

    /// Tells whether there is neither a session nor a call that asks for it.
    pub(crate) fn lacks_session(&self) -> bool {
        self.session.call.is_none() && !self.session.is_joined
    }

    /// Tells whether there are writes to repeat.
    pub(crate) fn has_unanswered(&self) -> bool {
        !self.session.unanswered.is_empty()
    }

    /// Ends all writes without an answer: they are not repeated any more.
    pub(crate) fn fail_writes(&mut self, error: impl Fn() -> StoreError) {
        for call in self.session.unanswered.forget() {
            self.end_call(call, || CallOutcome::Failed(error()));
        }
    }

    /// Tells the server that the session ends.
    pub(crate) fn end_session(&mut self) {
        if self.session.is_joined && self.session.number != 0 {
            let call = self.start(RequestKind::End, |_| ());
            self.abandon(call);
        }
    }

    /// Takes the answer to [`ask_for_session`](Self::ask_for_session).
    fn session_answered(&mut self, record: CallRecord<'_>) {
        let number = record.body.first_chunk().map(|bytes| u64::from_be_bytes(*bytes));
        self.session.call = None;
        match number.filter(|_| record.kind == DONE) {
            Some(number) => {
                (self.session.number, self.session.is_joined) = (number, true);
                let unanswered = self.session.unanswered.iter();
                unanswered.for_each(|(_, record)| self.output.extend_from_slice(record));
            }
            // It was closed while this client was away, so what came of the writes is unknown.
            None if self.session.number != 0 => {
                self.session.number = 0;
                self.fail_writes(|| StoreError::Disconnected);
            }
            // The server cannot open one: writes are then not repeated.
            None => self.session.is_joined = true,
        }
    }

    /// Starts to look a key up, by one-sided reads or by a call, and returns its number. `is_waited_for` says that the
    /// caller does nothing else meanwhile.
    pub(crate) fn start_lookup(&mut self, hash: u64, key: &[u8], is_waited_for: bool) -> u32 {
        if self.reads.as_ref().is_some_and(|reads| reads.is_worth_it(is_waited_for) && reads.needs_lease()) {
            self.ask_for_regions();
        }
        let may_read = |reads: &&OneSidedReads| reads.is_worth_it(is_waited_for) && reads.may_be_believed();
        let Some(reads) = self.reads.as_ref().filter(may_read) else {
            return self.start(RequestKind::Get, |to| to.extend_from_slice(key));
        };
        let mut lookup = KeyLookup::new(hash, key);
        let step = lookup.begin(&reads.places);
        let call = self.enter(0, Some(Box::new(OneSidedWork { lookup: Some(lookup), running: None })));
        self.follow(call, step);
        call
    }

    /// Starts a one-sided read of some bytes, and returns its number; `None` if they are not lent, or too many reads
    /// are under way.
    pub(crate) fn start_read(&mut self, place: u64, bytes: usize) -> Option<u32> {
        let reads = self.reads.as_ref()?;
        let (reaches, needs_lease) = (reads.reaches(place + bytes as u64 - 1), reads.needs_lease());
        if !reaches || needs_lease {
            self.ask_for_regions();
        }
        if !reaches {
            return None;
        }
        let call = self.enter(0, Some(Box::new(OneSidedWork { lookup: None, running: None })));
        self.follow(call, LookupStep::Read(PlannedRead { place, bytes, then: None }));
        match self.calls.get_mut(call as usize) {
            Some(CallState::UnderWay { one_sided: Some(work), .. }) if work.running.is_some() => Some(call),
            _ => {
                self.abandon(call);
                self.end_call(call, || CallOutcome::Body(Vec::new()));
                None
            }
        }
    }

    fn enter(&mut self, request: u64, one_sided: Option<Box<OneSidedWork>>) -> u32 {
        self.under_way += 1;
        let state = CallState::UnderWay { waker: None, is_abandoned: false, request, one_sided };
        if let Some(call) = self.free.pop() {
            self.calls[call as usize] = state;
            return call;
        }
        self.calls.push(state);
        self.calls.len() as u32 - 1
    }

    /// Takes the outcome of a call that has ended; `None` if it has not. Its number is free then.
    pub(crate) fn take(&mut self, call: u32) -> Option<CallOutcome> {
        let state = self.calls.get_mut(call as usize)?;
        if !matches!(state, CallState::Ended(_)) {
            return None;
        }
        let CallState::Ended(outcome) = std::mem::replace(state, CallState::Free) else { return None };
        self.free.push(call);
        Some(outcome)
    }

    /// Has `waker` called when a call ends. `waker` replaces the one of before.
    pub(crate) fn wake(&mut self, call: u32, new: &Waker) {
        if let Some(CallState::UnderWay { waker, .. }) = self.calls.get_mut(call as usize) {
            match waker {
                Some(waker) => waker.clone_from(new),
                None => *waker = Some(new.clone()),
            }
        }
    }

    /// Calls all wakers.
    pub(crate) fn wake_all(&mut self) {
        for call in &mut self.calls {
            if let CallState::UnderWay { waker, .. } = call {
                waker.take().into_iter().for_each(Waker::wake);
            }
        }
    }

    /// Says that nobody will take the outcome of a call.
    pub(crate) fn abandon(&mut self, call: u32) {
        match self.calls.get_mut(call as usize) {
            Some(CallState::UnderWay { is_abandoned, waker, .. }) => (*is_abandoned, *waker) = (true, None),
            Some(CallState::Ended(_)) => drop(self.take(call)),
            _ => {}
        }
    }

    /// True if any call is under way.
    pub(crate) fn is_busy(&self) -> bool {
        self.under_way > 0
    }

    /// Returns how many calls have ended whose outcome somebody takes.
    pub(crate) fn ended(&self) -> u64 {
        self.ended
    }

    fn end_call(&mut self, call: u32, outcome: impl FnOnce() -> CallOutcome) {
        let Some(state) = self.calls.get_mut(call as usize) else { return };
        let CallState::UnderWay { waker, is_abandoned, .. } = state else { return };
        self.under_way -= 1;
        if *is_abandoned {
            *state = CallState::Free;
            self.free.push(call);
            return;
        }
        let waker = waker.take();
        *state = CallState::Ended(outcome());
        self.ended = self.ended.wrapping_add(1);
        waker.into_iter().for_each(Waker::wake);
    }

    /// Sends what can be sent, and starts one-sided reads.
    pub(crate) fn flush(&mut self) -> Result<(), StoreError> {
        let Some(link) = &mut self.link else { return Ok(()) };
        if std::mem::take(&mut self.has_posted) {
            link.start()?;
        }
        if self.sent == self.output.len() {
            return Ok(());
        }
        loop {
            let bytes = link.append(&self.output[self.sent..])?;
            self.sent += bytes;
            if self.sent == self.output.len() {
                self.output.clear();
                self.sent = 0;
                break;
            }
            // Looks for room that the server has given back meanwhile.
            if bytes == 0 && link.room()? == 0 {
                break;
            }
        }
        Ok(link.publish()?)
    }

    /// Takes what has arrived, and returns whether that was anything.
    pub(crate) fn receive(&mut self) -> Result<bool, StoreError> {
        let Some(link) = &mut self.link else { return Ok(false) };
        let mut is_news = false;
        if self.reads.is_some() {
            let mut done = std::mem::take(&mut self.done);
            link.completions(&mut done, usize::MAX)?;
            is_news |= !done.is_empty();
            done.drain(..).for_each(|completion| self.completed(completion.context as u32));
            self.done = done;
        }
        let Some(link) = &mut self.link else { return Ok(false) };
        let unread = link.refresh()?;
        if unread > 0 {
            is_news = true;
            let before = self.input.len();
            self.input.resize(before + unread, 0);
            let read = link.read(&mut self.input[before..]);
            self.input.truncate(before + read);
            link.release()?;
            self.replies()?;
        }
        Ok(is_news)
    }

    fn replies(&mut self) -> Result<(), StoreError> {
        let input = std::mem::take(&mut self.input);
        let mut taken = 0;
        let result = loop {
            match CallRecord::split(&input[taken..]) {
                Ok(Some((record, bytes))) => {
                    taken += bytes;
                    if let Err(error) = self.reply(record) {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(StoreError::Protocol(error.0)),
            }
        };
        self.input = input;
        self.input.drain(..taken);
        result
    }

    fn reply(&mut self, record: CallRecord<'_>) -> Result<(), StoreError> {
        let call = record.call;
        let Some(CallState::UnderWay { request, one_sided, .. }) = self.calls.get_mut(call as usize) else {
            return Err(StoreError::Protocol("it answers a call that was not made"));
        };
        // The room of a read that is under way would be lost.
        if one_sided.as_ref().is_some_and(|work| work.running.is_some()) {
            return Err(StoreError::Protocol("it answers a call that is read one-sided"));
        }
        if *request > 0 {
            self.session.unanswered.answered(*request);
        }
        if self.session.call == Some(call) {
            self.session_answered(record);
            self.end_call(call, || CallOutcome::Body(Vec::new()));
            return Ok(());
        }
        if record.kind != DONE {
            let error = decode_error(record.kind, record.body);
            self.end_call(call, || CallOutcome::Failed(error));
            return Ok(());
        }
        if self.regions.0 == Some(call) {
            self.regions.0 = None;
            self.end_call(call, || CallOutcome::Body(Vec::new()));
            let (Some(link), Some(reads)) = (&mut self.link, &mut self.reads) else { return Ok(()) };
            return reads.borrow(link, record.body, self.regions.1.unwrap_or(0));
        }
        let Some(lookup) = one_sided.take().and_then(|work| work.lookup) else {
            self.end_call(call, || CallOutcome::Body(record.body.to_vec()));
            return Ok(());
        };
        let found =
            FoundKey::decode(record.body.to_vec()).ok_or(StoreError::Protocol("a found key is malformed"))?;
        self.learn(lookup.hash, &found);
        self.end_call(call, || CallOutcome::Found(found));
        Ok(())
    }

    /// Learns where a key lies.
    fn learn(&mut self, hash: u64, found: &FoundKey) {
        let (Some(reads), Some(hint)) = (&mut self.reads, &found.hint) else { return };
        let object = (found.read.kind == UnitKind::Object).then_some(found.read.place);
        reads.places.learn(hash, hint, object);
        if object.is_some_and(|place| !reads.reaches(place)) {
            self.ask_for_regions();
        }
    }

    fn ask_for_regions(&mut self) {
        let now_ns = now_ns();
        let interval_ns = limits::REGIONS_INTERVAL.as_nanos() as u64;
        let is_early = self.regions.1.is_some_and(|asked_ns| now_ns < asked_ns + interval_ns);
        if let (Some(reads), None, false) = (&self.reads, self.regions.0, is_early) {
            let known = reads.known();
            let call = self.start(RequestKind::Regions, |to| to.extend_from_slice(&known.to_be_bytes()));
            self.abandon(call);
            self.regions = (Some(call), Some(now_ns));
        }
    }

    /// A one-sided read has completed.
    fn completed(&mut self, call: u32) {
        let (Some(link), Some(reads)) = (&mut self.link, &mut self.reads) else { return };
        let Some(CallState::UnderWay { one_sided: Some(work), .. }) = self.calls.get_mut(call as usize)
        else {
            return;
        };
        let Some(read) = &mut work.running else { return };
        if !reads.completed(link, call, read) {
            self.has_posted = true;
            return;
        }
        let then = reads.take(link, read, &mut self.spare);
        let Some(lookup) = &mut work.lookup else {
            reads.free(read);
            let mut bytes = std::mem::take(&mut self.spare);
            if !reads.may_be_believed() {
                bytes.clear();
            }
            return self.end_call(call, || CallOutcome::Body(bytes));
        };
        let step = lookup.step(&mut self.spare, then, &mut reads.places);
        self.follow(call, step);
    }

    /// Takes the next step of a lookup.
    fn follow(&mut self, call: u32, step: LookupStep) {
        let (Some(link), Some(reads)) = (&mut self.link, &mut self.reads) else { return };
        let Some(CallState::UnderWay { one_sided: Some(work), .. }) = self.calls.get_mut(call as usize)
        else {
            return;
        };
        let before = work.running.take();
        if let LookupStep::Read(read) = step {
            work.running = reads.begin(link, call, read, before.map(|read| read.room()));
            if work.running.is_some() {
                self.has_posted = true;
                return;
            }
            // The room is free already.
        } else if let Some(read) = before {
            reads.free(&read);
        }
        if let LookupStep::Found(found) = step {
            if reads.may_be_believed() {
                return self.end_call(call, || CallOutcome::Found(found));
            }
        }
        let Some(key) = work.lookup.as_ref().map(|lookup| lookup.key().to_vec()) else { return };
        append_record(&mut self.output, call, RequestKind::Get as u16, |to| to.extend_from_slice(&key));
    }

    /// Announces that this side is about to wait.
    pub(crate) fn arm(&mut self) -> Result<Armed, FabricError> {
        let room = usize::from(self.sent < self.output.len());
        self.link.as_mut().map_or(Ok(Armed::LookAgain), |link| link.arm(room))
    }
}

//! One part of the store at this member: nothing, a copy that its primary feeds, or the memory of which this member is the
//! primary, with the copies that it feeds. Each part has a thread of its own, as all of this may block.

mod feeding;

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_cluster::{MemberIdentity, PartId};
use caravan_store::{Store, StoreCopy, StreamEnd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use self::feeding::{FeedWay, PrimaryPart, keep_copies};
use super::duty::{PartDuty, PartRole};
use super::feed::{CopyCall, CopyCaller, CopySource, CopyTarget, FeedBell};
use super::inbox::Inbox;
use super::{MemberEvent, MemberShared, spawn};
use crate::error::ServeError;
use crate::limits::{COPY_PAUSE, COPY_RECORDS, COPY_RING_BYTES, NEW_SOURCE, PART_GLANCE};

/// What the thread of a part is told.
#[derive(Debug)]
pub(super) enum PartOrder {
    /// A configuration says what the part is to be here. What it no longer is ends now; it becomes a primary only when the
    /// epoch is unblocked.
    Duty(PartDuty),
    /// This epoch is unblocked.
    Unblocked(u64),
    /// A primary wants to write into the ring of the copy.
    Call(Box<(CopyCall, CopyCaller)>),
    /// It can now, or not.
    Called(Box<(CopyCall, Result<CopySource, String>)>),
    /// What came of the attempt to reach a copy.
    Dialed(MemberIdentity, Result<CopyTarget, String>),
    /// All copies have been filled, or not.
    Filled(Result<(), String>),
    /// Some time has passed.
    Tick,
}

/// What a part is at this member.
enum PartState {
    Nothing,
    /// The memory of which this member, or a server before this one, has been the primary.
    Left(LeftMemory),
    Copy(Box<KeptCopy>),
    Primary(PrimaryPart),
}

struct LeftMemory {
    image: OwnedFd,
    /// Where the stream of its copies has ended, if the memory has all of it and nothing else.
    end: Option<StreamEnd>,
}

struct KeptCopy {
    copy: StoreCopy,
    image: OwnedFd,
    ring: OwnedFd,
    /// The epoch in which its filling began, or, if its ring is a newer one, in which its primary became that.
    since: u64,
    source: Option<CopySource>,
    /// Which primary has come with it, and since when that is it.
    feeder: Option<(MemberIdentity, u64)>,
}

impl KeptCopy {
    fn open(image: OwnedFd, ring: OwnedFd, since: u64, shared: &MemberShared) -> Result<Self, ServeError> {
        let copy = StoreCopy::open(clone(&image)?, clone(&ring)?, shared.store_options());
        let copy = copy.map_err(ServeError::Store)?;
        Ok(Self { copy, image, ring, since, source: None, feeder: None })
    }
}

/// The thread of a part.
pub(super) struct PartThread {
    shared: Arc<MemberShared>,
    part: PartId,
    inbox: Arc<Inbox<PartOrder>>,
    duty: PartDuty,
    unblocked: u64,
    state: PartState,
    /// The position of the copy, for others.
    position: Arc<AtomicU64>,
}

/// What others know of the thread of a part.
#[derive(Clone, Debug)]
pub(super) struct PartHandle {
    pub(super) inbox: Arc<Inbox<PartOrder>>,
    pub(super) position: Arc<AtomicU64>,
}

impl PartThread {
    /// Starts the thread. `held` is what a server before this one has had held for this part.
    pub(super) fn start(
        shared: &Arc<MemberShared>,
        part: PartId,
        held: Option<HeldMemory>,
    ) -> Result<PartHandle, ServeError> {
        let inbox = Arc::new(Inbox::new()?);
        let position = Arc::new(AtomicU64::new(0));
        let handle = PartHandle { inbox: Arc::clone(&inbox), position: Arc::clone(&position) };
        let state = match held {
            None => PartState::Nothing,
            Some(HeldMemory { since, image, ring: Some(ring) }) => {
                PartState::Copy(Box::new(KeptCopy::open(image, ring, since, shared)?))
            }
            Some(HeldMemory { image, ring: None, .. }) => PartState::Left(LeftMemory { image, end: None }),
        };
        let thread = Self {
            shared: Arc::clone(shared),
            part,
            inbox,
            duty: PartDuty { epoch: 0, role: PartRole::Nothing },
            unblocked: 0,
            state,
            position,
        };
        spawn(&format!("part-{part}"), move || thread.run())?;
        Ok(handle)
    }

    fn run(mut self) {
        while !self.shared.is_ending() {
            self.wait();
            for order in self.inbox.take() {
                if let Err(error) = self.obey(order) {
                    (self.shared.tell)(&format!("part {} of the store: {error}", self.part));
                }
            }
            self.apply();
            self.feed();
        }
    }

    fn wait(&self) {
        let bells: Vec<&FeedBell> = match &self.state {
            PartState::Copy(kept) => kept.source.iter().map(|source| &source.bell).collect(),
            PartState::Primary(primary) => primary
                .copies
                .values()
                .filter_map(|copy| if let FeedWay::Open(bell, _) = &copy.way { Some(bell) } else { None })
                .collect(),
            _ => Vec::new(),
        };
        let fds = bells.iter().map(|bell| bell.as_fd()).chain([self.inbox.as_fd()]);
        let mut ready: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let _ = poll(&mut ready, Timespec::try_from(self.patience()).ok().as_ref());
    }

    /// Returns how long to wait at most.
    fn patience(&self) -> Duration {
        if let PartState::Copy(kept) = &self.state {
            // A primary that has just been started again waits for this copy, and cannot ring yet.
            let is_new = |source: &CopySource| source.since.elapsed() < NEW_SOURCE;
            return if kept.source.as_ref().is_some_and(is_new) { COPY_PAUSE } else { PART_GLANCE };
        }
        let PartState::Primary(primary) = &self.state else { return PART_GLANCE };
        let idle = primary.copies.values().filter_map(|copy| match copy.way {
            FeedWay::Idle(until) => Some(until.saturating_duration_since(Instant::now())),
            _ => None,
        });
        idle.min().unwrap_or(PART_GLANCE).min(PART_GLANCE)
    }

    fn obey(&mut self, order: PartOrder) -> Result<(), ServeError> {
        match order {
            PartOrder::Duty(duty) => {
                self.duty = duty;
                let kept = self.keep_what_stays();
                // Nothing of an earlier epoch is under way here, even if something failed.
                self.shared.inbox.push(MemberEvent::Closed(self.part, self.duty.epoch));
                kept?;
                self.become_primary()?;
            }
            PartOrder::Unblocked(epoch) => {
                self.unblocked = self.unblocked.max(epoch);
                self.become_primary()?;
            }
            PartOrder::Call(called) => self.answer(called.0, called.1)?,
            PartOrder::Called(called) => self.take_source(&called.0, called.1),
            PartOrder::Dialed(member, target) => {
                self.take_target(member, target);
                self.serve_if_fed()?;
            }
            PartOrder::Filled(outcome) => {
                if let PartState::Primary(primary) = &mut self.state {
                    primary.is_filling = false;
                }
                outcome.map_err(ServeError::Member)?;
            }
            PartOrder::Tick => self.tick(),
        }
        Ok(())
    }

    /// Ends what the part no longer is here, and begins a copy.
    fn keep_what_stays(&mut self) -> Result<(), ServeError> {
        let stays = match (&self.state, &self.duty.role) {
            (PartState::Primary(primary), PartRole::Primary { since, .. }) => primary.since == *since,
            (PartState::Copy(kept), PartRole::Copy { filling_since, .. }) => {
                filling_since.is_none_or(|since| since == kept.since)
            }
            (PartState::Copy(_) | PartState::Left(_), PartRole::Primary { .. }) => true,
            // The new primary answers nothing before this memory is to be filled anew: until then it is a complete copy.
            (PartState::Left(_), PartRole::Copy { filling_since, .. }) => filling_since.is_none(),
            (PartState::Nothing, _) => true,
            _ => false,
        };
        if !stays {
            let mut left = None;
            let stays_copy = matches!(self.duty.role, PartRole::Copy { filling_since: None, .. });
            match std::mem::replace(&mut self.state, PartState::Nothing) {
                PartState::Primary(primary) => {
                    let end = if stays_copy { leave(&primary.store, self.shared.leave_wait) } else { None };
                    primary.store.end_lease();
                    drop(self.shared.served.remove(self.part));
                    self.shared.reports().remove(&self.part);
                    left = Some(LeftMemory { image: primary.image, end });
                }
                PartState::Left(memory) => left = Some(memory),
                PartState::Copy(_) | PartState::Nothing => {}
            }
            match left {
                Some(memory) if stays_copy => self.state = PartState::Left(memory),
                left => {
                    self.shared.release(self.part);
                    // A client that does nothing has it mapped for as long. If this fails, so does nothing else.
                    let _ = left.map(|left| Store::discard_memory(&left.image));
                }
            }
        }
        match (&mut self.state, &self.duty.role) {
            (PartState::Primary(primary), PartRole::Primary { copies, .. }) => {
                keep_copies(primary, copies);
                self.serve_if_fed()?;
            }
            (PartState::Copy(kept), PartRole::Primary { .. }) => kept.source = None,
            // A primary that goes on keeps its connection: it would have to hold up commits until it has another one.
            (PartState::Copy(kept), PartRole::Copy { primary, primary_since, .. })
                if kept.feeder != primary.map(|primary| (primary, *primary_since)) =>
            {
                kept.source = None;
            }
            (PartState::Nothing, PartRole::Copy { filling_since: Some(since), .. }) => {
                let since = *since;
                self.begin_copy(since)?;
            }
            (PartState::Nothing, PartRole::Copy { filling_since: None, .. }) => return Err(self.lost()),
            _ => {}
        }
        Ok(())
    }

    fn lost(&self) -> ServeError {
        ServeError::Member("its memory is not here any more".to_owned())
    }

    fn begin_copy(&mut self, since: u64) -> Result<(), ServeError> {
        let name = format!("caravan-{}-{}", self.shared.store, self.part);
        let image = Store::new_memory(&name).map_err(ServeError::Store)?;
        let ring =
            StoreCopy::new_ring(&format!("{name}-ring"), COPY_RING_BYTES).map_err(ServeError::Store)?;
        self.keep_copy(image, ring, since)
    }

    /// Opens a copy, and has the keeper hold it.
    fn keep_copy(&mut self, image: OwnedFd, ring: OwnedFd, since: u64) -> Result<(), ServeError> {
        let kept = KeptCopy::open(image, ring, since, &self.shared)?;
        self.shared.hold(self.part, since, &[kept.image.as_fd(), kept.ring.as_fd()])?;
        self.state = PartState::Copy(Box::new(kept));
        Ok(())
    }

    /// Becomes the primary, if that is the duty and everybody knows.
    fn become_primary(&mut self) -> Result<(), ServeError> {
        let PartRole::Primary { since, is_made, .. } = self.duty.role else { return Ok(()) };
        if since > self.unblocked {
            return Ok(());
        }
        // As a copy, it goes on with the others.
        if matches!(&self.state, PartState::Left(left) if left.end.is_some()) {
            self.renew_ring(since)?;
        }
        let options = self.shared.store_options();
        let is_promoted = matches!(self.state, PartState::Copy(_));
        let (store, image) = match std::mem::replace(&mut self.state, PartState::Nothing) {
            PartState::Primary(primary) => {
                self.state = PartState::Primary(primary);
                return Ok(());
            }
            PartState::Copy(kept) => {
                let KeptCopy { copy, image, ring, since: filled_since, .. } = *kept;
                match copy.promote() {
                    Ok(store) => {
                        // What the primary before may still write into the ring counts no more.
                        self.shared.hold(self.part, since, &[image.as_fd()])?;
                        (Ok(store), image)
                    }
                    Err(error) => {
                        // It stays a copy: opened as a store, one that is not complete would be an empty store.
                        let kept = KeptCopy::open(image, ring, filled_since, &self.shared)?;
                        self.state = PartState::Copy(Box::new(kept));
                        return Err(ServeError::Store(error));
                    }
                }
            }
            PartState::Left(LeftMemory { image, .. }) => (Store::take_over(clone(&image)?, options), image),
            PartState::Nothing if is_made => return Err(self.lost()),
            PartState::Nothing => {
                let image = Store::new_memory(&format!("caravan-{}-{}", self.shared.store, self.part));
                let image = image.map_err(ServeError::Store)?;
                self.shared.hold(self.part, since, &[image.as_fd()])?;
                (Store::open(clone(&image)?, options), image)
            }
        };
        let store = match store {
            Ok(store) => Arc::new(store),
            Err(error) => {
                self.state = PartState::Left(LeftMemory { image, end: None });
                return Err(ServeError::Store(error));
            }
        };
        // It is dropped only when the part goes elsewhere: this process's heir unmaps the memory when it ends.
        self.shared.served.lease(&store);
        let restored = Arc::clone(&store);
        let (tell, part) = (Arc::clone(&self.shared.tell), self.part);
        spawn("part-restore", move || {
            if let Err(error) = restored.restore() {
                tell(&format!("part {part} of the store is not restored: {error}"));
            }
        })?;
        let copies = BTreeMap::new();
        let mut primary = PrimaryPart {
            store,
            image,
            since,
            is_served: false,
            copies,
            is_filling: false,
            told: 0,
            is_reported: false,
            is_promoted,
        };
        if let PartRole::Primary { copies, .. } = &self.duty.role {
            keep_copies(&mut primary, copies);
        }
        self.state = PartState::Primary(primary);
        self.serve_if_fed()
    }

    /// Lets a primary write into the ring, if it is the primary.
    fn answer(&mut self, call: CopyCall, caller: CopyCaller) -> Result<(), ServeError> {
        if matches!(self.state, PartState::Nothing | PartState::Primary(_)) {
            caller.refuse("this member has no copy of the part");
            return Ok(());
        }
        let expected = matches!(&self.duty.role, PartRole::Copy { primary, primary_since, filling_since }
            if *primary == Some(call.primary) && *primary_since == call.primary_since && *filling_since == call.filling_since);
        if !expected {
            caller.refuse("this member knows another configuration");
            return Ok(());
        }
        if let Err(error) = self.renew_ring(call.primary_since) {
            caller.refuse("the copy cannot be opened now");
            return Err(error);
        }
        let PartState::Copy(kept) = &self.state else { return Err(self.lost()) };
        let (ring, inbox) = (clone(&kept.ring)?, Arc::clone(&self.inbox));
        let region = kept.copy.ring_region().map_err(ServeError::Store)?;
        spawn("part-accept", move || {
            let source = caller.accept(&ring, &region).map_err(|error| error.to_string());
            inbox.push(PartOrder::Called(Box::new((call, source))));
        })
    }

    /// Gives a complete copy a ring for a primary that has become that since `since`: one before it that was thought dead, and goes
    /// on, writes into the ring before. What has not arrived there by now was never acknowledged.
    fn renew_ring(&mut self, since: u64) -> Result<(), ServeError> {
        let is_new = match &self.state {
            PartState::Copy(kept) => kept.copy.is_complete() && kept.since < since,
            PartState::Left(_) => true,
            PartState::Nothing | PartState::Primary(_) => false,
        };
        if !is_new {
            return Ok(());
        }
        self.apply();
        let (image, end) = match &self.state {
            PartState::Copy(kept) => (&kept.image, kept.copy.end()),
            PartState::Left(left) => (&left.image, left.end),
            PartState::Nothing | PartState::Primary(_) => return Ok(()),
        };
        // One whose contents nobody knows stands at no position of any stream: its primary has it filled anew.
        let end = end.unwrap_or(StreamEnd::UNKNOWN);
        let name = format!("caravan-{}-{}-ring", self.shared.store, self.part);
        let (image, ring) =
            (clone(image)?, StoreCopy::new_ring_at(&name, COPY_RING_BYTES, end).map_err(ServeError::Store)?);
        // The copy before must not own the memory any more. If this fails, the next call tries again.
        self.state = PartState::Left(LeftMemory { image: clone(&image)?, end: Some(end) });
        self.keep_copy(image, ring, since)
    }

    fn take_source(&mut self, call: &CopyCall, source: Result<CopySource, String>) {
        let is_primary = matches!(&self.duty.role, PartRole::Copy { primary, primary_since, .. }
            if *primary == Some(call.primary) && *primary_since == call.primary_since);
        if let (PartState::Copy(kept), Ok(source), true) = (&mut self.state, source, is_primary) {
            kept.source = Some(source);
            kept.feeder = Some((call.primary, call.primary_since));
        }
    }

    /// Applies what has arrived.
    fn apply(&mut self) {
        let PartState::Copy(kept) = &mut self.state else { return };
        if kept.source.as_ref().is_some_and(|source| !source.bell.hear()) {
            kept.source = None;
        }
        loop {
            match kept.copy.apply(COPY_RECORDS) {
                Ok(COPY_RECORDS) => {}
                Ok(_) => break,
                Err(error) => {
                    (self.shared.tell)(&format!("part {}: the copy is of no use: {error}", self.part));
                    break;
                }
            }
        }
        self.position.store(kept.copy.position(), Ordering::Relaxed);
    }
}

/// Leaves a store whose primary another member becomes. Commits may wait for a copy that does not answer, and then so would this:
/// after a while its memory will have to be filled anew.
fn leave(store: &Arc<Store>, wait: Duration) -> Option<StreamEnd> {
    let (store, (sender, receiver)) = (Arc::clone(store), std::sync::mpsc::channel());
    spawn("part-leave", move || _ = sender.send(store.leave())).ok()?;
    receiver.recv_timeout(wait).ok()?
}

fn clone(descriptor: &OwnedFd) -> Result<OwnedFd, ServeError> {
    descriptor.try_clone().map_err(ServeError::system("copy a descriptor"))
}

/// Memory of a part that a server before this one has had held.
#[derive(Debug)]
pub(super) struct HeldMemory {
    /// The epoch since which it is what it is.
    pub(super) since: u64,
    pub(super) image: OwnedFd,
    pub(super) ring: Option<OwnedFd>,
}

impl HeldMemory {
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        [Some(&self.image), self.ring.as_ref()].into_iter().flatten().map(AsFd::as_fd).collect()
    }
}

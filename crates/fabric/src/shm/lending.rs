//! Regions through mapped memory: descriptors that go through the tether, and the operations on what came.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use caravan_segment::{Segment, SegmentView, SharedSlice};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};

use super::ShmEndpoint;
use crate::contract::{Completion, Error, Operation, Provider};
use crate::region::{
    BorrowedBounds, Region, RegionAccess, RegionNumber, RegionTable, RegionToken, not_borrowed, wrong_token,
};

/// What an endpoint lends and has borrowed.
#[derive(Debug)]
pub(super) struct ShmLending {
    lent: RegionTable<()>,
    borrowed: RegionTable<BorrowedMemory>,
    /// The regions that the peer has revoked, a bit each.
    revoked_by_peer: SharedSlice,
    /// The regions that this side has revoked, a bit each.
    revoked_by_us: SharedSlice,
}

/// A region of the peer's, mapped.
#[derive(Debug)]
struct BorrowedMemory {
    bounds: BorrowedBounds,
    view: SegmentView,
    /// The memory to write to, if it was lent for writing.
    memory: Option<SharedSlice>,
}

impl ShmLending {
    pub(super) fn new(revoked_by_peer: SharedSlice, revoked_by_us: SharedSlice) -> Self {
        Self {
            lent: RegionTable::default(),
            borrowed: RegionTable::default(),
            revoked_by_peer,
            revoked_by_us,
        }
    }

    pub(super) fn lend(
        &mut self,
        tether: &OwnedFd,
        region: &Region,
        access: RegionAccess,
    ) -> Result<RegionToken, Error> {
        let number = self.lent.next()?;
        let token = RegionToken { number, access, bytes: region.bytes(), address: 0, key: 0 };
        let segment = region.memory().segment();
        match access {
            RegionAccess::Read => send(tether, &token, &segment.read_only_descriptor()?)?,
            RegionAccess::Write => send(tether, &token, segment)?,
        }
        self.lent.insert(number, ());
        Ok(token)
    }

    pub(super) fn borrow(&mut self, tether: &OwnedFd, token: &RegionToken) -> Result<RegionNumber, Error> {
        while self.borrowed.row(token.number).is_none() && !self.is_revoked(token.number) {
            let Some((lent, descriptor)) = receive(tether)? else { return Err(wrong_token(Provider::Shm)) };
            if self.borrowed.row(lent.number).is_some() {
                return Err(wrong_token(Provider::Shm));
            }
            // What was revoked meanwhile need not be mapped.
            if !self.is_revoked(lent.number) {
                self.borrowed.insert(lent.number, BorrowedMemory::map(&lent, descriptor)?);
            }
        }
        match self.borrowed.row(token.number) {
            Some(borrowed) if borrowed.bounds == BorrowedBounds::of(token) => Ok(token.number),
            Some(_) => Err(wrong_token(Provider::Shm)),
            None => Err(Error::Revoked(Provider::Shm, token.number)),
        }
    }

    pub(super) fn revoke(&mut self, number: RegionNumber) -> Result<(), Error> {
        self.lent.revoke(number)?;
        let (word, bit) = place_of(number);
        // Pairs with the Acquire in `is_revoked`.
        self.revoked_by_us.word(word).fetch_or(bit, Ordering::Release);
        Ok(())
    }

    pub(super) fn window(&self, number: RegionNumber) -> Option<&SegmentView> {
        self.borrowed.row(number).map(|borrowed| &borrowed.view)
    }

    fn is_revoked(&self, number: RegionNumber) -> bool {
        let (word, bit) = place_of(number);
        // Pairs with the Release in `revoke`.
        self.revoked_by_peer.word(word).load(Ordering::Acquire) & bit != 0
    }
}

/// Returns the offset of the word of a region's bit, and the bit.
fn place_of(number: RegionNumber) -> (usize, u64) {
    (number.index() / 64 * 8, 1 << (number.index() % 64))
}

impl BorrowedMemory {
    fn map(token: &RegionToken, descriptor: OwnedFd) -> Result<Self, Error> {
        let memory = match token.access {
            RegionAccess::Read => None,
            RegionAccess::Write => {
                let again = descriptor
                    .try_clone()
                    .map_err(|source| Error::System { call: "fcntl(F_DUPFD_CLOEXEC)", source })?;
                let segment = Arc::new(Segment::attach(again, token.bytes)?);
                Some(segment.slice(0, token.bytes)?)
            }
        };
        let view = SegmentView::attach(descriptor, token.bytes)?;
        Ok(Self { bounds: BorrowedBounds::of(token), view, memory })
    }
}

impl ShmEndpoint {
    /// Does an operation on a borrowed region.
    pub(super) fn post_far(&mut self, operation: Operation) -> Result<Completion, Error> {
        let Self { lending, .. } = &*self;
        let bounds_of = |number| {
            if lending.is_revoked(number) {
                return Err(Error::Revoked(Provider::Shm, number));
            }
            lending.borrowed.row(number).map(|row| row.bounds).ok_or_else(|| not_borrowed(number))
        };
        let checked = self.bounds().check_far(&operation, bounds_of);
        if let Err(Error::Revoked(_, number)) = checked {
            // Gives the mapping back.
            self.lending.borrowed.remove(number);
        }
        let (number, offset) = checked?;
        if let Operation::Write { immediate, .. } = operation {
            self.claim(immediate)?;
        }
        let at = offset as usize;
        let borrowed = self.lending.borrowed.row(number).ok_or_else(|| not_borrowed(number))?;
        match (operation, &borrowed.memory) {
            (Operation::Read { into, context, .. }, _) => {
                borrowed.view.copy_to(at, into.bytes as usize, &self.arena, into.offset as usize);
                Ok(Completion { context, found: None })
            }
            (Operation::Write { from, immediate, context, .. }, Some(memory)) => {
                self.arena.copy_to(from.offset as usize, from.bytes as usize, memory, at);
                self.tell(immediate)?;
                Ok(Completion { context, found: None })
            }
            (Operation::CompareAndSwap { expected, desired, context, .. }, Some(memory)) => {
                let word = memory.word(at);
                let found = word.compare_exchange(expected, desired, Ordering::AcqRel, Ordering::Acquire);
                Ok(Completion { context, found: Some(found.unwrap_or_else(|other| other)) })
            }
            (_, None) => Err(not_borrowed(number)),
        }
    }
}

/// Sends a region's descriptor. The peer reads the tether only when it borrows.
fn send(tether: &OwnedFd, token: &RegionToken, descriptor: &impl AsFd) -> Result<(), Error> {
    let descriptors = [descriptor.as_fd()];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    control.push(SendAncillaryMessage::ScmRights(&descriptors));
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    match rustix::net::sendmsg(tether, &[IoSlice::new(&token.to_bytes())], &mut control, flags) {
        Ok(RegionToken::BYTES) => Ok(()),
        // TOOMANYREFS: as many descriptors are on their way as this process may have open.
        Err(Errno::AGAIN | Errno::TOOMANYREFS) => Err(Error::Full(Provider::Shm)),
        Err(Errno::PIPE | Errno::CONNRESET) => Err(Error::PeerGone(Provider::Shm, "it has closed its end")),
        Ok(_) => Err(Error::System { call: "sendmsg", source: std::io::ErrorKind::WriteZero.into() }),
        Err(source) => Err(Error::System { call: "sendmsg", source: source.into() }),
    }
}

/// Receives the next region's descriptor, if it has come.
fn receive(tether: &OwnedFd) -> Result<Option<(RegionToken, OwnedFd)>, Error> {
    let mut bytes = [0; RegionToken::BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
    let got = match rustix::net::recvmsg(tether, &mut [IoSliceMut::new(&mut bytes)], &mut control, flags) {
        Err(Errno::AGAIN) => return Ok(None),
        Err(source) => return Err(Error::System { call: "recvmsg", source: source.into() }),
        Ok(got) => got,
    };
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
        _ => None,
    });
    let descriptor = descriptors.by_ref().flatten().next();
    if got.bytes == 0 {
        return Err(Error::PeerGone(Provider::Shm, "it has closed its end, or its process has ended"));
    }
    match (RegionToken::from_bytes(&bytes[..got.bytes]), descriptor) {
        (Some(token), Some(descriptor)) => Ok(Some((token, descriptor))),
        (Some(_), None) => Err(caravan_segment::Error::Descriptors.into()),
        (None, _) => {
            Err(Error::Protocol(Provider::Shm, "it sent something else than a region to borrow".to_owned()))
        }
    }
}

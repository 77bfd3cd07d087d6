//! How a unit (an object, or a bucket of the table) is read while it may be written: the order of loads,
//! stores and fences.
//!
//! A unit is some words, of which word 0 is its version with a lock bit. A writer locks, fences (release),
//! stores, and unlocks with a new version by a release store. A reader loads the version, fences (acquire),
//! loads the rest, fences (acquire), and loads the version again. If any of its loads saw a store of a
//! writer, the writer's fence and the reader's second fence make the second version another one than the
//! first. (Boehm: Can Seqlocks Get Along With Programming Language Memory Models?, MSPC 2012.)
//!
//! All of it is here, over a trait, so that a model checker can run it on atomics of its own.

use std::sync::atomic::{AtomicU64, Ordering, fence};

use crate::faults::{PlantedFault, is_planted, may_store};

/// The bit of a version that says that a writer is at work.
pub const LOCKED: u64 = 1;

/// The unit was locked, or has changed during the read: nothing that was read may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsettled;

/// The words of a unit. Every method names its order; the implementation for a model can break one of them.
pub trait UnitWords {
    /// Loads a word; relaxed.
    fn load(&self, index: usize) -> u64;
    /// Stores a word; relaxed.
    fn store(&self, index: usize, value: u64);
    /// Stores word 0; release: pairs with the first acquire fence of [`read`].
    fn publish(&self, version: u64);
    /// Replaces word 0 if it is `current`, and returns whether it was; acquire: pairs with `publish` of the
    /// writer before.
    fn exchange(&self, current: u64, new: u64) -> bool;
    /// An acquire fence.
    fn fence_acquire(&self);
    /// A release fence: pairs with the second acquire fence of [`read`].
    fn fence_release(&self);
}

impl UnitWords for [AtomicU64] {
    #[inline]
    fn load(&self, index: usize) -> u64 {
        self[index].load(Ordering::Relaxed)
    }
    #[inline]
    fn store(&self, index: usize, value: u64) {
        set(&self[index], value);
    }
    #[inline]
    fn publish(&self, version: u64) {
        if may_store() {
            self[0].store(version, Ordering::Release);
        }
    }
    #[inline]
    fn exchange(&self, current: u64, new: u64) -> bool {
        may_store() && self[0].compare_exchange(current, new, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }
    #[inline]
    fn fence_acquire(&self) {
        fence(Ordering::Acquire);
    }
    #[inline]
    fn fence_release(&self) {
        fence(Ordering::Release);
    }
}

/// Stores a word; relaxed.
#[inline]
pub(crate) fn set(word: &AtomicU64, value: u64) {
    if may_store() {
        word.store(value, Ordering::Relaxed);
    }
}

/// Runs `body` between the two looks at the version, and returns the version and what `body` returned.
/// Until this returns, `body` may have seen words of several writers, in any mixture.
#[inline]
pub fn read<U: UnitWords + ?Sized, R>(unit: &U, body: impl FnOnce(u64) -> R) -> Result<(u64, R), Unsettled> {
    let version = unit.load(0);
    unit.fence_acquire();
    if version & LOCKED != 0 {
        return Err(Unsettled);
    }
    let result = body(version);
    unit.fence_acquire();
    let is_same = unit.load(0) == version || is_planted(PlantedFault::TornRead);
    if is_same { Ok((version, result)) } else { Err(Unsettled) }
}

/// Locks the unit if its version is `version`, which is not locked. The caller then stores, and calls
/// [`unlock`].
#[inline]
pub fn lock<U: UnitWords + ?Sized>(unit: &U, version: u64) -> bool {
    debug_assert_eq!(version & LOCKED, 0);
    let is_mine = unit.exchange(version, version | LOCKED);
    unit.fence_release();
    is_mine
}

/// Unlocks the unit with a version: a new one after stores, the one of before if nothing was stored.
#[inline]
pub fn unlock<U: UnitWords + ?Sized>(unit: &U, version: u64) {
    debug_assert_eq!(version & LOCKED, 0);
    unit.publish(version);
}

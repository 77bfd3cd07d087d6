//! Operations that have been started.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use super::board::CallOutcome;
use super::waiting::SharedCalls;
use crate::error::StoreError;
#[cfg(doc)]
use crate::limits;

/// An operation that has been started: [`wait`](Self::wait) for its result, or await it in any runtime. It is sent
/// at the latest when any operation of its store is waited for or awaited. Dropping it does not undo
/// the operation. Who awaits it waits as long as [`wait`](Self::wait) does, and up to [`limits::GLANCE`] longer.
#[must_use = "an operation is sent when it is waited for; its result says whether it was done"]
pub struct Pending<T> {
    state: PendingState<T>,
}

enum PendingState<T> {
    Ready(Option<Result<T, StoreError>>),
    /// `asleep_ns` is the time since when a future waits.
    Call {
        shared: Arc<SharedCalls>,
        call: u32,
        decode: Decode<T>,
        asleep_ns: Option<u64>,
    },
    Taken,
}

/// Makes the result of an operation of the outcome of its call.
pub(crate) type Decode<T> = fn(CallOutcome) -> Result<T, StoreError>;

impl<T> Pending<T> {
    pub(crate) fn ready(result: Result<T, StoreError>) -> Self {
        Self { state: PendingState::Ready(Some(result)) }
    }

    pub(crate) fn call(shared: &Arc<SharedCalls>, call: u32, decode: Decode<T>) -> Self {
        Self { state: PendingState::Call { shared: Arc::clone(shared), call, decode, asleep_ns: None } }
    }

    /// Waits for the result; returns [`StoreError::NoAnswer`] once the server has said nothing for the time that the
    /// [options](crate::ConnectOptions::answer_wait) allow. A write may then still be done, once.
    pub fn wait(mut self) -> Result<T, StoreError> {
        self.wait_a_while().unwrap_or_else(|| match &self.state {
            PendingState::Call { shared, .. } => Err(shared.no_answer(true)),
            _ => Err(StoreError::Disconnected),
        })
    }

    /// Waits as [`wait`](Self::wait) does, and returns `None` where that returns [`StoreError::NoAnswer`]. The
    /// operation goes on, and may be waited for again: so the caller learns what came of a write without doing it twice.
    pub fn wait_a_while(&mut self) -> Option<Result<T, StoreError>> {
        let result = match &mut self.state {
            PendingState::Ready(result) => result.take(),
            PendingState::Call { shared, call, decode, .. } => {
                Some(decode(shared.wait(|board| board.take(*call))?))
            }
            PendingState::Taken => None,
        };
        self.state = PendingState::Taken;
        Some(result.unwrap_or(Err(StoreError::Disconnected)))
    }
}

impl<T: Unpin> Future for Pending<T> {
    type Output = Result<T, StoreError>;

    /// Panics, as other futures do, if it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.state {
            PendingState::Ready(result) => Poll::Ready(result.take().expect("polled after it was ready")),
            PendingState::Call { shared, call, decode, asleep_ns } => {
                match shared.poll(*call, context.waker(), asleep_ns) {
                    Some(outcome) => {
                        let result = decode(outcome);
                        self.state = PendingState::Ready(None);
                        Poll::Ready(result)
                    }
                    None => Poll::Pending,
                }
            }
            PendingState::Taken => Poll::Pending,
        }
    }
}

impl<T> Drop for Pending<T> {
    fn drop(&mut self) {
        if let PendingState::Call { shared, call, .. } = &self.state {
            shared.abandon(*call);
        }
    }
}

impl<T> fmt::Debug for Pending<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pending").finish_non_exhaustive()
    }
}

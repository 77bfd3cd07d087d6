//! What ends a step of a self-test, and when.

use std::time::{Duration, Instant};

use crate::error::Error;
use caravan_bench::interrupt::Interrupt;

/// Why a step did not succeed.
#[derive(Debug)]
pub enum Trouble {
    /// What was tested failed; the sentence goes into the report, and the test goes on.
    Failed(String),
    /// Nothing can go on: the other side is gone, or Ctrl-C.
    Fatal(Error),
}

impl From<caravan_fabric::Error> for Trouble {
    fn from(error: caravan_fabric::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Fatal(error)
    }
}

impl Trouble {
    /// A failure of what is tested.
    pub fn failed(what: impl Into<String>) -> Self {
        Self::Failed(what.into())
    }
}

/// How long a step may take, and who may end it.
#[derive(Clone, Debug)]
pub struct Bounds {
    deadline: Instant,
    limit: Duration,
    /// Ctrl-C here; on the other side the end of its standard input.
    interrupt: Option<Interrupt>,
}

impl Bounds {
    pub fn new(limit: Duration, interrupt: Option<&Interrupt>) -> Self {
        Self { deadline: Instant::now() + limit, limit, interrupt: interrupt.cloned() }
    }

    /// To be called wherever something may wait for ever.
    pub fn check(&self) -> Result<(), Trouble> {
        if let Some(interrupt) = &self.interrupt {
            interrupt.check().map_err(crate::error::Error::from)?;
        }
        match Instant::now() < self.deadline {
            true => Ok(()),
            false => Err(Trouble::failed(format!(
                "nothing came any more within {} s: a wake-up or data got lost",
                self.limit.as_secs()
            ))),
        }
    }
}

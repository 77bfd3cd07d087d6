//! The bare loop in C that the ring is measured beside.

use std::path::Path;

use super::SAMPLE_LIMIT;
use crate::bare::Bare;
use crate::error::Error;
use crate::interrupt::Interrupt;

const SOURCE: &str = include_str!("../../../../bench/ring/flag_copy.c");

/// The compiled program.
#[derive(Debug)]
pub struct FlagCopy(Bare);

impl FlagCopy {
    pub fn compile(compiler: &Path) -> Result<Self, Error> {
        Bare::compile(compiler, SOURCE).map(Self)
    }

    /// One sample: nanoseconds for all records.
    pub fn sample(
        &self,
        echo: bool,
        (producer, consumer): (usize, usize),
        records: u64,
        interrupt: &Interrupt,
    ) -> Result<f64, Error> {
        let kind = if echo { "echo" } else { "stream" };
        let words = [kind.to_owned(), producer.to_string(), consumer.to_string(), records.to_string()];
        Ok(self.0.run(&words, SAMPLE_LIMIT, interrupt)?[0])
    }
}

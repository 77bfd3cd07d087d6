//! Trees of files as a stream: the two halves of `caravan cp`, which are commands of a pipeline.
//!
//! The sink first says what is there already, on its standard output; the source reads that, and sends
//! the rest. Both run as this program, with their options as one argument in JSON.

use std::io::{Read, Write};

use crate::Error;

/// Sends trees.
pub fn source(options: &str, have: impl Read + Send, data: impl Write + Send) -> Result<(), Error> {
    let _ = (options, have, data);
    Err(Error::Cancelled)
}

/// Takes trees.
pub fn sink(options: &str, data: impl Read + Send, have: impl Write + Send) -> Result<(), Error> {
    let _ = (options, data, have);
    Err(Error::Cancelled)
}

//! An app that frees packets.

use crate::app::{App, AppError, Named, NoKeys};
use crate::io::Io;

/// Frees every packet of every input.
#[derive(Debug, Default)]
pub struct Sink {
    packets: u64,
}

impl App for Sink {
    type Config = NoKeys;
    const INPUTS: Named = Named::Any;
    const OUTPUTS: Named = Named::Only(&[]);

    fn start(_: NoKeys, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self::default())
    }

    fn push(&mut self, io: &mut Io) {
        for input in 0..io.inputs() {
            self.packets += io.free_all(input) as u64;
        }
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("packets", self.packets)]
    }
}

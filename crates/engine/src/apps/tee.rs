//! An app that sends each packet to all outputs.

use crate::app::{App, AppError, Named, NoKeys};
use crate::io::Io;
use crate::layout::DropReason;

/// Sends every packet of every input to every output: the packet itself to the last one, and
/// copies to those before.
#[derive(Debug)]
pub struct Tee;

impl App for Tee {
    type Config = NoKeys;
    const INPUTS: Named = Named::Any;
    const OUTPUTS: Named = Named::Any;

    fn start(_: NoKeys, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self)
    }

    fn push(&mut self, io: &mut Io) {
        let last = io.outputs().saturating_sub(1);
        for input in 0..io.inputs() {
            while let Some(packet) = io.receive(input) {
                for output in 0..last {
                    match io.copy(&packet) {
                        Some(copy) => io.transmit(output, copy),
                        None => io.count_drops(DropReason::NoPacket, 1),
                    }
                }
                io.transmit(last, packet);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::QUEUE_PACKETS;
    use crate::testing::AppBench;

    fn bench(outputs: &[&str], packets: u32) -> AppBench<Tee> {
        AppBench::new(NoKeys {}, &["a", "b"], outputs, packets).expect("a tee")
    }

    #[test]
    fn every_output_gets_every_packet_in_order() {
        let mut bench = bench(&["x", "y", "z"], 100);
        bench.put("a", b"one");
        bench.put("a", b"");
        bench.put("b", &[7; 1900]);
        bench.push();
        for output in ["x", "y", "z"] {
            assert_eq!(bench.sent(output), [b"one".to_vec(), Vec::new(), vec![7; 1900]]);
        }
        assert_eq!(bench.free(), 100);
    }

    #[test]
    fn a_full_output_does_not_keep_the_others_waiting() {
        let mut bench = bench(&["x", "y"], QUEUE_PACKETS as u32 + 10);
        bench.fill("x");
        bench.put("a", b"one");
        bench.push();
        assert_eq!(bench.sent("y"), [b"one"]);
        assert_eq!(bench.drops(DropReason::Full), 1);
        bench.sent("x");
        assert_eq!(bench.free(), QUEUE_PACKETS + 10);
    }

    #[test]
    fn without_free_packets_the_last_output_still_gets_them() {
        let mut bench = bench(&["x", "y"], 2);
        bench.put("a", b"one");
        bench.put("a", b"two");
        bench.push();
        assert_eq!((bench.sent("x").len(), bench.sent("y").len()), (0, 2));
        assert_eq!((bench.drops(DropReason::NoPacket), bench.free()), (2, 2));
    }

    #[test]
    fn without_outputs_packets_are_dropped() {
        let mut bench = bench(&[], 4);
        bench.put("b", b"one");
        bench.push();
        assert_eq!((bench.drops(DropReason::Unlinked), bench.free()), (1, 4));
    }
}

//! An app that sends the packets of many inputs to one output.

use crate::app::{App, AppError, Named, NoKeys};
use crate::io::Io;

/// Sends the packets of all inputs to one output. Inputs take turns packet by packet. Packets that the
/// output does not take wait at their input, so an input that sends more than its share fills only its own
/// link.
#[derive(Debug)]
pub struct Join {
    /// The input whose turn it is.
    next: usize,
}

const OUTPUT: usize = 0;

impl App for Join {
    type Config = NoKeys;
    const INPUTS: Named = Named::Any;

    fn start(_: NoKeys, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self { next: 0 })
    }

    fn push(&mut self, io: &mut Io) {
        let inputs = io.inputs();
        // Without an output, packets are dropped and counted.
        let mut room = if io.outputs() == 0 { usize::MAX } else { io.room(OUTPUT) };
        let mut idle = 0;
        while room > 0 && idle < inputs {
            let input = if self.next < inputs { self.next } else { 0 };
            self.next = input + 1;
            match io.receive(input) {
                Some(packet) => {
                    io.transmit(OUTPUT, packet);
                    room -= 1;
                    idle = 0;
                }
                None => idle += 1,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::DropReason;
    use crate::limits::QUEUE_PACKETS;
    use crate::testing::AppBench;

    fn bench(outputs: &[&str], packets: usize) -> AppBench<Join> {
        AppBench::new(NoKeys {}, &["a", "b", "c"], outputs, packets as u32).expect("a join")
    }

    #[test]
    fn inputs_take_turns_and_keep_their_order() {
        let mut bench = bench(&["output"], 100);
        for packet in [b"a1", b"a2", b"a3"] {
            bench.put("a", packet);
        }
        bench.put("c", b"c1");
        bench.put("c", b"c2");
        bench.push();
        assert_eq!(bench.sent("output"), [b"a1", b"c1", b"a2", b"c2", b"a3"]);
        assert_eq!(bench.free(), 100);
    }

    #[test]
    fn a_scarce_output_is_shared_and_nothing_is_dropped() {
        let mut bench = bench(&["output"], 3 * QUEUE_PACKETS);
        for _ in 0..QUEUE_PACKETS {
            bench.put("a", b"a");
        }
        for _ in 0..QUEUE_PACKETS {
            bench.put("b", b"b");
        }
        bench.push();
        let sent = bench.sent("output");
        assert_eq!(sent.iter().filter(|packet| *packet == b"a").count(), QUEUE_PACKETS / 2);
        assert_eq!(sent.len(), QUEUE_PACKETS);
        assert_eq!((bench.waiting("a"), bench.waiting("b")), (QUEUE_PACKETS / 2, QUEUE_PACKETS / 2));
        bench.push();
        assert_eq!(bench.sent("output").len(), QUEUE_PACKETS);
        assert_eq!((bench.drops(DropReason::Full), bench.free()), (0, 3 * QUEUE_PACKETS));
    }

    #[test]
    fn the_turn_goes_on_where_the_output_was_full() {
        let mut bench = bench(&["output"], 2 * QUEUE_PACKETS);
        for _ in 0..QUEUE_PACKETS - 1 {
            bench.put("a", b"a");
        }
        bench.push();
        bench.put("a", b"a");
        bench.put("b", b"b");
        bench.push();
        assert_eq!((bench.waiting("a"), bench.waiting("b")), (1, 0), "b had its turn after a");
        bench.sent("output");
        bench.push();
        assert_eq!(bench.sent("output"), [b"a"]);
        assert_eq!(bench.free(), 2 * QUEUE_PACKETS);
    }

    #[test]
    fn without_an_output_packets_are_dropped() {
        let mut bench = bench(&[], 4);
        bench.put("b", b"one");
        bench.push();
        assert_eq!((bench.drops(DropReason::Unlinked), bench.free()), (1, 4));
    }
}

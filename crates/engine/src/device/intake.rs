//! How much an app takes out of its device at once, and whether it left something there.

use crate::io::Io;
use crate::limits::PULL_PACKETS;
use crate::packet::Packet;

/// What comes out of a device, and goes to output 0.
#[derive(Debug, Default)]
pub(crate) struct Intake {
    is_held_up: bool,
}

impl Intake {
    /// Frames to take in this breath. Without a link they are taken and dropped, so that they do not fill the
    /// device.
    pub(crate) fn budget(&mut self, io: &Io) -> usize {
        let budget = if io.outputs() == 0 { PULL_PACKETS } else { io.room(0).min(PULL_PACKETS) };
        self.is_held_up = budget == 0;
        budget
    }

    /// A packet for the next frame, if there is one.
    #[inline]
    pub(crate) fn allocate(&mut self, io: &mut Io) -> Option<Packet> {
        let packet = io.allocate();
        if packet.is_none() {
            self.is_held_up = true;
        }
        packet
    }

    /// Whether the last breath left something in the device, for want of room or of packets: once there is some,
    /// the worker is woken, and the device need not do so.
    pub(crate) fn is_held_up(&self) -> bool {
        self.is_held_up
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::{App, AppError};
    use crate::limits::QUEUE_PACKETS;
    use crate::testing::AppBench;

    /// Sends as many empty packets as it may, and says so.
    #[derive(Default)]
    struct Eager {
        intake: Intake,
        budget: usize,
    }

    impl App for Eager {
        type Config = ();

        fn start((): (), _: Option<Vec<u8>>) -> Result<Self, AppError> {
            Ok(Self::default())
        }

        fn pull(&mut self, io: &mut Io) {
            self.budget = self.intake.budget(io);
            for _ in 0..self.budget {
                let Some(packet) = self.intake.allocate(io) else { return };
                io.transmit(0, packet);
            }
        }
    }

    fn pulled(outputs: &[&str], packets: usize) -> AppBench<Eager> {
        let mut bench = AppBench::new((), &[], outputs, packets as u32).unwrap();
        bench.pull();
        bench
    }

    #[test]
    fn without_a_link_all_is_taken() {
        let bench = pulled(&[], PULL_PACKETS);
        assert_eq!((bench.app.budget, bench.app.intake.is_held_up()), (PULL_PACKETS, false));
    }

    #[test]
    fn what_finds_no_room_stays_until_there_is_some() {
        let mut bench = pulled(&["output"], 2 * QUEUE_PACKETS);
        assert_eq!((bench.app.budget, bench.app.intake.is_held_up()), (PULL_PACKETS, false));
        bench.fill("output");
        bench.pull();
        assert_eq!((bench.app.budget, bench.app.intake.is_held_up()), (0, true));
        bench.sent("output");
        bench.pull();
        assert_eq!((bench.app.budget, bench.app.intake.is_held_up()), (PULL_PACKETS, false));
    }

    #[test]
    fn what_finds_no_packet_stays_until_there_is_one() {
        let mut bench = pulled(&["output"], PULL_PACKETS - 1);
        assert_eq!((bench.app.budget, bench.app.intake.is_held_up()), (PULL_PACKETS, true));
        assert_eq!(bench.sent("output").len(), PULL_PACKETS - 1);
        assert!(pulled(&["output"], 0).app.intake.is_held_up());
        assert!(!pulled(&["output"], PULL_PACKETS).app.intake.is_held_up());
    }
}

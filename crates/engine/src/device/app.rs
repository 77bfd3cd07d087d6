//! An app on a device of the kernel's, of any kind.

use std::fmt::Debug;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::io::Errno;
use serde::de::DeserializeOwned;

use super::{DeviceFailure, is_away, sys};
use crate::app::{App, AppError};
use crate::io::Io;
use crate::layout::DropReason;
use crate::limits::PULL_PACKETS;
use crate::packet::Packet;

/// The time between two attempts to open a device that is away.
const RETRY: Duration = Duration::from_millis(200);
/// The time between two checks that a device is still there.
const LOOK: Duration = Duration::from_millis(1);
/// The time between two reads of the kernel's count of drops.
const STATISTICS: Duration = Duration::from_millis(100);

/// A device that receives and sends frames.
pub trait PacketDevice: Debug + Sized + 'static {
    /// The keys of the app's table in a configuration file.
    type Config: Clone + Debug + DeserializeOwned;

    /// Checks whether the device can be used, without opening it.
    fn check(config: &Self::Config) -> Result<(), AppError>;

    /// Opens the device when the app starts.
    fn open(config: &Self::Config) -> Result<Self, DeviceFailure>;

    /// Opens a device that was [away](is_away).
    fn open_again(config: &Self::Config) -> Result<Self, DeviceFailure> {
        Self::open(config)
    }

    /// Explains a failure, and what to do about it.
    fn explain(failure: &DeviceFailure, config: &Self::Config) -> AppError;

    /// Returns a descriptor that is readable when a frame has arrived.
    fn descriptor(&self) -> BorrowedFd<'_>;

    /// True if a frame may be there. Otherwise no packet is taken for it.
    fn has_frame(&mut self) -> bool {
        true
    }

    /// Moves the oldest frame into an empty packet. An error is the device's.
    fn receive(&mut self, packet: &mut Packet) -> Result<Received, Errno>;

    /// Returns the buffers of received frames to the kernel, after the last frame of a breath.
    fn end_receiving(&mut self) {}

    /// Sends frames. Returns the number of frames sent, from the first one on. An error is that of the first frame.
    fn send(&mut self, packets: &[Packet]) -> Result<usize, Errno>;

    /// Has the kernel send the frames that it was given.
    fn flush(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    /// Returns the number of frames that the kernel was given and has not sent.
    fn unsent(&self) -> u32 {
        0
    }

    /// Returns the number of frames that the kernel has dropped since the last call.
    fn take_drops(&mut self) -> u64 {
        0
    }

    /// True if the device went away or down, and no call failed for it.
    fn has_failed(&self) -> bool {
        false
    }

    /// Returns the figures of this kind of device. `kernel_drops` is the number of frames that the kernel has dropped.
    fn figures(device: Option<&Self>, kernel_drops: u64) -> Vec<(&'static str, u64)> {
        let _ = (device, kernel_drops);
        Vec::new()
    }
}

/// The result of [`PacketDevice::receive`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// A frame, which is in the packet.
    Frame,
    /// A frame that is lost, and the reason.
    Dropped(DropReason),
    /// No frame.
    Nothing,
}

/// Sends every frame that a device receives to `output`, and what arrives at `input` through the device. A
/// device that goes away is opened again when it is back.
#[derive(Debug)]
pub struct DeviceApp<D: PacketDevice> {
    config: D::Config,
    /// `None` while the device is away: it is closed then, and opened again when it is back.
    device: Option<D>,
    /// When to try to open it again.
    retry_ns: u64,
    /// When to check again that it is still there.
    look_ns: u64,
    /// When to read the kernel's count of drops again.
    statistics_ns: u64,
    /// The number of times that it went away.
    losses: u64,
    /// Packets on their way to the kernel: empty between calls.
    batch: Vec<Packet>,
    /// True if the last breath left frames in the device because there was no room or no packet. The worker is woken
    /// once there is some, so the device need not wake it.
    is_held_up: bool,
    received: u64,
    transmitted: u64,
    kernel_drops: u64,
}

impl<D: PacketDevice> App for DeviceApp<D> {
    type Config = D::Config;

    fn check(config: &D::Config) -> Result<(), AppError> {
        D::check(config)
    }

    /// A device that is away is waited for; any other failure is returned.
    fn start(config: D::Config, _: Option<Vec<u8>>) -> Result<Self, AppError> {
        let device = match D::open(&config) {
            Ok(device) => Some(device),
            Err(failure) if is_away(failure.errno) => None,
            Err(failure) => return Err(D::explain(&failure, &config)),
        };
        Ok(Self {
            config,
            device,
            retry_ns: 0,
            look_ns: 0,
            statistics_ns: 0,
            losses: 0,
            batch: Vec::new(),
            is_held_up: false,
            received: 0,
            transmitted: 0,
            kernel_drops: 0,
        })
    }

    fn pull(&mut self, io: &mut Io) {
        let now_ns = io.now_ns();
        if self.device.is_none() && is_due(&mut self.retry_ns, now_ns, RETRY) {
            self.device = D::open_again(&self.config).ok();
        }
        let Some(device) = &mut self.device else { return };
        // Without a link, frames are taken and dropped, so that they do not fill the device.
        let budget = if io.outputs() == 0 { PULL_PACKETS } else { io.room(0).min(PULL_PACKETS) };
        self.is_held_up = budget == 0;
        let mut failure = None;
        for _ in 0..budget {
            if !device.has_frame() {
                break;
            }
            let Some(mut packet) = io.allocate() else {
                self.is_held_up = true;
                break;
            };
            match device.receive(&mut packet) {
                Ok(Received::Frame) => io.transmit(0, packet),
                Ok(Received::Dropped(why)) => io.discard(packet, why),
                // The packet is dropped, not freed: a free would count as work, and the worker would not sleep.
                Ok(Received::Nothing) => break,
                Err(errno) => {
                    failure = Some(errno);
                    break;
                }
            }
            self.received += 1;
        }
        device.end_receiving();
        if failure.is_some_and(is_away) {
            self.lose(now_ns);
        }
        if is_due(&mut self.statistics_ns, now_ns, STATISTICS) {
            self.count_drops(io);
        }
        if is_due(&mut self.look_ns, now_ns, LOOK) {
            self.flush(io);
            if self.device.as_ref().is_some_and(|device| device.has_failed()) {
                self.lose(now_ns);
            }
        }
    }

    fn push(&mut self, io: &mut Io) {
        if io.waiting(0) == 0 {
            return;
        }
        while let Some(packet) = io.receive(0) {
            self.batch.push(packet);
            if self.batch.len() == sys::SEND_PACKETS {
                self.send(io);
            }
        }
        self.send(io);
        self.flush(io);
    }

    fn stop(&mut self, io: &mut Io) -> Option<Vec<u8>> {
        self.count_drops(io);
        None
    }

    fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        let device = self.device.as_ref().filter(|_| !self.is_held_up);
        device.map(PacketDevice::descriptor).into_iter().collect()
    }

    fn wake_ns(&self) -> Option<u64> {
        match &self.device {
            Some(device) => (device.unsent() > 0).then_some(self.look_ns),
            None => Some(self.retry_ns),
        }
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        let mut figures = vec![
            ("received", self.received),
            ("transmitted", self.transmitted),
            ("up", self.device.is_some().into()),
            ("losses", self.losses),
        ];
        figures.extend(D::figures(self.device.as_ref(), self.kernel_drops));
        figures
    }
}

impl<D: PacketDevice> DeviceApp<D> {
    /// Sends the batch, and empties it.
    fn send(&mut self, io: &mut Io) {
        while !self.batch.is_empty() {
            let sent = match &mut self.device {
                Some(device) => device.send(&self.batch),
                None => Err(Errno::NODEV),
            };
            match sent {
                Ok(count) => {
                    self.transmitted += count as u64;
                    self.batch.drain(..count).for_each(|packet| io.free(packet));
                }
                Err(Errno::INTR) => {}
                Err(errno) => {
                    // The error belongs to the first frame; the next one may succeed.
                    io.discard(self.batch.remove(0), drop_reason(errno));
                    if is_away(errno) {
                        self.lose(io.now_ns());
                    }
                }
            }
        }
    }

    /// Has the kernel send the frames that it was given. If the device is away, they are lost.
    fn flush(&mut self, io: &mut Io) {
        let Some(device) = &mut self.device else { return };
        if device.flush().is_err_and(is_away) {
            let lost = u64::from(device.unsent());
            self.transmitted = self.transmitted.saturating_sub(lost);
            io.count_drops(DropReason::Device, lost);
            self.lose(io.now_ns());
        }
    }

    /// Counts the frames that the kernel dropped.
    fn count_drops(&mut self, io: &mut Io) {
        let drops = self.device.as_mut().map_or(0, PacketDevice::take_drops);
        self.kernel_drops += drops;
        io.count_drops(DropReason::Device, drops);
    }

    /// Closes the device.
    fn lose(&mut self, now_ns: u64) {
        if self.device.take().is_some() {
            self.losses += 1;
            self.retry_ns = now_ns + RETRY.as_nanos() as u64;
        }
    }
}

/// True if a time has come. The next time is `every` later.
fn is_due(at_ns: &mut u64, now_ns: u64, every: Duration) -> bool {
    let due = now_ns >= *at_ns;
    if due {
        *at_ns = now_ns + every.as_nanos() as u64;
    }
    due
}

/// Returns the reason under which a frame is counted that the kernel did not take.
fn drop_reason(errno: Errno) -> DropReason {
    match errno {
        Errno::MSGSIZE => DropReason::Oversize,
        // The frame is shorter than an Ethernet header.
        Errno::INVAL => DropReason::Malformed,
        // ENOBUFS, EAGAIN, ENOMEM: the device does not keep up. ENETDOWN, ENXIO, EIO: it is away or down.
        _ => DropReason::Device,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::limits::QUEUE_PACKETS;
    use crate::testing::AppBench;

    thread_local! {
        /// Why a device cannot be opened.
        static TROUBLE: Cell<Option<Errno>> = const { Cell::new(None) };
    }

    /// A device with an endless supply of empty frames.
    #[derive(Debug)]
    struct Eager(std::fs::File);

    impl PacketDevice for Eager {
        type Config = ();

        fn check((): &()) -> Result<(), AppError> {
            Ok(())
        }
        fn open((): &()) -> Result<Self, DeviceFailure> {
            match TROUBLE.get() {
                Some(errno) => Err(DeviceFailure { call: "open", errno }),
                None => Ok(Self(std::fs::File::open("/dev/zero").expect("a device"))),
            }
        }
        fn explain(failure: &DeviceFailure, (): &()) -> AppError {
            AppError::new(failure)
        }
        fn descriptor(&self) -> BorrowedFd<'_> {
            std::os::fd::AsFd::as_fd(&self.0)
        }
        fn receive(&mut self, _: &mut Packet) -> Result<Received, Errno> {
            Ok(Received::Frame)
        }
        fn send(&mut self, packets: &[Packet]) -> Result<usize, Errno> {
            Ok(packets.len())
        }
    }

    fn pulled(outputs: &[&str], packets: usize) -> AppBench<DeviceApp<Eager>> {
        let mut bench = AppBench::new((), &[], outputs, packets as u32).unwrap();
        bench.pull();
        bench
    }

    /// Returns the number of frames taken so far, and whether the worker does not sleep on the device.
    fn taken(bench: &AppBench<DeviceApp<Eager>>) -> (usize, bool) {
        (bench.app.received as usize, bench.app.descriptors().is_empty())
    }

    #[test]
    fn without_a_link_all_is_taken() {
        assert_eq!(taken(&pulled(&[], PULL_PACKETS)), (PULL_PACKETS, false));
    }

    #[test]
    fn what_finds_no_room_stays_until_there_is_some() {
        let mut bench = pulled(&["output"], 2 * QUEUE_PACKETS);
        assert_eq!(taken(&bench), (PULL_PACKETS, false));
        bench.fill("output");
        bench.pull();
        assert_eq!(taken(&bench), (PULL_PACKETS, true));
        bench.sent("output");
        bench.pull();
        assert_eq!(taken(&bench), (2 * PULL_PACKETS, false));
    }

    #[test]
    fn what_finds_no_packet_stays_until_there_is_one() {
        let mut bench = pulled(&["output"], PULL_PACKETS - 1);
        assert_eq!(taken(&bench), (PULL_PACKETS - 1, true));
        assert_eq!(bench.sent("output").len(), PULL_PACKETS - 1);
        assert_eq!(taken(&pulled(&["output"], 0)), (0, true));
        assert_eq!(taken(&pulled(&["output"], PULL_PACKETS)), (PULL_PACKETS, false));
    }

    #[test]
    fn a_device_that_goes_away_is_opened_again() {
        let retry = RETRY.as_nanos() as u64;
        let mut bench = pulled(&[], PULL_PACKETS);
        assert_eq!(bench.app.wake_ns(), None);
        bench.app.lose(5);
        bench.app.lose(6);
        assert_eq!((bench.app.losses, bench.app.wake_ns()), (1, Some(5 + retry)));
        let is_up = |bench: &mut AppBench<DeviceApp<Eager>>, now_ns, trouble| {
            TROUBLE.set(trouble);
            bench.now_ns = now_ns;
            bench.pull();
            bench.app.device.is_some()
        };
        assert!(!is_up(&mut bench, 4 + retry, None), "too early");
        assert!(!is_up(&mut bench, 5 + retry, Some(Errno::NODEV)));
        assert!(!is_up(&mut bench, 6 + retry, None), "too early after a look in vain");
        assert!(is_up(&mut bench, 5 + 2 * retry, None));
        assert_eq!(bench.app.wake_ns(), None);
    }

    #[test]
    fn only_a_device_that_can_come_back_is_waited_for() {
        TROUBLE.set(Some(Errno::NODEV));
        assert_eq!(DeviceApp::<Eager>::start((), None).unwrap().wake_ns(), Some(0));
        TROUBLE.set(Some(Errno::PERM));
        assert!(DeviceApp::<Eager>::start((), None).is_err());
    }
}

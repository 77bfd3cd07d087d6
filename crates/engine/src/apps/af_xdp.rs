//! An app on one queue of an interface, past the kernel's network stack:
//! Documentation/networking/af_xdp.rst of Linux.

#[allow(unsafe_code)]
mod program;
mod ring;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::xdp::{
    SocketAddrXdp, SocketAddrXdpFlags, XDP_PGOFF_RX_RING, XDP_PGOFF_TX_RING, XDP_UMEM_PGOFF_COMPLETION_RING,
    XDP_UMEM_PGOFF_FILL_RING, XdpOptionsFlags, XdpRingOffset,
};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with, sockopt,
};
use rustix::thread::CapabilitySet;
use serde::Deserialize;

use crate::app::AppError;
use crate::device::sys::Mapping;
use crate::device::{
    self, DeviceApp, DeviceFailure, PacketDevice, Received, check_present, failed, has_capability,
};
use crate::layout::DropReason;
use crate::packet::Packet;
use program::XdpProgram;
use ring::{CHUNK_BYTES, CHUNKS, Umem, XdpConsumer, XdpProducer};

/// Takes the frames that one queue of the interface receives away from the host, to `output`, and
/// sends frames at `input` through that queue.
pub type AfXdp = DeviceApp<XdpSocket>;

/// How the kernel runs the program that hands frames over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum XdpMode {
    /// In the driver if the driver can, otherwise behind it.
    #[default]
    Auto,
    /// In the driver.
    Native,
    /// Behind the driver, which works everywhere and is slower.
    Generic,
}

/// The configuration of an `af_xdp` app.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AfXdpConfig {
    /// The interface's name.
    pub interface: String,
    /// The queue's number.
    #[serde(default)]
    pub queue: u32,
    /// How the kernel runs the program that hands frames over.
    #[serde(default)]
    pub mode: XdpMode,
    /// True to have the kernel copy frames even if the driver could do without.
    #[serde(default)]
    pub copy: bool,
}

impl AfXdpConfig {
    /// Returns the configuration of queue 0 of the interface `name`, with the defaults of all other keys.
    pub fn new(name: &str) -> Self {
        Self { interface: name.to_owned(), queue: 0, mode: XdpMode::Auto, copy: false }
    }
}

/// How long the queue of a process that has just ended may still be in use.
const BUSY_MAX: Duration = Duration::from_millis(500);
/// The time between two attempts meanwhile.
const BUSY_STEP: Duration = Duration::from_millis(5);
/// Calls in which the kernel copies frames to be sent, 32 or more each.
const FLUSHES_MAX: u32 = CHUNKS / 32;

/// Bytes of an address in the fill and the completion ring.
const ADDRESS_BYTES: usize = 8;
/// Bytes of `struct xdp_desc`.
const DESCRIPTOR_BYTES: usize = 16;

const SOCKET: &str = "socket AF_XDP";
const UMEM: &str = "setsockopt XDP_UMEM_REG";
const BIND: &str = "bind";

/// A socket on one queue of an interface, with its four rings and the program that feeds it. The fields are
/// dropped in this order: the program comes first, so that no frame comes to a socket without
/// memory.
#[derive(Debug)]
pub struct XdpSocket {
    _program: XdpProgram,
    socket: OwnedFd,
    fill: XdpProducer<ADDRESS_BYTES>,
    received: XdpConsumer<DESCRIPTOR_BYTES>,
    transmit: XdpProducer<DESCRIPTOR_BYTES>,
    completed: XdpConsumer<ADDRESS_BYTES>,
    umem: Umem,
    /// True if the driver uses the app's memory without copying.
    zero_copy: bool,
    /// The kernel's count of drops when it was last read.
    dropped: u64,
    /// Frames with impossible addresses.
    broken: u64,
}

impl PacketDevice for XdpSocket {
    type Config = AfXdpConfig;

    fn check(config: &AfXdpConfig) -> Result<(), AppError> {
        check_present(&config.interface)?;
        if config.queue >= program::QUEUES_MAX {
            return Err(AppError(format!(
                "queue = {}: queues are numbered from 0 to {}",
                config.queue,
                program::QUEUES_MAX - 1
            )));
        }
        // CAP_BPF is a part of CAP_SYS_ADMIN, and Linux before 5.8 has only the latter.
        let may_load = has_capability(CapabilitySet::BPF) || has_capability(CapabilitySet::SYS_ADMIN);
        if !may_load || !has_capability(CapabilitySet::NET_RAW) || !has_capability(CapabilitySet::NET_ADMIN) {
            return Err(not_allowed(&config.interface));
        }
        // Check whether this kernel has such sockets.
        xdp_socket().map(drop).map_err(|failure| Self::explain(&failure, config))
    }

    /// Waits [`BUSY_MAX`] for a queue that is in use: the kernel frees the queue of a process that was killed a
    /// little after the process has ended.
    fn open(config: &AfXdpConfig) -> Result<Self, DeviceFailure> {
        let until = Instant::now() + BUSY_MAX;
        loop {
            match Self::open_once(config) {
                Err(failure) if failure.errno == Errno::BUSY && Instant::now() < until => {
                    std::thread::sleep(BUSY_STEP);
                }
                opened => return opened,
            }
        }
    }

    fn open_again(config: &AfXdpConfig) -> Result<Self, DeviceFailure> {
        device::index_if_up(&config.interface)?;
        Self::open_once(config)
    }

    fn explain(failure: &DeviceFailure, config: &AfXdpConfig) -> AppError {
        let name = &config.interface;
        let queue = config.queue;
        AppError(match (failure.call, failure.errno) {
            (SOCKET, Errno::AFNOSUPPORT) => {
                "this kernel was built without AF_XDP (CONFIG_XDP_SOCKETS): use kind = \"af_packet\""
                    .to_owned()
            }
            (UMEM, Errno::NOBUFS) => {
                "the frames of AF_XDP do not fit into this process's locked memory: raise it \
                 (ulimit -l unlimited), or give the process CAP_IPC_LOCK"
                    .to_owned()
            }
            (_, Errno::PERM | Errno::ACCESS) => return not_allowed(name),
            (_, Errno::NOSYS) => {
                "this kernel was built without bpf(2) (CONFIG_BPF_SYSCALL): use kind = \"af_packet\""
                    .to_owned()
            }
            (program::MAP, Errno::INVAL) => {
                "this kernel has no maps of AF_XDP sockets (CONFIG_XDP_SOCKETS): use kind = \"af_packet\""
                    .to_owned()
            }
            (program::ATTACH, Errno::BUSY) => format!(
                "another XDP program is on `{name}`: take it off (ip link set dev {name} xdp off), or end the \
                 process that put it there"
            ),
            (program::ATTACH, Errno::INVAL) => format!(
                "this kernel or the driver of `{name}` refuses the XDP program: it takes Linux 5.9 and an MTU whose \
                 frames fit into a page (ip link set {name} mtu 1500); mode = \"generic\" asks less of the driver"
            ),
            (program::ATTACH, Errno::OPNOTSUPP) => {
                format!(
                    "the driver of `{name}` has no XDP of its own: leave mode at \"auto\", or set \"generic\""
                )
            }
            (BIND, Errno::BUSY) => {
                format!("queue {queue} of `{name}` is in use by another AF_XDP socket: end its process")
            }
            (BIND, Errno::INVAL) => format!(
                "`{name}` has no queue {queue}, or cannot be used: its queues are in /sys/class/net/{name}/queues"
            ),
            _ => format!("queue {queue} of `{name}`: {failure}"),
        })
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn has_frame(&mut self) -> bool {
        self.received.waiting() > 0
    }

    fn receive(&mut self, packet: &mut Packet) -> Result<Received, Errno> {
        let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = self.received.take();
        let address = u64::from_ne_bytes([a, b, c, d, e, f, g, h]);
        let length = u32::from_ne_bytes([i, j, k, l]) as usize;
        let copied = match packet.resize(length).map(|data| self.umem.copy_out(address, data)) {
            Some(true) => Ok(()),
            Some(false) => Err(DropReason::Device),
            None => Err(DropReason::Oversize),
        };
        match Umem::receive_chunk(address) {
            Some(chunk) if self.fill.room() > 0 => self.fill.put(chunk.to_ne_bytes()),
            _ => self.broken += 1,
        }
        Ok(copied.map_or_else(Received::Dropped, |()| Received::Frame))
    }

    fn end_receiving(&mut self) {
        self.received.release();
        self.fill.publish();
        if self.fill.wants_wakeup() && self.fill.unread() > 0 {
            // The result does not matter: the frames have their own ring.
            let _ = recv(&self.socket, &mut [0; 1], RecvFlags::DONTWAIT);
        }
    }

    fn send(&mut self, packets: &[Packet]) -> Result<usize, Errno> {
        device::send_each(packets, |frame| self.put(frame))
    }

    /// Also takes back the frames that the kernel has sent.
    fn flush(&mut self) -> Result<(), Errno> {
        self.transmit.publish();
        let mut result = Ok(());
        for _ in 0..FLUSHES_MAX {
            self.take_completed();
            if self.transmit.unread() == 0 || !self.transmit.wants_wakeup() {
                break;
            }
            match send(&self.socket, &[], SendFlags::DONTWAIT) {
                // EAGAIN: the kernel has sent some frames, and there are more.
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => {
                    result = Err(errno);
                    break;
                }
            }
        }
        self.take_completed();
        result
    }

    fn unsent(&self) -> u32 {
        self.transmit.unread()
    }

    /// Counts the frames for which the kernel had no room, and the invalid ones.
    fn take_drops(&mut self) -> u64 {
        let Ok(statistics) = sockopt::xdp_statistics(&self.socket) else { return 0 };
        let now = statistics.rx_dropped + statistics.rx_ring_full.unwrap_or(0) + statistics.tx_invalid_descs;
        let dropped = now.saturating_sub(std::mem::replace(&mut self.dropped, now));
        dropped + std::mem::take(&mut self.broken)
    }

    /// The kernel reports only once that the interface went away, to the first call that asks.
    fn has_failed(&self) -> bool {
        !matches!(sockopt::socket_error(&self.socket), Ok(Ok(())))
    }

    fn figures(device: Option<&Self>, kernel_drops: u64) -> Vec<(&'static str, u64)> {
        let zero_copy = device.is_some_and(|device| device.zero_copy).into();
        vec![("kernel_drops", kernel_drops), ("zero_copy", zero_copy)]
    }
}

impl XdpSocket {
    fn open_once(config: &AfXdpConfig) -> Result<Self, DeviceFailure> {
        let index = device::index(&config.interface)?;
        let socket = xdp_socket()?;
        let umem = Umem::new().map_err(failed("mmap of frames"))?;
        sockopt::set_xdp_umem_reg(&socket, umem.registration()).map_err(failed(UMEM))?;
        sockopt::set_xdp_umem_fill_ring_size(&socket, CHUNKS)
            .map_err(failed("setsockopt XDP_UMEM_FILL_RING"))?;
        sockopt::set_xdp_umem_completion_ring_size(&socket, CHUNKS)
            .map_err(failed("setsockopt XDP_UMEM_COMPLETION_RING"))?;
        sockopt::set_xdp_rx_ring_size(&socket, CHUNKS).map_err(failed("setsockopt XDP_RX_RING"))?;
        sockopt::set_xdp_tx_ring_size(&socket, CHUNKS).map_err(failed("setsockopt XDP_TX_RING"))?;

        let offsets = sockopt::xdp_mmap_offsets(&socket).map_err(failed("getsockopt XDP_MMAP_OFFSETS"))?;
        let map = |offset, ring: &XdpRingOffset, entry_bytes| {
            let bytes = ring.desc as usize + CHUNKS as usize * entry_bytes;
            Mapping::of(socket.as_fd(), offset, bytes).map_err(failed("mmap of a ring"))
        };
        let fill = map(XDP_UMEM_PGOFF_FILL_RING, &offsets.fr, ADDRESS_BYTES)?;
        let completed = map(XDP_UMEM_PGOFF_COMPLETION_RING, &offsets.cr, ADDRESS_BYTES)?;
        let received = map(XDP_PGOFF_RX_RING, &offsets.rx, DESCRIPTOR_BYTES)?;
        let transmit = map(XDP_PGOFF_TX_RING, &offsets.tx, DESCRIPTOR_BYTES)?;
        let mut fill = XdpProducer::new(fill, &offsets.fr, CHUNKS);
        Umem::receive_chunks().for_each(|address| fill.put(address.to_ne_bytes()));
        fill.publish();

        bind_queue(&socket, index, config).map_err(failed(BIND))?;
        let options = sockopt::xdp_options(&socket).unwrap_or(XdpOptionsFlags::empty());
        Ok(Self {
            _program: program::attach(socket.as_fd(), index, config.queue, config.mode)?,
            socket,
            fill,
            received: XdpConsumer::new(received, &offsets.rx, CHUNKS),
            transmit: XdpProducer::new(transmit, &offsets.tx, CHUNKS),
            completed: XdpConsumer::new(completed, &offsets.cr, CHUNKS),
            umem,
            zero_copy: options.contains(XdpOptionsFlags::XDP_OPTIONS_ZEROCOPY),
            dropped: 0,
            broken: 0,
        })
    }

    /// Puts a frame where the kernel sends it after [`flush`](Self::flush).
    fn put(&mut self, frame: &[u8]) -> Result<(), Errno> {
        if frame.len() > CHUNK_BYTES {
            return Err(Errno::MSGSIZE);
        }
        if self.umem.free() == 0 || self.transmit.room() == 0 {
            // The interface is too slow, unless more frames can be taken back by now.
            let _ = self.flush();
        }
        if self.transmit.room() == 0 {
            return Err(Errno::NOBUFS);
        }
        let address = self.umem.copy_in(frame).ok_or(Errno::NOBUFS)?;
        let mut descriptor = [0; DESCRIPTOR_BYTES];
        descriptor[..8].copy_from_slice(&address.to_ne_bytes());
        descriptor[8..12].copy_from_slice(&(frame.len() as u32).to_ne_bytes());
        self.transmit.put(descriptor);
        Ok(())
    }

    fn take_completed(&mut self) {
        for _ in 0..self.completed.waiting() {
            self.umem.sent(u64::from_ne_bytes(self.completed.take()));
        }
        self.completed.release();
    }
}

fn xdp_socket() -> Result<OwnedFd, DeviceFailure> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    socket_with(AddressFamily::XDP, SocketType::RAW, flags, None).map_err(failed(SOCKET))
}

/// Binds without copies if the driver can and the configuration allows it; the kernel itself falls back to copying.
fn bind_queue(socket: &OwnedFd, index: u32, config: &AfXdpConfig) -> Result<(), Errno> {
    let mut flags = SocketAddrXdpFlags::XDP_USE_NEED_WAKEUP;
    if config.copy || config.mode == XdpMode::Generic {
        flags |= SocketAddrXdpFlags::XDP_COPY;
    }
    bind(socket, &SocketAddrXdp::new(flags, index, config.queue))
}

fn not_allowed(name: &str) -> AppError {
    AppError(format!(
        "AF_XDP on `{name}` takes CAP_NET_ADMIN, CAP_NET_RAW and CAP_BPF: run as root, or use kind = \"af_packet\""
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::app::App;

    #[test]
    fn an_interface_that_is_not_there_is_refused() {
        let trouble = AfXdp::check(&AfXdpConfig::new("no-such-one")).expect_err("it is not there");
        assert!(trouble.0.contains("`no-such-one`"), "{trouble}");
    }

    #[test]
    fn a_queue_that_cannot_be_is_refused() {
        let config = AfXdpConfig { queue: program::QUEUES_MAX, ..AfXdpConfig::new("lo") };
        assert!(AfXdp::check(&config).is_err_and(|trouble| trouble.0.contains("queue = 4096")));
    }
}

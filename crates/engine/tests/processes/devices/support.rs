//! A namespace, interfaces, a packet socket of the test's own, and waiting for events.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::process::Command;
use std::time::{Duration, Instant};

use caravan_engine::App;
use caravan_engine::limits::HEADROOM_BYTES;
use caravan_engine::testing::AppBench;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvFlags, SendFlags, netdevice, recv, send};

/// The time limit of anything.
const PATIENCE: Duration = Duration::from_secs(60);
/// The number of packets of a bench.
pub const PACKETS: u32 = 2048;
/// The longest frame that fits into a packet.
pub const FRAME_MAX: usize = caravan_engine::limits::PACKET_BYTES_MAX - HEADROOM_BYTES;

/// Moves this process into a new network namespace, which ends with it.
pub fn enter_namespace() {
    // SAFETY: the call touches no memory; this process has one thread.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNET) };
    assert_eq!(
        done,
        0,
        "no network namespace could be made: {}; it takes root (in a container, \
        --cap-add SYS_ADMIN,NET_ADMIN); CARAVAN_SKIP_ROOT_TESTS=1 skips this",
        std::io::Error::last_os_error()
    );
    // Only the test may send frames.
    std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").expect("IPv6 switched off");
}

/// Moves this process into a mount namespace of its own.
pub fn enter_mount_namespace() {
    // SAFETY: the call touches no memory; this process has one thread.
    let done = unsafe { libc::unshare(libc::CLONE_NEWNS) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    run("mount --make-rprivate /");
}

/// Runs a command, whose words are separated by spaces. It must succeed.
pub fn run(command: &str) {
    let words: Vec<_> = command.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output();
    let output = output.unwrap_or_else(|error| panic!("{command}: {error}; install it: make bootstrap"));
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a veth pair, with both ends up.
pub fn veth(left: &str, right: &str) {
    run(&format!("ip link add {left} type veth peer name {right}"));
    run(&format!("ip link set {left} up"));
    run(&format!("ip link set {right} up"));
}

/// Waits until `step` returns true.
pub fn wait_for(what: &str, mut step: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !step() {
        assert!(Instant::now() < until, "waited in vain: {what}");
    }
}

/// Waits until a descriptor is readable, at most a millisecond, as no descriptor reports devices that come and
/// go.
pub fn wait_readable(fd: impl AsFd) {
    let moment = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
    poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&moment)).expect("poll");
}

/// A packet socket on an interface, which sees what the interface receives and sends frames
/// through it.
pub struct Witness(OwnedFd);

impl Witness {
    pub fn on(interface: &str) -> Self {
        let protocol = (libc::ETH_P_ALL as u16).to_be();
        // SAFETY: the call touches no memory.
        let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
        assert!(fd >= 0, "{}", std::io::Error::last_os_error());
        // SAFETY: the descriptor is new, and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all zeros are a valid address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = protocol;
        address.sll_ifindex = netdevice::name_to_index(&fd, interface).expect("the interface") as i32;
        let length = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: the kernel reads `length` bytes of the address.
        let done = unsafe { libc::bind(fd.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) };
        assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
        Self(fd)
    }

    pub fn send(&self, frame: &[u8]) {
        assert_eq!(send(&self.0, frame, SendFlags::empty()), Ok(frame.len()));
    }

    /// Returns the next frames of ours, in order, and ignores others.
    pub fn receive(&self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        wait_for("frames at the witness", || {
            wait_readable(&self.0);
            let mut buffer = [0; 9000];
            while let Ok((length, _)) = recv(&self.0, &mut buffer, RecvFlags::DONTWAIT) {
                if is_ours(&buffer[..length]) {
                    frames.push(buffer[..length].to_vec());
                }
            }
            frames.len() >= count
        });
        frames
    }
}

/// The EtherType of our frames, one for local experiments (IEEE 802).
const OURS: [u8; 2] = [0x88, 0xb5];

/// Makes a broadcast frame with its number in it, of any length from 18 bytes.
pub fn frame(number: usize, length: usize) -> Vec<u8> {
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 1]);
    frame.extend(OURS);
    frame.extend((number as u32).to_be_bytes());
    frame.extend((frame.len()..length).map(|i| (i * 7 + number) as u8));
    frame
}

pub fn is_ours(frame: &[u8]) -> bool {
    frame.len() >= 14 && frame[12..14] == OURS
}

/// The calls of a test to an app that has an input and an output.
pub trait Drive {
    /// Calls `pull` as an idle worker does, until `count` frames of ours have been sent on.
    fn pull_frames(&mut self, count: usize) -> Vec<Vec<u8>>;
    /// Calls `pull` once, when a descriptor of the app is readable or after a moment.
    fn breathe(&mut self);
    /// Has the app send a frame.
    fn push_frame(&mut self, frame: &[u8]);
    /// Returns a figure of the app's report.
    fn figure(&self, name: &str) -> u64;
}

impl<A: App> Drive for AppBench<A> {
    fn pull_frames(&mut self, count: usize) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        wait_for("frames at the output", || {
            self.breathe();
            frames.extend(self.sent("output").into_iter().filter(|frame| is_ours(frame)));
            frames.len() >= count
        });
        frames
    }

    fn breathe(&mut self) {
        match self.app.descriptors().first() {
            Some(fd) => wait_readable(fd),
            None => std::thread::yield_now(),
        }
        // The app's clock runs ten times as fast.
        self.now_ns += 10_000_000;
        self.pull();
    }

    fn push_frame(&mut self, frame: &[u8]) {
        self.put("input", frame);
        self.push();
    }

    fn figure(&self, name: &str) -> u64 {
        let figures: BTreeMap<_, _> = self.app.report().into_iter().collect();
        figures[name]
    }
}

/// Makes a bench with both links.
pub fn bench<A: App>(config: A::Config) -> AppBench<A> {
    AppBench::new(config, &["input"], &["output"], PACKETS).unwrap_or_else(|trouble| panic!("{trouble}"))
}

/// Returns why an app does not start.
pub fn refusal<A: App>(config: A::Config) -> String {
    match AppBench::<A>::new(config, &[], &[], 1) {
        Ok(_) => panic!("it starts"),
        Err(trouble) => trouble.0,
    }
}

/// Sends frames of all lengths in both directions between an app and a witness at the other end; each must
/// arrive once, byte for byte.
pub fn exchange<A: App>(bench: &mut AppBench<A>, witness: &Witness, longest: usize) {
    let frames: Vec<_> =
        (18..=longest).step_by(61).chain([longest]).enumerate().map(|(i, l)| frame(i, l)).collect();
    frames.iter().for_each(|frame| witness.send(frame));
    assert_eq!(bench.pull_frames(frames.len()), frames);
    frames.iter().for_each(|frame| bench.push_frame(frame));
    assert_eq!(witness.receive(frames.len()), frames);
    assert_eq!(bench.free(), PACKETS as usize, "all packets are free");
}

/// Checks that frames that the app sends are dropped and counted while its device is away, and that the device
/// comes back after `back`.
pub fn goes_away_and_comes_back<A: App>(bench: &mut AppBench<A>, away: impl FnOnce(), back: impl FnOnce()) {
    use caravan_engine::layout::DropReason;
    away();
    wait_for("the loss", || {
        bench.breathe();
        bench.figure("up") == 0
    });
    let before = bench.drops(DropReason::Device);
    bench.push_frame(&frame(1, 60));
    assert_eq!(bench.drops(DropReason::Device), before + 1);
    assert!(bench.app.descriptors().is_empty() && bench.app.wake_ns().is_some());
    back();
    wait_for("the return", || {
        bench.breathe();
        bench.figure("up") == 1
    });
    assert_eq!(bench.figure("losses"), 1);
    assert!(bench.app.wake_ns().is_none());
}

/// Checks that an interface that is deleted is used again once it is there.
pub fn deleted_and_made<A: App>((mut bench, _): (AppBench<A>, Witness)) {
    goes_away_and_comes_back(&mut bench, || run("ip link del left"), || veth("left", "right"));
    exchange(&mut bench, &Witness::on("right"), 1514);
}

/// Gives up root and its capabilities for the rest of this process.
pub fn become_nobody() {
    const NOBODY: u32 = 65534;
    // SAFETY: the call touches no memory.
    let done = unsafe { libc::setresuid(NOBODY, NOBODY, NOBODY) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

/// While the output is full, the app leaves frames in its device, and lets the worker sleep.
pub fn waits_for_room<A: App>((mut bench, witness): (AppBench<A>, Witness)) {
    bench.fill("output");
    witness.send(&frame(0, 60));
    wait_readable(bench.app.descriptors().first().expect("the device"));
    bench.pull();
    assert!(bench.app.descriptors().is_empty());
    // The link's other end takes all packets.
    bench.sent("output");
    bench.pull();
    assert!(!bench.app.descriptors().is_empty());
    let sent = bench.sent("output");
    let sent = if sent.is_empty() { bench.pull_frames(1) } else { sent };
    assert_eq!(sent, [frame(0, 60)]);
    assert_eq!(bench.free(), PACKETS as usize);
}

//! Tests of `af_xdp`.

use caravan_engine::apps::{AfXdp, AfXdpConfig, XdpMode};
use caravan_engine::layout::DropReason;
use caravan_engine::testing::AppBench;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::support::{
    Drive, FRAME_MAX, PACKETS, Witness, bench, deleted_and_made, exchange, frame, refusal, run, veth,
    wait_for, waits_for_room,
};
use crate::Scene;

/// Returns the cases that this kernel allows: a kernel without AF_XDP must produce an error.
pub fn cases() -> &'static [Scene] {
    match socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Err(Errno::AFNOSUPPORT) => &[("af_xdp: a kernel without it says so", no_kernel_support)],
        _ => CASES,
    }
}

fn no_kernel_support() {
    let words = refusal::<AfXdp>(AfXdpConfig::new("lo"));
    assert!(words.contains("CONFIG_XDP_SOCKETS") && words.contains("af_packet"), "{words}");
}

const CASES: &[Scene] = &[
    ("af_xdp: frames arrive byte for byte, by the driver", || frames_arrive(XdpMode::Native)),
    ("af_xdp: frames arrive byte for byte, behind the driver", || frames_arrive(XdpMode::Generic)),
    ("af_xdp: its rings go round", rings_go_round),
    ("af_xdp: frames of other lengths are counted", other_lengths_are_counted),
    ("af_xdp: an interface that is deleted comes back", || deleted_and_made(cable(AfXdpConfig::new("left")))),
    ("af_xdp: an interface that goes down comes back", down_and_up),
    ("af_xdp: the program goes with its app", the_program_goes),
    ("af_xdp: without it there are words", troubles),
    ("af_xdp: what its output has no room for waits", || waits_for_room(cable(AfXdpConfig::new("left")))),
];

fn cable(config: AfXdpConfig) -> (AppBench<AfXdp>, Witness) {
    veth("left", "right");
    (bench(config), Witness::on("right"))
}

fn frames_arrive(mode: XdpMode) {
    let (mut app, witness) = cable(AfXdpConfig { mode, ..AfXdpConfig::new("left") });
    exchange(&mut app, &witness, 1514);
}

fn rings_go_round() {
    let (mut app, witness) = cable(AfXdpConfig::new("left"));
    for turn in 0..100 {
        let frames: Vec<_> = (0..100).map(|i| frame(100 * turn + i, 60 + turn)).collect();
        frames.iter().for_each(|frame| witness.send(frame));
        assert_eq!(app.pull_frames(100), frames);
        frames.iter().for_each(|frame| app.put("input", frame));
        app.push();
        assert_eq!(witness.receive(100), frames);
    }
    assert_eq!((app.figure("received"), app.figure("transmitted")), (10_000, 10_000));
    assert_eq!((app.drops(DropReason::Device), app.free()), (0, PACKETS as usize));
}

fn other_lengths_are_counted() {
    veth("left", "right");
    run("ip link set left mtu 3000");
    run("ip link set right mtu 3000");
    let mut app: AppBench<AfXdp> = bench(AfXdpConfig::new("left"));
    let witness = Witness::on("right");
    witness.send(&frame(0, FRAME_MAX + 1));
    witness.send(&frame(1, 3014));
    witness.send(&frame(2, FRAME_MAX));
    assert_eq!(app.pull_frames(1), [frame(2, FRAME_MAX)]);
    assert_eq!(app.drops(DropReason::Oversize), 2);
}

fn down_and_up() {
    let (mut app, witness) = cable(AfXdpConfig::new("left"));
    run("ip link set left down");
    app.push_frame(&frame(0, 60));
    assert_eq!((app.drops(DropReason::Device), app.figure("up"), app.figure("transmitted")), (1, 0, 0));
    run("ip link set left up");
    wait_for("the return", || {
        app.breathe();
        app.figure("up") == 1
    });
    exchange(&mut app, &witness, 1514);
}

fn the_program_goes() {
    let (app, _) = cable(AfXdpConfig::new("left"));
    let words = refusal::<AfXdp>(AfXdpConfig::new("left"));
    assert!(words.contains("queue 0 of `left` is in use"), "{words}");
    drop(app);
    let mut app: AppBench<AfXdp> = bench(AfXdpConfig::new("left"));
    exchange(&mut app, &Witness::on("right"), 60);
    drop(app);
    let shown =
        || std::process::Command::new("ip").args(["link", "show", "left"]).output().expect("ip").stdout;
    wait_for("the program's end", || !String::from_utf8_lossy(&shown()).contains("xdp"));
}

fn troubles() {
    veth("left", "right");
    let words = refusal::<AfXdp>(AfXdpConfig { queue: 7, ..AfXdpConfig::new("left") });
    assert!(words.contains("no queue 7") && words.contains("/sys/class/net/left/queues"), "{words}");
    let words = refusal::<AfXdp>(AfXdpConfig { mode: XdpMode::Native, ..AfXdpConfig::new("lo") });
    assert!(words.contains("no XDP of its own") && words.contains("generic"), "{words}");
    super::support::become_nobody();
    let words = refusal::<AfXdp>(AfXdpConfig::new("left"));
    assert!(words.contains("CAP_NET_ADMIN") && words.contains("af_packet"), "{words}");
}

//! Tests of `tap`.

use std::process::{Command, Stdio};

use caravan_engine::apps::{Tap, TapConfig};
use caravan_engine::layout::DropReason;
use caravan_engine::testing::AppBench;

use super::support::{
    Drive, Witness, bench, exchange, frame, goes_away_and_comes_back, refusal, run, wait_for, waits_for_room,
};
use crate::Scene;

pub const CASES: &[Scene] = &[
    ("tap: frames arrive byte for byte", frames_arrive),
    ("tap: a frame longer than a packet is counted", long_frames_are_counted),
    ("tap: frames that the host does not take are counted", refused_frames_are_counted),
    ("tap: one that is deleted is made again", deleted_is_made_again),
    ("tap: it goes with its app, or stays", it_goes_or_stays),
    ("tap: it is found again in another namespace", it_is_in_another_namespace),
    ("tap: two apps share it by queues alone", two_share_it),
    ("tap: without it there are words", troubles),
    ("tap: without the device to make it there are words", no_tun),
    ("tap: what its output has no room for waits", || {
        waits_for_room((bench::<Tap>(with_mtu(1500)), Witness::on("tap0")))
    }),
];

fn with_mtu(mtu: usize) -> TapConfig {
    TapConfig { mtu: Some(mtu), ..TapConfig::new("tap0") }
}

fn frames_arrive() {
    let mut tap: AppBench<Tap> = bench(with_mtu(1966));
    let witness = Witness::on("tap0");
    exchange(&mut tap, &witness, 1966 + 14);
    assert_eq!(tap.figure("received"), tap.figure("transmitted"));
}

fn long_frames_are_counted() {
    let mut tap: AppBench<Tap> = bench(TapConfig::new("tap0"));
    run("ip link set tap0 mtu 4000");
    let witness = Witness::on("tap0");
    // A frame of 1,984 bytes just fits.
    witness.send(&frame(0, 1984));
    witness.send(&frame(1, 1985));
    witness.send(&frame(2, 4014));
    witness.send(&frame(3, 60));
    assert_eq!(tap.pull_frames(2), [frame(0, 1984), frame(3, 60)]);
    assert_eq!(tap.drops(DropReason::Oversize), 2);
}

fn refused_frames_are_counted() {
    let mut tap: AppBench<Tap> = bench(TapConfig::new("tap0"));
    tap.push_frame(&[0; 13]);
    assert_eq!(tap.drops(DropReason::Malformed), 1);
    run("ip link set tap0 down");
    tap.push_frame(&frame(0, 60));
    assert_eq!((tap.drops(DropReason::Device), tap.figure("losses")), (1, 0));
    run("ip link set tap0 up");
    exchange(&mut tap, &Witness::on("tap0"), 60);
}

fn deleted_is_made_again() {
    let mut tap: AppBench<Tap> = bench(with_mtu(1400));
    goes_away_and_comes_back(&mut tap, || run("ip link del tap0"), || {});
    exchange(&mut tap, &Witness::on("tap0"), 1414);
}

fn is_there(name: &str) -> bool {
    let output = Command::new("ip").args(["link", "show", name]).output().expect("ip");
    output.status.success()
}

fn it_goes_or_stays() {
    drop(bench::<Tap>(TapConfig::new("tap0")));
    wait_for("its end", || !is_there("tap0"));
    drop(bench::<Tap>(TapConfig { persist: true, ..with_mtu(1234) }));
    run("ip address add 10.0.0.1/24 dev tap0");
    assert!(is_there("tap0"));
    let mut again: AppBench<Tap> = bench(with_mtu(1966));
    exchange(&mut again, &Witness::on("tap0"), 1980);
    drop(again);
    assert!(is_there("tap0"), "it was there before");
}

fn it_is_in_another_namespace() {
    // The command ends with this process, as its input does.
    let mut other = Command::new("unshare");
    let mut other = other.args(["--net", "cat"]).stdin(Stdio::piped()).spawn().expect("unshare");
    let namespace = std::path::PathBuf::from(format!("/proc/{}/ns/net", other.id()));
    let of = |path: &std::path::Path| std::fs::read_link(path).ok();
    let ours = of("/proc/self/ns/net".as_ref());
    wait_for("the namespace", || of(&namespace).is_some_and(|theirs| Some(theirs) != ours));
    let config = TapConfig { namespace: Some(namespace.clone()), persist: true, ..TapConfig::new("tap0") };
    let there = format!("nsenter --net={}", namespace.display());
    drop(bench::<Tap>(config.clone()));
    run(&format!("{there} ip address add 10.0.0.1/24 dev tap0"));
    assert!(!is_there("tap0"), "here is none");
    let tap = bench::<Tap>(config.clone());
    assert_eq!(tap.figure("up"), 1);
    let shown = format!("{there} ip -4 address show dev tap0");
    let words: Vec<_> = shown.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output().expect("nsenter");
    let shown = String::from_utf8_lossy(&output.stdout);
    assert!(shown.contains("10.0.0.1/24") && !shown.contains("NO-CARRIER"), "the same one, in use: {shown}");
    assert_eq!(of("/proc/self/ns/net".as_ref()), ours, "all else stays here");
    drop(other.stdin.take());
    other.wait().expect("ended");
    let words = refusal::<Tap>(config);
    assert!(words.contains("cannot be entered") && words.contains("ip netns add"), "{words}");
}

fn two_share_it() {
    let first: AppBench<Tap> = bench(TapConfig::new("tap0"));
    assert!(refusal::<Tap>(TapConfig::new("tap0")).contains("is in use"));
    drop(first);
    let shared = || TapConfig { multi_queue: true, ..TapConfig::new("tap1") };
    let mut two: [AppBench<Tap>; 2] = [bench(shared()), bench(shared())];
    let witness = Witness::on("tap1");
    witness.send(&frame(7, 60));
    let mut frames = Vec::new();
    wait_for("the frame at either", || {
        for tap in &mut two {
            tap.breathe();
            frames.extend(tap.sent("output"));
        }
        frames.contains(&frame(7, 60))
    });
    let [left, right] = &mut two;
    left.push_frame(&frame(8, 60));
    right.push_frame(&frame(9, 60));
    assert_eq!(witness.receive(2), [frame(8, 60), frame(9, 60)]);
}

fn troubles() {
    run("ip link add dummy0 type bridge");
    let words = refusal::<Tap>(TapConfig::new("dummy0"));
    assert!(words.contains("no TAP interface") && words.contains("ip link del dummy0"), "{words}");
    super::support::become_nobody();
    let words = refusal::<Tap>(TapConfig::new("tap0"));
    assert!(words.contains("CAP_NET_ADMIN") || words.contains("may not be opened"), "{words}");
}

fn no_tun() {
    super::support::enter_mount_namespace();
    run("mount -t tmpfs tmpfs /dev/net");
    let words = refusal::<Tap>(TapConfig::new("tap0"));
    assert!(words.contains("/dev/net/tun is missing") && words.contains("modprobe tun"), "{words}");
}

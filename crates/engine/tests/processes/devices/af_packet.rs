//! Tests of `af_packet`.

use caravan_engine::apps::{AfPacket, AfPacketConfig};
use caravan_engine::layout::DropReason;
use caravan_engine::testing::AppBench;

use super::support::{
    Drive, FRAME_MAX, Witness, bench, deleted_and_made, exchange, frame, goes_away_and_comes_back, refusal,
    run, veth, wait_for, waits_for_room,
};
use crate::Scene;

pub const CASES: &[Scene] = &[
    ("af_packet: frames arrive byte for byte", frames_arrive),
    ("af_packet: past the queueing discipline, too", frames_arrive_past_the_qdisc),
    ("af_packet: what it sends it does not receive", its_own_are_ignored),
    ("af_packet: the interface is promiscuous if asked", promiscuous),
    ("af_packet: VLAN tags stay", tags_stay),
    ("af_packet: frames of other lengths are counted", other_lengths_are_counted),
    ("af_packet: what the kernel drops is counted", kernel_drops_are_counted),
    ("af_packet: checksums left to the device are completed", checksums_are_completed),
    ("af_packet: an interface that goes down comes back", down_and_up),
    ("af_packet: an interface that is deleted comes back", || {
        deleted_and_made(cable(AfPacketConfig::new("left")))
    }),
    ("af_packet: without it there are words", troubles),
    ("af_packet: what its output has no room for waits", || {
        waits_for_room(cable(AfPacketConfig::new("left")))
    }),
];

fn cable(config: AfPacketConfig) -> (AppBench<AfPacket>, Witness) {
    veth("left", "right");
    run("ip link set left mtu 9000");
    run("ip link set right mtu 9000");
    (bench(config), Witness::on("right"))
}

fn frames_arrive() {
    let (mut app, witness) = cable(AfPacketConfig::new("left"));
    exchange(&mut app, &witness, FRAME_MAX);
    exchange(&mut app, &witness, 1514);
}

fn frames_arrive_past_the_qdisc() {
    let (mut app, witness) = cable(AfPacketConfig { qdisc_bypass: true, ..AfPacketConfig::new("left") });
    exchange(&mut app, &witness, FRAME_MAX);
}

fn its_own_are_ignored() {
    let (mut app, witness) = cable(AfPacketConfig::new("left"));
    (0..200).for_each(|i| app.put("input", &frame(i, 60)));
    app.push();
    assert_eq!(witness.receive(200).len(), 200);
    witness.send(&frame(200, 60));
    assert_eq!(app.pull_frames(1), [frame(200, 60)]);
}

fn promiscuous() {
    // A veth pair passes frames to other stations in any case, so the test reads the interface's flags.
    let shown =
        || std::process::Command::new("ip").args(["-d", "link", "show", "left"]).output().expect("ip").stdout;
    for (promiscuous, expected) in [(false, " promiscuity 0 "), (true, " promiscuity 1 ")] {
        let (app, _) = cable(AfPacketConfig { promiscuous, ..AfPacketConfig::new("left") });
        let shown = String::from_utf8_lossy(&shown()).into_owned();
        assert!(shown.contains(expected), "{shown}");
        drop(app);
        run("ip link del left");
    }
}

fn tags_stay() {
    let (mut app, witness) = cable(AfPacketConfig::new("left"));
    let tagged = [&frame(0, 60)[..12], &[0x81, 0, 0x20, 0x64], &frame(0, 60)[12..]].concat();
    witness.send(&tagged);
    wait_for("the tagged frame", || {
        app.breathe();
        app.sent("output") == [tagged.clone()]
    });
    // The frame goes out again: the kernel shows the witness its EtherType without the tag.
    app.push_frame(&tagged);
    assert_eq!(witness.receive(1), [frame(0, 60)]);
}

fn other_lengths_are_counted() {
    let (mut app, witness) = cable(AfPacketConfig::new("left"));
    for length in [FRAME_MAX + 1, 4000, 9014] {
        witness.send(&frame(0, length));
    }
    witness.send(&frame(1, FRAME_MAX));
    assert_eq!(app.pull_frames(1), [frame(1, FRAME_MAX)]);
    assert_eq!(app.drops(DropReason::Oversize), 3);
    run("ip link set left mtu 1000");
    app.push_frame(&frame(2, 1500));
    assert_eq!(app.drops(DropReason::Oversize), 4);
    app.push_frame(&[0; 13]);
    assert_eq!(app.drops(DropReason::Malformed), 1);
}

fn kernel_drops_are_counted() {
    let (mut app, witness) = cable(AfPacketConfig::new("left"));
    // More than the ring's 4 MiB.
    let sent = 10_000;
    (0..sent).for_each(|i| witness.send(&frame(i, 1514)));
    let mut received = 0;
    wait_for("all to be counted", || {
        app.breathe();
        received += app.sent("output").len() as u64;
        received + app.drops(DropReason::Device) == sent as u64
    });
    assert_eq!(app.figure("kernel_drops"), app.drops(DropReason::Device));
    assert!(app.figure("kernel_drops") > 0 && received > 1000);
    exchange(&mut app, &witness, 60);
}

/// Sends a datagram of the host's own, whose checksum it leaves to the veth pair, which never computes it.
fn checksums_are_completed() {
    let (mut app, _) = cable(AfPacketConfig::new("left"));
    run("ip address add 10.7.7.1/24 dev right");
    run("ip neighbour add 10.7.7.2 lladdr 02:00:00:00:00:02 dev right");
    let socket = std::net::UdpSocket::bind("10.7.7.1:7007").expect("a socket");
    for length in [1, 2, 333, 1400] {
        socket.send_to(&vec![b'c'; length], "10.7.7.2:7008").expect("sent");
        let mut datagram = Vec::new();
        wait_for("the datagram", || {
            app.breathe();
            datagram =
                app.sent("output").into_iter().find(|frame| frame[12..14] == [8, 0]).unwrap_or_default();
            !datagram.is_empty()
        });
        let udp = &datagram[34..];
        let pseudo = [&datagram[26..34], &[0, 17], &udp[4..6]].concat();
        let words = pseudo.chunks(2).chain(udp.chunks(2));
        let mut sum: u32 = words.map(|w| u32::from(w[0]) << 8 | u32::from(*w.get(1).unwrap_or(&0))).sum();
        while sum > 0xffff {
            sum = (sum & 0xffff) + (sum >> 16);
        }
        assert_eq!((udp.len(), sum), (8 + length, 0xffff), "the checksum that RFC 768 asks for");
    }
}

fn down_and_up() {
    let (mut app, witness) = cable(AfPacketConfig::new("left"));
    exchange(&mut app, &witness, 60);
    goes_away_and_comes_back(&mut app, || run("ip link set left down"), || run("ip link set left up"));
    exchange(&mut app, &witness, 60);
}

fn troubles() {
    let words = refusal::<AfPacket>(AfPacketConfig::new("no-such-one"));
    assert!(words.contains("`no-such-one`") && words.contains("ip link"), "{words}");
    super::support::become_nobody();
    let words = refusal::<AfPacket>(AfPacketConfig::new("lo"));
    assert!(words.contains("CAP_NET_RAW") && words.contains("setcap"), "{words}");
}

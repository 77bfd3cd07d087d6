//! Another user of this host floods a doorway, whose name everybody can read.
#![forbid(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use caravan_segment::passing::{self, Doorway, DoorwayAddress};
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType};
use rustix::thread::Uid;

/// The number of messages and connections before the first hand-over, in hundreds: more than any queue or backlog
/// holds.
const BEFORE: u32 = 60;
const ROUNDS: usize = 200;

/// Returns the name as `/proc/net/unix` lists it, without the mark of an abstract name.
fn listed_name(address: &DoorwayAddress) -> String {
    let hex: String = address.to_bytes()[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    let name = format!("caravan-{hex}");
    let listed = std::fs::read_to_string("/proc/net/unix").unwrap();
    assert!(listed.contains(&name), "anybody can read the name");
    name
}

fn socket(kind: SocketType) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, kind, flags, None).unwrap()
}

/// Sends everything that a stranger can send: no bytes, few, many, wrong ones, descriptors' worth of connections.
fn flood(name: &SocketAddrUnix, burst: &AtomicU32, done: &AtomicBool) {
    if rustix::process::geteuid().is_root() {
        // Changes the user of this thread alone.
        let nobody = Uid::from_raw(65534);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
    }
    let datagrams = socket(SocketType::DGRAM);
    let wrong = [0xa5; 272];
    while !done.load(Ordering::SeqCst) {
        for bytes in 0..100 {
            let _ = rustix::net::sendto(&datagrams, &wrong[..bytes * 2], SendFlags::DONTWAIT, name);
            let _ = rustix::net::connect(socket(SocketType::SEQPACKET), name);
        }
        burst.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn a_stranger_who_floods_a_doorway_keeps_nobody_out() {
    let (doorway, address) = Doorway::listen().unwrap();
    let name = SocketAddrUnix::new_abstract_name(listed_name(&address).as_bytes()).unwrap();
    let (burst, done) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| flood(&name, &burst, &done));
        }
        while burst.load(Ordering::SeqCst) < BEFORE {
            std::thread::yield_now();
        }
        let failed = (0..ROUNDS).find_map(|round| {
            let sent = passing::send(&address, &[round as u8], &[socket(SocketType::DGRAM).as_fd()]);
            let came = sent.and_then(|_| doorway.accept());
            match came {
                Ok(delivery) if delivery.payload == [round as u8] && delivery.descriptors.len() == 1 => None,
                other => Some(format!("round {round}: {other:?}")),
            }
        });
        done.store(true, Ordering::SeqCst);
        assert_eq!(failed, None);
    });
}

//! What a producer and its consumers promise each other.

use std::io::{ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::time::Duration;

use caravan_frames::pattern::Pattern;
use caravan_frames::{
    Error, FrameChoice, FrameDelivery, FrameReceiver, FrameSender, Overwritten, Received, StreamOptions,
    limits,
};

use crate::{LONG, frame, name, picture};

fn create(name: &str, options: &StreamOptions) -> FrameSender {
    FrameSender::create(name, options).unwrap()
}

fn send(sender: &mut FrameSender, value: u8) {
    let mut slot = sender.next(Duration::ZERO).unwrap().expect("room");
    slot.bytes_mut().fill(value);
    slot.publish();
}

#[test]
fn the_newest_frame_is_taken_and_the_others_are_counted() {
    let name = name("newest");
    let mut sender = create(&name, &StreamOptions::new(picture()));
    send(&mut sender, 1);
    send(&mut sender, 2);
    let mut receiver = FrameReceiver::attach(&name, FrameChoice::Newest).unwrap();
    assert_eq!(receiver.picture(), picture());
    let view = frame(&mut receiver);
    assert_eq!((view.sequence(), view.dropped()), (2, 0), "who comes late sees the newest frame");
    let mut bytes = vec![0; picture().frame_bytes() as usize];
    view.copy_out(&mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 2));
    drop(view);
    for value in 3..=10 {
        send(&mut sender, value);
    }
    let view = frame(&mut receiver);
    assert_eq!((view.sequence(), view.dropped()), (10, 7));
    drop(view);
    assert!(matches!(receiver.receive(Duration::ZERO).unwrap(), Received::Nothing));
    send(&mut sender, 11);
    drop(sender);
    assert_eq!(frame(&mut receiver).sequence(), 11, "the last frame outlives its producer");
    assert!(matches!(receiver.receive(LONG).unwrap(), Received::End));
}

#[test]
fn every_frame_that_is_left_comes_in_turn() {
    let name = name("every");
    let mut sender = create(&name, &StreamOptions::new(picture()).slots(5));
    let mut receiver = FrameReceiver::attach(&name, FrameChoice::Every).unwrap();
    assert!(!receiver.is_lossless());
    for value in 1..=9 {
        send(&mut sender, value);
    }
    // One of five slots may be written at any time.
    let found: Vec<_> = (0..4)
        .map(|_| {
            let view = frame(&mut receiver);
            (view.sequence(), view.dropped())
        })
        .collect();
    assert_eq!(found, [(6, 5), (7, 0), (8, 0), (9, 0)]);
}

#[test]
fn what_is_overwritten_while_it_is_read_is_not_returned() {
    let name = name("overwritten");
    let mut sender = create(&name, &StreamOptions::new(picture()).slots(3));
    let mut receiver = FrameReceiver::attach(&name, FrameChoice::Newest).unwrap();
    send(&mut sender, 1);
    let view = frame(&mut receiver);
    assert_eq!(view.read(|_| 7), Ok(7));
    // The slot is written again once its turn comes: while it is, and afterwards, nothing that is read counts.
    let overwritten = view.read(|_| {
        send(&mut sender, 2);
        send(&mut sender, 3);
        assert_eq!(sender.next(Duration::ZERO).unwrap().unwrap().sequence(), 4);
    });
    assert_eq!(overwritten, Err(Overwritten));
    send(&mut sender, 4);
    assert_eq!(view.read(|_| ()), Err(Overwritten));
}

#[test]
fn a_slot_that_is_not_published_is_not_seen() {
    let name = name("unpublished");
    let mut sender = create(&name, &StreamOptions::new(picture()));
    let mut receiver = FrameReceiver::attach(&name, FrameChoice::Newest).unwrap();
    assert_eq!(sender.next(Duration::ZERO).unwrap().unwrap().sequence(), 1);
    assert!(matches!(receiver.receive(Duration::ZERO).unwrap(), Received::Nothing));
    send(&mut sender, 1);
    assert_eq!(frame(&mut receiver).sequence(), 1);
}

#[test]
fn a_lossless_producer_waits_for_every_consumer_and_loses_nothing() {
    const FRAMES: u64 = 300;
    let name = name("lossless");
    let options =
        StreamOptions::new(picture()).delivery(FrameDelivery::Lossless).slots(3).digest(true).patience(LONG);
    let mut sender = create(&name, &options);
    let pattern = Pattern::new(picture()).unwrap();
    let consumers: Vec<_> = (0..2)
        .map(|_| {
            let mut receiver = FrameReceiver::attach(&name, FrameChoice::Every).unwrap();
            assert!(receiver.is_lossless());
            std::thread::spawn(move || {
                let pattern = Pattern::new(picture()).unwrap();
                let mut count = 0;
                loop {
                    match receiver.receive(LONG).unwrap() {
                        Received::Frame(view) => {
                            count += 1;
                            assert_eq!((view.sequence(), view.dropped()), (count, 0));
                            view.check_digest().unwrap().unwrap();
                            let checked = view
                                .read(|pixels| pattern.check(Some(count), |at, to| pixels.copy_out(at, to)));
                            assert_eq!(checked.unwrap(), Ok((count, view.captured_ns())));
                        }
                        Received::End => return count,
                        other => panic!("{other:?}"),
                    }
                }
            })
        })
        .collect();
    assert!(sender.wait_for_consumers(2, LONG));
    // It looks at frames as they come, and is not waited for.
    let mut watcher = FrameReceiver::attach(&name, FrameChoice::Newest).unwrap();
    for sequence in 1..=FRAMES {
        let mut slot = sender.next(LONG).unwrap().expect("the consumers go on");
        pattern.fill(sequence, sequence, slot.bytes_mut());
        slot.publish_captured(sequence);
    }
    drop(sender);
    for consumer in consumers {
        assert_eq!(consumer.join().unwrap(), FRAMES);
    }
    assert_eq!(frame(&mut watcher).sequence(), FRAMES);
}

#[test]
fn a_lossless_producer_gives_up_who_stops_and_waits_for_nobody_who_has_gone() {
    let name = name("patience");
    let options = StreamOptions::new(picture()).delivery(FrameDelivery::Lossless).slots(3);
    let mut sender = create(&name, &options.clone().patience(LONG));
    let mut slow = FrameReceiver::attach(&name, FrameChoice::Every).unwrap();
    for value in 1..=3 {
        send(&mut sender, value);
    }
    assert!(sender.next(Duration::from_millis(1)).unwrap().is_none(), "nothing has been released");
    assert_eq!(frame(&mut slow).sequence(), 1);
    send(&mut sender, 4);
    assert!(sender.next(Duration::from_millis(1)).unwrap().is_none());
    drop(slow);
    assert!(sender.next(LONG).unwrap().is_some(), "the only consumer has gone");
    drop(sender);

    let mut sender = create(&name, &options.patience(Duration::ZERO));
    let mut slow = FrameReceiver::attach(&name, FrameChoice::Every).unwrap();
    for value in 1..=4 {
        send(&mut sender, value);
    }
    assert!(matches!(slow.receive(LONG), Err(Error::CutOff)));
}

#[test]
fn names_belong_to_one_producer_and_are_free_once_it_has_ended() {
    let name = name("taken");
    let options = StreamOptions::new(picture());
    assert!(matches!(FrameReceiver::attach(&name, FrameChoice::Newest), Err(Error::NoSender(_))));
    let sender = create(&name, &options);
    assert!(matches!(FrameSender::create(&name, &options), Err(Error::Taken(_))));
    drop(sender);
    drop(create(&name, &options));
    let long = "x".repeat(limits::NAME_BYTES_MAX + 1);
    for wrong in ["", "a/b", "a b", "\0", &long] {
        assert!(matches!(FrameSender::create(wrong, &options), Err(Error::Name(_))), "{wrong}");
    }
    for slots in [limits::SLOTS_MIN - 1, limits::SLOTS_MAX + 1] {
        assert!(matches!(FrameSender::create(&name, &options.clone().slots(slots)), Err(Error::Slots(_))));
    }
}

#[test]
fn one_consumer_too_many_is_refused_and_a_place_that_is_left_is_given_again() {
    let name = name("full");
    let sender = create(&name, &StreamOptions::new(picture()));
    let mut consumers: Vec<_> = (0..limits::CONSUMERS_MAX)
        .map(|_| FrameReceiver::attach(&name, FrameChoice::Newest).unwrap())
        .collect();
    assert!(sender.wait_for_consumers(limits::CONSUMERS_MAX, LONG));
    assert!(matches!(FrameReceiver::attach(&name, FrameChoice::Newest), Err(Error::Full)));
    consumers.pop();
    // The producer's thread learns of it at some time.
    let again = || FrameReceiver::attach(&name, FrameChoice::Newest);
    while let Err(error) = again() {
        assert!(matches!(error, Error::Full), "{error}");
        std::thread::yield_now();
    }
}

#[test]
fn who_says_what_makes_no_sense_is_closed_and_nobody_else_notices() {
    let name = name("nonsense");
    let mut sender = create(&name, &StreamOptions::new(picture()));
    let mut receiver = FrameReceiver::attach(&name, FrameChoice::Newest).unwrap();
    let user = rustix::process::geteuid().as_raw();
    let address = SocketAddr::from_abstract_name(format!("caravan-frames/{user}/{name}")).unwrap();
    // Says nothing, and stays.
    let silent = UnixStream::connect_addr(&address).unwrap();
    for nonsense in
        [&[0xff; 48][..], &[0; 200], b"frames/1 and then no address of a doorway at all", b"short"]
    {
        let mut stranger = UnixStream::connect_addr(&address).unwrap();
        stranger.set_read_timeout(Some(LONG)).unwrap();
        // The other end may close before it has read everything.
        let _ = stranger.write_all(nonsense);
        stranger.shutdown(Shutdown::Write).unwrap_or_default();
        match stranger.read(&mut [0]) {
            Ok(0) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
            other => panic!("{other:?}"),
        }
    }
    send(&mut sender, 1);
    assert_eq!(frame(&mut receiver).sequence(), 1);
    assert_eq!(sender.consumers(), 1);
    drop(silent);
}

//! Producers and consumers that are killed (SIGKILL) at any moment, and come back; consumers that are stopped (SIGSTOP).
//!
//! `CARAVAN_KILLS` is the number of kills, 20 without it. `CARAVAN_SEED` repeats a run.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use caravan_frames::pattern::Pattern;
use caravan_frames::{FrameChoice, FrameReceiver, FrameSender, Received, StreamOptions};
use rustix::process::{Pid, Signal, kill_process};

use crate::{LONG, frame, name, picture};

/// This program again, as one side of a stream. Killed when this value is dropped.
struct Side {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Side {
    fn start(role: &str, stream: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", &format!("kills::{role}"), "--quiet", "--nocapture"])
            .env("CARAVAN_STREAM", stream)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self { child, output }
    }

    /// Waits until the side says that it has sent or got a frame.
    fn until_frame(&mut self) {
        loop {
            let mut line = String::new();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "a side has ended by itself");
            assert!(!line.contains("TORN"), "{line}");
            if line.starts_with("frame ") {
                return;
            }
        }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        let mut rest = String::new();
        let is_read = self.output.read_to_string(&mut rest);
        if !std::thread::panicking() {
            assert!(is_read.is_ok() && !rest.contains("TORN"), "{rest}");
        }
    }
}

fn stream() -> String {
    std::env::var("CARAVAN_STREAM").unwrap()
}

/// Sends frames, so fast that a consumer is often overtaken, and so slowly that it does not starve.
#[test]
#[ignore = "is run by another test, as a process of its own"]
fn producer() {
    let mut sender = FrameSender::create(&stream(), &StreamOptions::new(picture()).slots(3)).unwrap();
    let pattern = Pattern::new(picture()).unwrap();
    loop {
        let mut slot = sender.next(Duration::ZERO).unwrap().unwrap();
        let sequence = slot.sequence();
        pattern.fill(sequence, sequence, slot.bytes_mut());
        slot.publish_captured(sequence);
        if sequence == 1 {
            println!("frame 1");
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Takes frames from whoever sends them, and checks those that are good.
#[test]
#[ignore = "is run by another test, as a process of its own"]
fn consumer() {
    let pattern = Pattern::new(picture()).unwrap();
    loop {
        let Ok(mut receiver) = FrameReceiver::attach_within(&stream(), FrameChoice::Newest, LONG) else {
            continue;
        };
        let mut has_said = false;
        while let Received::Frame(view) = receiver.receive(LONG).unwrap() {
            let sequence = view.sequence();
            match view.read(|pixels| pattern.check(Some(sequence), |at, to| pixels.copy_out(at, to))) {
                Ok(Ok(_)) if !has_said => {
                    println!("frame {sequence}");
                    has_said = true;
                }
                Ok(Ok(_)) | Err(_) => {}
                Ok(Err(fault)) => println!("TORN {fault}"),
            }
        }
    }
}

/// xorshift64 (Marsaglia 2003).
fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn whoever_is_killed_the_others_go_on() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let kills = number("CARAVAN_KILLS").unwrap_or(20);
    let mut seed = number("CARAVAN_SEED").unwrap_or_else(|| u64::from(std::process::id()) + 1);
    println!("CARAVAN_SEED={seed}");
    let name = name("kills");
    let mut producer = Side::start("producer", &name);
    producer.until_frame();
    let mut consumers: Vec<_> = (0..2).map(|_| Side::start("consumer", &name)).collect();
    consumers.iter_mut().for_each(Side::until_frame);
    for _ in 0..kills {
        std::thread::sleep(Duration::from_micros(random(&mut seed) % 5_000));
        match random(&mut seed) % 3 {
            0 => {
                // The old one must have ended before its name is free.
                drop(producer);
                producer = Side::start("producer", &name);
                producer.until_frame();
                // Both find the new one, and get whole frames of it.
                consumers.iter_mut().for_each(Side::until_frame);
            }
            which => {
                let side = &mut consumers[which as usize - 1];
                *side = Side::start("consumer", &name);
                side.until_frame();
            }
        }
    }
    // Nothing of those who were killed is left at the producer that lives.
    drop(consumers);
    drop(producer);
    let sender = FrameSender::create(&name, &StreamOptions::new(picture())).expect("the name is free");
    assert_eq!(sender.consumers(), 0);
}

#[test]
fn a_producer_keeps_nothing_of_those_who_were_killed() {
    let name = name("leaks");
    let mut producer = Side::start("producer", &name);
    producer.until_frame();
    let open = || std::fs::read_dir(format!("/proc/{}/fd", producer.child.id())).unwrap().count();
    let before = open();
    for _ in 0..3 {
        let mut consumers: Vec<_> = (0..3).map(|_| Side::start("consumer", &name)).collect();
        consumers.iter_mut().for_each(Side::until_frame);
        assert!(open() > before);
        drop(consumers);
        let begun = Instant::now();
        while open() != before {
            assert!(begun.elapsed() < LONG, "the producer keeps descriptors of consumers that have died");
            std::thread::yield_now();
        }
    }
}

#[test]
fn who_is_stopped_costs_the_others_nothing() {
    const FRAMES: u64 = 2_000;
    let name = name("stopped");
    let mut sender = FrameSender::create(&name, &StreamOptions::new(picture())).unwrap();
    let pattern = Pattern::new(picture()).unwrap();
    let send = |sender: &mut FrameSender| {
        let mut slot = sender.next(Duration::ZERO).unwrap().expect("there always is room");
        let sequence = slot.sequence();
        pattern.fill(sequence, sequence, slot.bytes_mut());
        slot.publish_captured(sequence);
    };
    send(&mut sender);
    let mut stopped = Side::start("consumer", &name);
    stopped.until_frame();
    stopped.signal(Signal::STOP);
    let mut receiver = FrameReceiver::attach(&name, FrameChoice::Newest).unwrap();
    assert_eq!(frame(&mut receiver).sequence(), 1);
    for sequence in 2..=FRAMES {
        send(&mut sender);
        let view = frame(&mut receiver);
        assert_eq!((view.sequence(), view.dropped()), (sequence, 0));
    }
    assert_eq!(sender.consumers(), 2);
    // It goes on where the others are, and leaves when the producer does not see it any more.
    stopped.signal(Signal::CONT);
    drop(stopped);
    let begun = Instant::now();
    while sender.consumers() > 1 {
        assert!(begun.elapsed() < LONG, "a consumer that has died is still counted");
        std::thread::yield_now();
    }
}

#[test]
fn a_producer_that_dies_is_noticed_and_its_last_frame_stays() {
    let name = name("dies");
    let mut producer = Side::start("producer", &name);
    producer.until_frame();
    let mut receiver = FrameReceiver::attach(&name, FrameChoice::Newest).unwrap();
    drop(frame(&mut receiver));
    drop(producer);
    // At most one frame is newer than the one that was taken before the producer died.
    if let Received::Frame(view) = receiver.receive(LONG).unwrap() {
        let sequence = view.sequence();
        let checked = view.read(|pixels| {
            Pattern::new(picture()).unwrap().check(Some(sequence), |at, to| pixels.copy_out(at, to))
        });
        assert!(matches!(checked, Ok(Ok(_))), "nobody is left who could overwrite it: {checked:?}");
    }
    assert!(matches!(receiver.receive(LONG).unwrap(), Received::Gone));
}

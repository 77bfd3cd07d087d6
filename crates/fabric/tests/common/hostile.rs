//! A peer that writes wherever it can what a fuzzer or a seed decides, and its victim.
//!
//! The victim may see wrong bytes, because such a peer could have sent them anyway. It must not panic,
//! must not reach outside, and must end with an error that names the violation.

use std::sync::atomic::Ordering;

use caravan_fabric::contract::{Armed, Endpoint, Local, Operation};
use caravan_fabric::sim::World;
use caravan_fabric::{Error, Link, RING_BYTES_MIN, shm};
use caravan_ring::HEADER_BYTES;
use caravan_ring::record::LengthReader;
use caravan_segment::SharedSlice;

use super::pair::shm_ends;

/// The longest record that the victim takes.
pub const RECORD_BYTES_MAX: u32 = 10_000;
/// The offsets of the words in a ring's header.
const WORDS: [usize; 4] = [0, 128, 256, 384];

/// Decisions, read from a run of bytes until its end.
#[derive(Debug)]
pub struct Input<'a> {
    bytes: &'a [u8],
}

impl<'a> Input<'a> {
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.bytes.split_first()?;
        self.bytes = rest;
        Some(*first)
    }

    /// Reads a number; zeros follow the last byte of the input.
    fn number(&mut self) -> u64 {
        let mut word = [0; 8];
        let length = self.bytes.len().min(8);
        word[..length].copy_from_slice(&self.bytes[..length]);
        self.bytes = &self.bytes[length..];
        u64::from_le_bytes(word)
    }

    fn size(&mut self) -> usize {
        (u64::from(self.byte().unwrap_or(0)) << (self.byte().unwrap_or(0) % 8)) as usize
    }
}

/// The peer's memory is mapped: it writes to the words, the bytes and the immediates of both rings.
pub fn through_mapped_memory(input: &[u8]) {
    let arena_bytes = Link::mapped_arena_bytes(RING_BYTES_MIN).unwrap();
    let (victim, attacker) = shm_ends(arena_bytes);
    let theirs = attacker.peer_arena().unwrap().clone();
    let everything = theirs.segment().slice(0, theirs.segment().maximum_bytes()).unwrap();
    let arenas = [theirs, attacker.arena().clone()];
    let mut victim = Victim::new(Box::new(victim));
    let mut input = Input::new(input);
    while let Some(choice) = input.byte() {
        if choice < 160 {
            if victim.act(choice, &mut input).is_err() {
                return;
            }
        } else {
            scribble(choice, &mut input, &arenas, &everything);
        }
    }
}

fn scribble(choice: u8, input: &mut Input<'_>, arenas: &[SharedSlice; 2], everything: &SharedSlice) {
    let arena = &arenas[usize::from(choice & 1)];
    let word = arena.word(WORDS[usize::from(choice >> 1 & 3)]);
    match choice >> 3 & 3 {
        0 => word.store(input.number(), Ordering::Relaxed),
        1 => {
            let _ = word.fetch_add(input.size() as u64, Ordering::Relaxed);
        }
        2 => {
            let _ = word.fetch_sub(input.size() as u64, Ordering::Relaxed);
        }
        _ => {
            let at = input.number() % (everything.bytes() / 8);
            everything.word(at as usize * 8).store(input.number(), Ordering::Relaxed);
        }
    }
}

/// A victim that does what `input` says until it notices, while another thread scribbles.
pub fn work(endpoint: Box<dyn Endpoint>, input: &[u8]) {
    let mut victim = Victim::new(endpoint);
    let mut input = Input::new(input);
    while let Some(choice) = input.byte() {
        if victim.act(choice, &mut input).is_err() {
            return;
        }
    }
}

/// The peer reaches the victim's memory by one-sided writes and immediates only.
pub fn through_operations(input: &[u8]) {
    let mut input = Input::new(input);
    let arena_bytes = Link::arena_bytes(RING_BYTES_MIN).unwrap();
    let seed = input.number();
    let (_network, victim, mut attacker) = World::pair(seed, arena_bytes, World::capabilities(seed)).unwrap();
    let mut victim = Victim::new(Box::new(victim));
    let mut events = Vec::new();
    while let Some(choice) = input.byte() {
        if choice < 128 {
            if victim.act(choice, &mut input).is_err() {
                return;
            }
            continue;
        }
        attacker.arena().word(0).store(input.number(), Ordering::Relaxed);
        let to = match choice & 3 {
            0 => input.number() % (arena_bytes - 64),
            1 => WORDS[usize::from(choice >> 2 & 3)] as u64,
            2 => HEADER_BYTES as u64 + RING_BYTES_MIN + WORDS[usize::from(choice >> 2 & 3)] as u64,
            _ => HEADER_BYTES as u64,
        };
        let immediate = (choice & 64 != 0).then(|| match choice >> 4 & 3 {
            0 => input.number() as u32,
            1 => input.size() as u32,
            2 => 1 << 31 | input.size() as u32,
            _ => u32::MAX,
        });
        let from = Local { offset: 0, bytes: u32::from(choice >> 2 & 15) };
        let posted = attacker.post(Operation::Write { from, to, immediate, context: 0 });
        assert!(matches!(posted, Ok(()) | Err(Error::Full(_))), "{posted:?}");
        attacker.doorbell().unwrap();
        attacker.poll(&mut events, 64).unwrap();
    }
}

/// The bytes are a stream of records, cut at the ring's size: the ring must read them as a plain parser does.
pub fn as_records(input: &[u8]) {
    let (left, right) = shm_ends(Link::mapped_arena_bytes(RING_BYTES_MIN).unwrap());
    let mut sender = Link::new(Box::new(left), RING_BYTES_MIN).unwrap();
    let mut victim = Victim::new(Box::new(right));
    let mut sent = 0;
    let mut error = None;
    while error.is_none() && (sent < input.len() || victim.link.refresh().unwrap() > 0) {
        sent += sender.append(&input[sent..]).unwrap();
        sender.publish().unwrap();
        error = victim.read_records().err();
        victim.link.release().unwrap();
    }
    let (lengths, too_long) = parse(input);
    assert_eq!(victim.lengths, lengths);
    assert_eq!(error.is_some(), too_long, "{error:?}");
}

fn parse(mut stream: &[u8]) -> (Vec<u32>, bool) {
    let mut lengths = Vec::new();
    while let Some((prefix, rest)) = stream.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(*prefix);
        if length > RECORD_BYTES_MAX {
            return (lengths, true);
        }
        lengths.push(length);
        stream = rest.get(length as usize..).unwrap_or_default();
    }
    (lengths, false)
}

/// The bytes are a descriptor, which is only parsed: connecting would allocate the memory that
/// it asks for.
pub fn as_descriptor(input: &[u8]) {
    match shm::offered_arena_bytes(input) {
        Ok(bytes) => assert!(bytes > 0 && bytes <= shm::ARENA_BYTES_MAX && bytes % 8 == 0),
        Err(error) => assert!(matches!(error, Error::Protocol(..) | Error::Segment(_)), "{error}"),
    }
}

/// The side that must withstand the peer.
#[derive(Debug)]
struct Victim {
    link: Link,
    records: LengthReader,
    missing: usize,
    lengths: Vec<u32>,
    buffer: Vec<u8>,
}

impl Victim {
    fn new(endpoint: Box<dyn Endpoint>) -> Self {
        let link = Link::new(endpoint, RING_BYTES_MIN).unwrap();
        let records = LengthReader::new(RECORD_BYTES_MAX);
        Self { link, records, missing: 0, lengths: Vec::new(), buffer: vec![0; 1 << 16] }
    }

    /// Does one action; any error but the expected ones fails the test.
    fn act(&mut self, choice: u8, input: &mut Input<'_>) -> Result<(), Error> {
        let result = self.try_act(choice, input);
        if let Err(error) = &result {
            assert!(matches!(error, Error::Corrupt(_) | Error::Protocol(..)), "{error}");
            assert!(error.to_string().contains("peer"), "whose fault is it: {error}");
        }
        assert!(self.link.outbound_used_bytes() <= self.link.ring_bytes());
        assert!(self.link.inbound_used_bytes() <= self.link.ring_bytes());
        result
    }

    fn try_act(&mut self, choice: u8, input: &mut Input<'_>) -> Result<(), Error> {
        match choice % 12 {
            0 => drop(self.link.append(&vec![0x5A; input.size()])?),
            1 => {
                let length = self.link.claim(input.size())?.length();
                self.link.commit(length.min(input.size()));
            }
            2 => self.link.publish()?,
            3 => drop(self.link.refresh()?),
            4 => drop(self.link.read(&mut self.buffer[..input.size()])),
            5 => {
                let spans = self.link.poll(input.size())?;
                let window = self.link.inbound_slice();
                for span in [spans.first, spans.second] {
                    window.copy_out(span.offset, &mut self.buffer[..span.length]);
                }
                self.link.skip(input.size().min(self.link.unread()));
            }
            6 => self.link.release()?,
            7 => {
                if self.link.arm(input.size())? == Armed::Wait {
                    self.link.acknowledge()?;
                }
                self.link.awake();
            }
            8 => drop(self.link.room()?),
            9 => drop(self.link.is_settled()?),
            10 => self.link.check_peer()?,
            _ => self.read_records()?,
        }
        Ok(())
    }

    fn read_records(&mut self) -> Result<(), Error> {
        self.link.refresh()?;
        while self.link.unread() > 0 {
            if self.missing > 0 {
                let wanted = self.missing.min(self.buffer.len());
                self.missing -= self.link.read(&mut self.buffer[..wanted]);
                continue;
            }
            let length = self.records.next(self.link.inbound());
            if let Some(length) =
                length.map_err(|error| Error::Protocol(self.link.provider(), error.to_string()))?
            {
                self.lengths.push(length);
                self.missing = length as usize;
            }
        }
        Ok(())
    }
}

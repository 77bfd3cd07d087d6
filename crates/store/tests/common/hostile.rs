//! Bytes that somebody else makes up: a client's calls, and a file that is loaded. The tests call this with random
//! bytes, and the fuzzer with its own (`fuzz/`).

use std::sync::Arc;
use std::time::Duration;

use caravan_fabric::{Error, RegionToken};
use caravan_store::calls::{CallService, ClientSessions, RegionLender};
use caravan_store::{Store, StoreError, StoreOptions};

/// Lends nothing.
pub struct NoLender;

impl RegionLender for NoLender {
    fn lend(&mut self, _: u32) -> Result<Vec<(u64, RegionToken)>, Error> {
        Ok(Vec::new())
    }
}

/// Returns a call: its number, its kind and its body.
pub fn call(number: u32, kind: u16, body: &[u8]) -> Vec<u8> {
    let head = [(body.len() as u32).to_be_bytes(), number.to_be_bytes()].concat();
    [&head[..], &kind.to_be_bytes(), &[0; 2], body].concat()
}

/// Calls whose bodies are made up: each takes a byte for its kind, one for the length of its body, and the body.
pub fn as_call_bodies(mut input: &[u8]) {
    let mut calls = Vec::new();
    while let [kind, bytes, rest @ ..] = input {
        let (body, rest) = rest.split_at(rest.len().min(usize::from(*bytes)));
        calls.extend(call(1, u16::from(*kind), body));
        input = rest;
    }
    as_calls(&calls);
}

/// All that a client sends over a link: the store stays sound, and nothing of the client stays when it has gone.
pub fn as_calls(input: &[u8]) {
    let store = Arc::new(Store::embedded(StoreOptions::new(8 << 20)).expect("a store"));
    for number in 0..16_u8 {
        store.put(&[number], &[number; 30]).expect("room");
        store.alloc(usize::from(number), None).expect("room");
    }
    let sessions = Arc::new(ClientSessions::new(&store).expect("sessions"));
    let mut service = CallService::new(Arc::clone(&store), Arc::clone(&sessions));
    let (mut output, mut taken) = (Vec::new(), 0);
    while let Ok((more @ 1.., _)) = service.serve(&input[taken..], &mut output, &mut NoLender) {
        taken += more;
        assert!(output.len() < 64 << 20, "the replies have no limit");
        output.clear();
    }
    drop(service);
    for id in store.undecided(Duration::ZERO) {
        store.decide(id, false).expect("undone");
    }
    sessions.close_absent(&store, Duration::ZERO).expect("closed");
    assert_eq!(store.sessions().expect("sessions"), []);
    store.audit().expect("sound");
}

/// A file that is loaded.
pub fn as_snapshot(file: &[u8]) {
    let store = Store::embedded(StoreOptions::new(8 << 20)).expect("a store");
    let result = store.load(file);
    store.audit().expect("sound");
    match result {
        Ok(_) => {
            let (mut saved, mut again) = (Vec::new(), Vec::new());
            store.save(&mut saved).expect("saved");
            let other = Store::embedded(StoreOptions::new(8 << 20)).expect("a store");
            other.load(&saved[..]).expect("what was saved can be loaded");
            assert_eq!(other.counts().keys, store.counts().keys);
            other.save(&mut again).expect("saved");
            assert_eq!(again.len(), saved.len());
        }
        // It says so in words for whoever has the file, and leaves nothing of it.
        Err(error) => {
            assert_eq!(store.counts().keys, 0, "{error}");
            assert!(!matches!(error, StoreError::Damaged(_)), "{error}");
        }
    }
}

/// A file whose records are made up, and whose checksums and number of records are right: nothing else would let a
/// fuzzer come as far as the records. The first byte is the number of records.
pub fn as_snapshot_records(input: &[u8]) {
    const RECORDS: u32 = 1;
    const END: u32 = 2;
    let Some((count, records)) = input.split_first() else { return };
    let mut file = b"caravan snapshot\x01\0\0\0\0\0\0\0".to_vec();
    add_chunk(&mut file, RECORDS, records);
    add_chunk(&mut file, END, &u64::from(*count).to_le_bytes());
    as_snapshot(&file);
}

fn add_chunk(file: &mut Vec<u8>, kind: u32, bytes: &[u8]) {
    let head = [(bytes.len() as u32).to_le_bytes(), kind.to_le_bytes()].concat();
    let covered = [&(file.len() as u64).to_le_bytes()[..], &head, bytes].concat();
    let checksum = twox_hash::XxHash3_64::oneshot(&covered).to_le_bytes();
    file.extend([&head[..], &checksum, bytes].concat());
}

//! An owner that is killed while it writes: readers go on.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use caravan_segment::passing::{self, Doorway, DoorwayAddress};
use caravan_store::faults::PlantedFault;
use caravan_store::{Reader, Store, StoreError, StoreOptions};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::children;

const KEYS: u32 = 2000;

/// Makes a store, hands it over to its parent, and writes until it is killed.
pub fn own(descriptor: OwnedFd, _: bool) -> Result<(), String> {
    let mut bytes = [0; DoorwayAddress::BYTES];
    std::fs::File::from(descriptor).read_exact(&mut bytes).map_err(|error| error.to_string())?;
    let address = DoorwayAddress::from_bytes(&bytes).map_err(|error| error.to_string())?;
    let store = Store::embedded(StoreOptions::new(64 << 20)).map_err(|error| error.to_string())?;
    let put = |key: u32, round: u8| {
        store
            .put(&key.to_ne_bytes(), &vec![round; 100 + usize::from(round) * 40])
            .map_err(|error| error.to_string())
    };
    (0..KEYS).try_for_each(|key| put(key, 0))?;
    let ours = store.reader_descriptor().map_err(|error| error.to_string())?;
    passing::send(&address, b"", &[ours.as_fd()]).map_err(|error| error.to_string())?;
    loop {
        for round in 1..=20 {
            (0..KEYS).try_for_each(|key| put(key, round))?;
        }
    }
}

#[test]
fn readers_go_on_when_the_owner_is_killed() {
    for _ in 0..2 {
        let (doorway, address) = Doorway::listen().unwrap();
        let (theirs, ours) = rustix::pipe::pipe().unwrap();
        let owner = children::start("owner", None, theirs);
        std::fs::File::from(ours).write_all(&address.to_bytes()).unwrap();
        let begin = Instant::now();
        let delivery = loop {
            match doorway.accept() {
                Ok(delivery) => break delivery,
                Err(_) if begin.elapsed() < Duration::from_secs(60) => std::thread::yield_now(),
                Err(error) => panic!("{error}"),
            }
        };
        let reader = Reader::open(delivery.descriptors.into_iter().next().unwrap()).unwrap();
        let mut owner = Some(owner);
        let mut locked = 0;
        for round in 0..3 {
            for key in 0..KEYS {
                match reader.get(&key.to_ne_bytes()) {
                    Ok(value) => {
                        let value = value.expect("a key is missing");
                        assert!(value.iter().all(|byte| *byte == value[0]));
                        assert_eq!(value.len(), 100 + usize::from(value[0]) * 40);
                    }
                    // The one key that was being written.
                    Err(StoreError::Contended) => locked += 1,
                    Err(error) => panic!("{error}"),
                }
            }
            if round == 0 {
                drop(owner.take());
            }
        }
        assert!(locked <= 2, "{locked} reads failed");
    }
}

/// Owns the memory of its parent, and counts a key up until it is killed.
pub fn own_lent(memory: OwnedFd, _: bool) -> Result<(), String> {
    let text = |error: StoreError| error.to_string();
    let store = Store::open(memory, StoreOptions::new(LENT_BYTES)).map_err(text)?;
    (0_u64..).try_for_each(|number| store.put(COUNT, &number.to_ne_bytes())).map_err(text)
}

const LENT_BYTES: u64 = 16 << 20;
const COUNT: &[u8] = b"count";

/// Returns what an owner counts, once it is more than `least`.
fn count_above(reader: &Reader, least: Option<u64>) -> u64 {
    let begin = Instant::now();
    loop {
        // What is locked is not to be waited for here: its owner may be stopped.
        let value = reader.get(COUNT).ok().flatten();
        let number = value.and_then(|value| Some(u64::from_ne_bytes(*value.first_chunk()?)));
        match number {
            Some(number) if Some(number) > least => return number,
            _ => assert!(begin.elapsed() < Duration::from_secs(60), "nobody counts: {number:?}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Tries to become the owner of a memory while its owner is stopped, which goes on writing afterwards, and once that is
/// killed. Returns what went wrong.
fn follow_an_owner(fault: Option<PlantedFault>) -> Result<(), String> {
    let memory = Store::new_memory("lent").unwrap();
    let open = || Store::open(memory.try_clone().unwrap(), StoreOptions::new(LENT_BYTES));
    let mut owner = children::start("lent", fault, memory.try_clone().unwrap());
    let reader = until_there_is_a_store(&memory);
    let before = count_above(&reader, None);
    kill_process(owner.pid(), Signal::STOP).unwrap();
    match open() {
        Err(StoreError::Owned) => {}
        Ok(_) => return Err("there are two owners".to_owned()),
        // It has looked into the log while the other one, whom the signal had not reached yet, wrote there.
        Err(error @ StoreError::Damaged(_)) => return Err(format!("there are two owners: {error}")),
        Err(error) => return Err(error.to_string()),
    }
    kill_process(owner.pid(), Signal::CONT).unwrap();
    count_above(&reader, Some(before));
    kill_process(owner.pid(), Signal::KILL).unwrap();
    // Whoever can open it now can write alone, also before anybody has waited for the other one.
    let store = open().map_err(|error| error.to_string())?;
    let found = store.version(COUNT).unwrap();
    owner.wait();
    assert_eq!(store.version(COUNT).unwrap(), found);
    store.audit().map_err(|error| error.to_string())
}

fn until_there_is_a_store(memory: &OwnedFd) -> Reader {
    let begin = Instant::now();
    loop {
        match Reader::open(memory.try_clone().unwrap()) {
            Ok(reader) => return reader,
            Err(error) => assert!(begin.elapsed() < Duration::from_secs(60), "{error}"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_memory_has_no_new_owner_while_a_stopped_one_may_write() {
    assert_eq!(follow_an_owner(None), Ok(()));
    let planted = follow_an_owner(Some(PlantedFault::UnlockedMemory));
    assert!(planted.is_err_and(|error| error.starts_with("there are two owners")));
}

/// A child of fork(2) has all that the owner has: it is told that it is none, and its parent goes on.
#[test]
fn a_child_of_the_owner_is_no_owner() {
    let store = Store::embedded(StoreOptions::new(16 << 20)).unwrap();
    store.put(b"k", b"of the owner").unwrap();
    // SAFETY: the child only calls what takes no lock, and then ends without destructors.
    match unsafe { libc::fork() } {
        0 => {
            let refused = [store.put(b"k", b"of the child"), store.clear(), store.delete(b"k").map(drop)];
            let is_refused = refused.iter().all(|result| matches!(result, Err(StoreError::Forked)));
            // SAFETY: it ends the process.
            unsafe { libc::_exit(if is_refused { 0 } else { children::CAUGHT }) }
        }
        child => {
            let (_, status) = waitpid(Pid::from_raw(child), WaitOptions::empty()).unwrap().unwrap();
            assert_eq!(status.exit_status(), Some(0));
        }
    }
    assert_eq!(store.get(b"k").unwrap().as_deref(), Some(&b"of the owner"[..]));
    store.put(b"k", b"of the owner again").unwrap();
    store.audit().unwrap();
}

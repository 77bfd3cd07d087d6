//! An owner that is killed while it writes: readers go on.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use caravan_segment::passing::{self, Doorway, DoorwayAddress};
use caravan_store::{Reader, Store, StoreError, StoreOptions};

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

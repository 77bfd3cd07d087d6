//! Torn-read hunters: a writer changes values of every size all the time, and a client over TCP checks that each value
//! that it reads is one that was written.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use caravan_store::Store;
use caravan_store::faults::PlantedFault;

use crate::children;
use crate::rig::{Rig, far};

const KEYS: u64 = 8;
/// The sizes of values, of which objects of both kinds arise: those read one-sided, and longer ones.
const SIZES: [usize; 8] = [1, 9, 200, 2000, 3900, 3900, 3900, 20_000];

/// Returns the key of a round: each second time the same one, at which reader and writer meet.
fn key_of(round: u64) -> u64 {
    if round % 2 == 0 { 4 } else { round / 2 % KEYS }
}

/// Returns a value of which every part says which value it is.
fn value(number: u64, bytes: usize) -> Vec<u8> {
    number.to_ne_bytes().iter().copied().cycle().take(bytes).collect()
}

fn is_whole(value: &[u8]) -> bool {
    value.iter().zip(value.iter().skip(8)).all(|(byte, later)| byte == later)
}

/// The one-sided reads of a short hunt; `CARAVAN_READS` says how many times these. Where a fault is planted, it ends at
/// the first torn value, however long that takes.
const READS: u64 = 20_000;

/// Reads at `address` until a value is torn, or it is enough.
pub fn read(address: &str, has_fault: bool) -> Result<(), String> {
    let client = Store::connect(address).map_err(|error| error.to_string())?;
    let times = std::env::var("CARAVAN_READS").map_or(1, |times| times.parse().expect("a number"));
    for round in 0_u64.. {
        let key = key_of(round).to_ne_bytes();
        let value = client.get(&key).map_err(|error| error.to_string())?;
        let value = value.ok_or("a key that is there was not found")?;
        if !is_whole(&value) {
            return Err(format!("a value of {} bytes is torn", value.len()));
        }
        let one_sided = client.one_sided_reads();
        if !has_fault && one_sided > READS * times {
            return Ok(());
        }
        // Nearly every lookup of a key whose place is known is one-sided.
        if round > 1000 && one_sided < round / 10 {
            return Err(format!("{round} lookups were {one_sided} reads"));
        }
    }
    Ok(())
}

fn hunt(fault: Option<PlantedFault>) -> i32 {
    let rig = Rig::new();
    (0..KEYS).for_each(|key| rig.store.put(&key.to_ne_bytes(), &value(0, SIZES[key as usize])).unwrap());
    let (is_done, number) = (AtomicBool::new(false), AtomicU64::new(1));
    std::thread::scope(|scope| {
        let (store, is_done, number) = (&rig.store, &is_done, &number);
        scope.spawn(move || {
            while !is_done.load(Ordering::Relaxed) {
                let next = number.fetch_add(1, Ordering::Relaxed);
                let key = key_of(next);
                // Mostly in its place, and now and then elsewhere.
                let bytes =
                    if next % 64 == key { SIZES[(next / 64 % 8) as usize] } else { SIZES[key as usize] };
                store
                    .put(&key.to_ne_bytes(), &value(next.wrapping_mul(0x9e37_79b9_7f4a_7c15), bytes))
                    .unwrap();
            }
        });
        let status = children::start("hunter", &rig.address(far()), fault).status();
        is_done.store(true, Ordering::Relaxed);
        status
    })
}

#[test]
fn one_sided_reads_are_never_torn() {
    assert_eq!(hunt(None), 0);
}

#[test]
fn the_hunter_catches_a_torn_read() {
    assert_eq!(hunt(Some(PlantedFault::TornRead)), children::CAUGHT);
}

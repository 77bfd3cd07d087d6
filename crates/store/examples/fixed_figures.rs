//! Measures fixed tables beside the keys of a store: `cargo run --release -p caravan-store --example fixed_figures
//! [KEYS]`.
//!
//! The keys have 16 bytes and the values 32. Times are those that the thread has had a core.

use std::error::Error;
use std::hint::black_box;

use caravan_store::{FixedTable, Reader, Store, StoreOptions, limits};

/// The slots of a shard with pairs of this size.
const SHARD_SLOTS: u64 = 4 * limits::FIXED_SHARD_BUCKETS_MAX;
const LOOKUPS: u64 = 200_000;

fn key(number: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

/// A cheap random number (splitmix64).
fn random(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ z >> 31
}

fn processor_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// Returns the mean time of 200,000 calls, and the median of the means of 100 of them, in nanoseconds.
fn times(mut call: impl FnMut(u64)) -> (f64, u64) {
    let mut means: Vec<u64> = (0..LOOKUPS / 100)
        .map(|batch| {
            let begin = processor_ns();
            (0..100).for_each(|step| call(100 * batch + step));
            (processor_ns() - begin) / 100
        })
        .collect();
    means.sort_unstable();
    (means.iter().sum::<u64>() as f64 / means.len() as f64, means[means.len() / 2])
}

fn main() -> Result<(), Box<dyn Error>> {
    let keys: u64 = std::env::args().nth(1).map_or(Ok(1_000_000), |keys| keys.parse())?;
    let store = Store::embedded(StoreOptions::new((64 << 20) + 500 * keys))?;

    let before = store.counts().used_bytes;
    let each = SHARD_SLOTS * 9 / 10;
    let tables = keys / each;
    for at in 0..tables {
        let table = store.transaction(|tx| FixedTable::create(tx, 16, 32))?;
        for number in 0..each {
            store.transaction(|tx| table.put(tx, &key(at << 32 | number), &[7; 32]))?;
        }
    }
    let used = store.counts().used_bytes - before;
    println!("shards 90 % full: {:.1} bytes for each pair", used as f64 / (tables * each) as f64);

    let before = store.counts().used_bytes;
    let table = store.transaction(|tx| FixedTable::create(tx, 16, 32))?;
    let begin = processor_ns();
    for number in 0..keys {
        store.transaction(|tx| table.put(tx, &key(number), &[7; 32]))?;
    }
    let insert_ns = (processor_ns() - begin) as f64 / keys as f64;
    let used = store.counts().used_bytes - before;
    println!(
        "a table grown to {keys} pairs: {:.1} bytes for each pair; a new pair takes {insert_ns:.0} ns, growth included",
        used as f64 / keys as f64
    );
    let before = store.counts().used_bytes;
    let begin = processor_ns();
    for number in 0..keys {
        store.put(&key(number), &[7; 32])?;
    }
    let insert_ns = (processor_ns() - begin) as f64 / keys as f64;
    let used = store.counts().used_bytes - before;
    println!(
        "the keys of the store: {:.1} bytes for each pair; a new pair takes {insert_ns:.0} ns, growth included",
        used as f64 / keys as f64
    );

    let reader = Reader::open(store.reader_descriptor()?)?;
    let mut state = 1;
    let mut value = Vec::new();
    let mut report = |what: &str, call: &mut dyn FnMut(u64)| {
        let (mean, median) = times(|_| call(random(&mut state) % keys));
        println!("{what}: mean {mean:.0} ns, median {median} ns, {:.2} M/s", 1e3 / mean);
    };
    for round in 1..=3 {
        println!("round {round}");
        report("mapped get, fixed table", &mut |number| {
            drop(black_box(table.get(&reader, &key(number))));
        });
        report("mapped get, key of the store", &mut |number| {
            value.clear();
            let _ = black_box(reader.get_into(&key(number), &mut value));
        });
        report("put, fixed table", &mut |number| {
            let _ = black_box(store.transaction(|tx| table.put(tx, &key(number), &[8; 32])));
        });
        report("put, key of the store", &mut |number| {
            let _ = black_box(store.put(&key(number), &[8; 32]));
        });
    }
    Ok(())
}

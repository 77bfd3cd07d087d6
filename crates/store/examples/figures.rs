//! Measures reads of a store and the memory for each pair: `cargo run --release -p caravan-store --example
//! figures [KEYS]`.
//!
//! The keys have 16 bytes and the values 32. "Beside a writer" is while another process writes all the time.

use std::error::Error;
use std::io::Read;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::time::Instant;

use caravan_store::{Reader, Store, StoreOptions};

const ROUNDS: usize = 9;

fn key(number: u64) -> [u8; 16] {
    let mut key = *b"key:000000000000";
    let digits = format!("{number:012}");
    key[4..].copy_from_slice(digits.as_bytes());
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

/// Returns the time that this thread has had a core, which other programs on the machine change less than the
/// time that has passed.
fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next();
    if first.as_deref() == Some("--reader") {
        return reader(arguments.next().ok_or("KEYS")?.parse()?);
    }
    let keys: u64 = first.map_or(Ok(1_000_000), |keys| keys.parse())?;
    let store = Store::embedded(StoreOptions::new((64 << 20) + 256 * keys))?;
    let begin = Instant::now();
    for number in 0..keys {
        store.put(&key(number), &[7; 32])?;
    }
    let put_ns = begin.elapsed().as_nanos() as f64 / keys as f64;
    let counts = store.counts();
    println!(
        "{keys} keys: {:.1} bytes each, all included; a new key takes {put_ns:.0} ns",
        counts.used_bytes as f64 / keys as f64
    );
    let mut state = 1;
    let begin = Instant::now();
    for _ in 0..keys {
        store.put(&key(random(&mut state) % keys), &[8; 32])?;
    }
    println!("overwriting a key at random takes {:.0} ns", begin.elapsed().as_nanos() as f64 / keys as f64);
    for is_written in [false, true] {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["--reader", &keys.to_string()])
            .stdin(store.reader_descriptor()?)
            .stdout(Stdio::piped())
            .spawn()?;
        let mut output = child.stdout.take().ok_or("no pipe")?;
        let mut writes = 0_u64;
        while is_written && child.try_wait()?.is_none() {
            for _ in 0..1000 {
                store.put(&key(random(&mut state) % keys), &[9; 32])?;
            }
            writes += 1000;
        }
        let mut text = String::new();
        output.read_to_string(&mut text)?;
        child.wait()?;
        print!("{} ({writes} writes):\n{text}", if is_written { "beside a writer" } else { "alone" });
    }
    Ok(())
}

fn reader(keys: u64) -> Result<(), Box<dyn Error>> {
    let reader = Reader::open(std::io::stdin().as_fd().try_clone_to_owned()?)?;
    let mut state = 42;
    let mut value = Vec::with_capacity(64);
    let mut single: Vec<Vec<u64>> = Vec::new();
    let mut many = Vec::new();
    for _ in 0..ROUNDS {
        let mut took = Vec::with_capacity(200_000);
        for _ in 0..200_000 {
            let key = key(random(&mut state) % keys);
            value.clear();
            let begin = Instant::now();
            let found = reader.get_into(&key, &mut value)?;
            took.push(begin.elapsed().as_nanos() as u64);
            assert!(found.is_some() && value.len() == 32);
        }
        took.sort_unstable();
        single.push([50, 99].map(|percent| took[took.len() * percent / 100]).to_vec());
        let wanted: Vec<_> = (0..2_000_000).map(|_| key(random(&mut state) % keys)).collect();
        let (mut hits, begin) = (0, processor_seconds());
        for keys in wanted.chunks(64) {
            reader.get_many(keys, |_, value| hits += usize::from(value.is_some()))?;
        }
        assert_eq!(hits, wanted.len());
        many.push(wanted.len() as f64 / (processor_seconds() - begin) / 1e6);
    }
    single.sort_unstable();
    many.sort_by(f64::total_cmp);
    let median = &single[ROUNDS / 2];
    println!("  get: p50 {} ns, p99 {} ns (median of {ROUNDS} rounds)", median[0], median[1]);
    println!(
        "  get_many(64): {:.1} M in a second of a core (least {:.1}, greatest {:.1})",
        many[ROUNDS / 2],
        many[0],
        many[ROUNDS - 1]
    );
    Ok(())
}

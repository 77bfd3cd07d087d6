//! YCSB (Cooper et al., "Benchmarking Cloud Serving Systems with YCSB", SoCC 2010): the workloads A to D and F.
//!
//! A record is a key and ten fields of 100 bytes, here one value of 1,000 bytes that is read and written as a whole. Workload E
//! scans keys in their order, which neither the store nor its peers have.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::Error;
use crate::process::failed;
use crate::store::pairs::RandomNumbers;
use crate::workloads::client::{KeyWrite, PlannedTransaction, WorkloadClient};

/// The bytes of a record's value: ten fields of 100 bytes.
pub const RECORD_BYTES: usize = 1000;
/// The skew of YCSB's Zipfian distribution.
const THETA: f64 = 0.99;

/// One of the workloads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum YcsbKind {
    /// Half reads, half updates.
    A,
    /// 95 % reads, 5 % updates.
    B,
    /// Reads.
    C,
    /// 95 % reads of what was inserted lately, 5 % inserts.
    D,
    /// Half reads, half read and modified.
    F,
}

/// What a workload does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum YcsbStep {
    Read(u64),
    Update(u64),
    Insert,
    Modify(u64),
}

/// The records, and how many there are: workload D adds some.
#[derive(Debug)]
pub struct YcsbRecords {
    zipfian: Zipfian,
    first: u64,
    count: AtomicU64,
}

impl YcsbRecords {
    pub fn new(records: u64) -> Arc<Self> {
        Arc::new(Self { zipfian: Zipfian::of(records), first: records, count: AtomicU64::new(records) })
    }

    /// Returns the pairs that are there at first.
    pub fn pairs(&self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        (0..self.first).map(|number| (record_key(number), record(number, 0)))
    }

    fn step(&self, kind: YcsbKind, random: &mut RandomNumbers) -> YcsbStep {
        let rank = self.zipfian.next(random);
        let percent = random.below(100);
        if kind == YcsbKind::D {
            let count = self.count.load(Ordering::Relaxed);
            return if percent < 95 { YcsbStep::Read(count - 1 - rank) } else { YcsbStep::Insert };
        }
        // YCSB scatters the popular records over all of them.
        let number = scattered(rank) % self.first;
        match kind {
            YcsbKind::A if percent < 50 => YcsbStep::Update(number),
            YcsbKind::B if percent < 5 => YcsbStep::Update(number),
            YcsbKind::F if percent < 50 => YcsbStep::Modify(number),
            _ => YcsbStep::Read(number),
        }
    }

    /// Does the next operation of a workload.
    pub fn run(
        &self,
        kind: YcsbKind,
        client: &mut dyn WorkloadClient,
        random: &mut RandomNumbers,
        value: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match self.step(kind, random) {
            YcsbStep::Read(number) => {
                value.clear();
                let is_there = client.get(&record_key(number), value)?;
                // What another thread inserts may not have arrived.
                if is_there || number < self.first {
                    check(number, is_there.then_some(value))
                } else {
                    Ok(())
                }
            }
            YcsbStep::Update(number) => client.put(&record_key(number), &record(number, random.next() as u8)),
            YcsbStep::Insert => {
                let number = self.count.fetch_add(1, Ordering::Relaxed);
                client.put(&record_key(number), &record(number, 0))
            }
            YcsbStep::Modify(number) => client.run(&Modification::of(number, random.next())).map(drop),
        }
    }
}

/// Reads a record and replaces one of its fields.
struct Modification {
    number: u64,
    field: usize,
    keys: [Vec<u8>; 1],
}

impl Modification {
    fn of(number: u64, random: u64) -> Self {
        Self { number, field: 1 + random as usize % 9, keys: [record_key(number)] }
    }
}

impl PlannedTransaction for Modification {
    fn reads(&self) -> &[Vec<u8>] {
        &self.keys
    }

    fn is_read_only(&self) -> bool {
        false
    }

    fn decide(&self, values: &[Option<Vec<u8>>]) -> Result<Vec<KeyWrite>, Error> {
        let value = values.first().and_then(Option::as_ref);
        check(self.number, value)?;
        let mut value = value.cloned().unwrap_or_default();
        value[100 * self.field..][..100].iter_mut().for_each(|byte| *byte = byte.wrapping_add(1));
        Ok(vec![(self.keys[0].clone(), Some(value))])
    }
}

/// Returns the key of a record as YCSB makes it: `user` and the hash of its number.
fn record_key(number: u64) -> Vec<u8> {
    format!("user{:020}", scattered(number)).into_bytes()
}

/// Returns the value of a record, which begins with its key.
fn record(number: u64, filler: u8) -> Vec<u8> {
    let mut value = record_key(number);
    value.resize(RECORD_BYTES, filler);
    value
}

fn check(number: u64, value: Option<&Vec<u8>>) -> Result<(), Error> {
    let is_right =
        value.is_some_and(|value| value.len() == RECORD_BYTES && value.starts_with(&record_key(number)));
    if is_right { Ok(()) } else { Err(failed("workload", &format!("record {number} is wrong or missing"))) }
}

/// FNV-1a of a number's bytes, as YCSB scatters keys.
fn scattered(number: u64) -> u64 {
    number
        .to_le_bytes()
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

/// Ranks from 0 on, of which each is the more probable the lower it is (Gray et al., "Quickly Generating Billion-Record Synthetic
/// Databases", SIGMOD 1994, which YCSB uses).
#[derive(Clone, Copy, Debug)]
struct Zipfian {
    count: f64,
    zeta: f64,
    eta: f64,
}

impl Zipfian {
    fn of(count: u64) -> Self {
        let zeta = |count: u64| (1..=count).map(|rank| (rank as f64).powf(-THETA)).sum::<f64>();
        let (all, two) = (zeta(count), zeta(2));
        let eta = (1.0 - (2.0 / count as f64).powf(1.0 - THETA)) / (1.0 - two / all);
        Self { count: count as f64, zeta: all, eta }
    }

    fn next(&self, random: &mut RandomNumbers) -> u64 {
        let u = random.fraction();
        let uz = u * self.zeta;
        if uz < 1.0 {
            return 0;
        }
        if uz < 1.0 + 0.5_f64.powf(THETA) {
            return 1;
        }
        let rank = self.count * (self.eta * u - self.eta + 1.0).powf(1.0 / (1.0 - THETA));
        rank.min(self.count - 1.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_as_probable_as_zipf_says() {
        const COUNT: u64 = 1000;
        let zipfian = Zipfian::of(COUNT);
        let mut random = RandomNumbers::of(1);
        let mut found = vec![0_u32; COUNT as usize];
        for _ in 0..200_000 {
            found[zipfian.next(&mut random) as usize] += 1;
        }
        for rank in [0, 1, 9, 99] {
            let share = f64::from(found[rank]) / 200_000.0;
            let expected = (rank as f64 + 1.0).powf(-THETA) / zipfian.zeta;
            assert!((share / expected - 1.0).abs() < 0.25, "rank {rank}: {share} {expected}");
        }
    }

    #[test]
    fn operations_are_mixed_as_the_paper_says() {
        let records = YcsbRecords::new(1000);
        let shares = |kind| {
            let mut random = RandomNumbers::of(2);
            let steps: Vec<_> = (0..20_000).map(|_| records.step(kind, &mut random)).collect();
            let share = |is: fn(&YcsbStep) -> bool| {
                (steps.iter().filter(|step| is(step)).count() as f64 / 200.0).round() as u32
            };
            [
                share(|step| matches!(step, YcsbStep::Read(_))),
                share(|step| matches!(step, YcsbStep::Update(_))),
                share(|step| matches!(step, YcsbStep::Insert)),
                share(|step| matches!(step, YcsbStep::Modify(_))),
            ]
        };
        let near = |kind, expected: [u32; 4]| {
            let found = shares(kind);
            assert!(
                found.iter().zip(expected).all(|(found, expected)| found.abs_diff(expected) <= 1),
                "{kind:?} {found:?}"
            );
        };
        near(YcsbKind::A, [50, 50, 0, 0]);
        near(YcsbKind::B, [95, 5, 0, 0]);
        near(YcsbKind::C, [100, 0, 0, 0]);
        near(YcsbKind::D, [95, 0, 5, 0]);
        near(YcsbKind::F, [50, 0, 0, 50]);
    }

    #[test]
    fn a_modification_changes_one_field_of_the_right_record() {
        let modification = Modification::of(7, 3);
        let writes = modification.decide(&[Some(record(7, 0))]).expect("a write");
        let [(key, Some(value))] = &writes[..] else { panic!("one write") };
        assert_eq!(*key, record_key(7));
        assert_eq!(value.iter().filter(|byte| **byte == 1).count(), 100);
        assert!(modification.decide(&[Some(record(8, 0))]).is_err());
        assert!(modification.decide(&[None]).is_err());
    }
}

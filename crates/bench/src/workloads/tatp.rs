//! TATP, the Telecom Application Transaction Processing benchmark (<https://tatpbenchmark.sourceforge.net>): seven transactions on
//! the subscribers of a telephone network, of which 80 % only read.
//!
//! A row is a key and a value. All rows of a subscriber have the subscriber's number as hash tag, so each transaction lies in one
//! part of a store of several servers.
//!
//! | row | key | value |
//! |---|---|---|
//! | SUBSCRIBER | `{number}s` | 44 bytes |
//! | its index by SUB_NBR | `{number}n` | S_ID |
//! | ACCESS_INFO | `{number}aTYPE` | 10 bytes |
//! | SPECIAL_FACILITY | `{number}fTYPE` | IS_ACTIVE, ERROR_CNTRL, DATA_A, DATA_B |
//! | CALL_FORWARDING | `{number}cTYPE-START` | END_TIME and NUMBERX |

use crate::error::Error;
use crate::process::failed;
use crate::store::pairs::RandomNumbers;
use crate::workloads::client::{KeyWrite, PlannedTransaction, WorkloadClient};

/// Where the fields of a SUBSCRIBER row are that are written: BIT_1 and VLR_LOCATION.
const BIT_1_AT: usize = 19;
const LOCATION_AT: usize = 40;
const SUBSCRIBER_BYTES: usize = 44;
/// The times at which call forwarding may begin.
const START_TIMES: [u8; 3] = [0, 8, 16];
/// Where DATA_A is in a SPECIAL_FACILITY row.
const DATA_A_AT: usize = 2;

/// The subscribers.
#[derive(Clone, Copy, Debug)]
pub struct TatpSubscribers {
    count: u64,
    /// The constant A of the distribution of subscribers, by their count.
    spread: u64,
}

/// A transaction and its parameters.
#[derive(Debug)]
pub struct TatpTransaction {
    kind: TatpKind,
    subscriber: u64,
    reads: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TatpKind {
    GetSubscriberData,
    /// Only the rows that begin at this time or before are read, and count if they end after the second one.
    GetNewDestination {
        end: u8,
    },
    GetAccessData,
    UpdateSubscriberData {
        bit: u8,
        data: u8,
    },
    UpdateLocation {
        location: u32,
    },
    InsertCallForwarding {
        end: u8,
    },
    DeleteCallForwarding,
}

fn key(subscriber: u64, row: std::fmt::Arguments<'_>) -> Vec<u8> {
    format!("{{{subscriber:015}}}{row}").into_bytes()
}

impl TatpSubscribers {
    pub fn of(count: u64) -> Self {
        let spread = match count {
            0..=1_000_000 => 65_535,
            1_000_001..=10_000_000 => 1_048_575,
            _ => 2_097_151,
        };
        Self { count, spread }
    }

    /// Returns all rows as they are at first.
    pub fn pairs(self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        (1..=self.count).flat_map(rows)
    }

    /// Returns a subscriber, of which some are more probable than others.
    fn subscriber(self, random: &mut RandomNumbers) -> u64 {
        let (a, b) = (random.below(self.spread + 1), 1 + random.below(self.count));
        (a | b) % self.count + 1
    }

    /// Returns the next transaction of the standard mix.
    fn next(self, random: &mut RandomNumbers) -> TatpTransaction {
        let subscriber = self.subscriber(random);
        let kind = 1 + random.below(4);
        let start = START_TIMES[random.below(3) as usize];
        let end = 1 + random.below(24) as u8;
        let row = |row: std::fmt::Arguments<'_>| key(subscriber, row);
        let index = row(format_args!("n"));
        let (kind, reads) = match random.below(100) {
            0..35 => (TatpKind::GetSubscriberData, vec![row(format_args!("s"))]),
            35..45 => {
                let forwarding = START_TIMES.iter().filter(|begin| **begin <= start);
                let forwarding = forwarding.map(|begin| row(format_args!("c{kind}-{begin}")));
                let reads = std::iter::once(row(format_args!("f{kind}"))).chain(forwarding).collect();
                (TatpKind::GetNewDestination { end }, reads)
            }
            45..80 => (TatpKind::GetAccessData, vec![row(format_args!("a{kind}"))]),
            80..82 => {
                let (bit, data) = (random.below(2) as u8, random.below(256) as u8);
                let reads = vec![row(format_args!("s")), row(format_args!("f{kind}"))];
                (TatpKind::UpdateSubscriberData { bit, data }, reads)
            }
            82..96 => {
                let location = random.next() as u32;
                (TatpKind::UpdateLocation { location }, vec![index, row(format_args!("s"))])
            }
            96..98 => {
                let reads = vec![index, row(format_args!("f{kind}")), row(format_args!("c{kind}-{start}"))];
                (TatpKind::InsertCallForwarding { end }, reads)
            }
            _ => (TatpKind::DeleteCallForwarding, vec![index, row(format_args!("c{kind}-{start}"))]),
        };
        TatpTransaction { kind, subscriber, reads }
    }

    /// Runs the next transaction of the standard mix. Returns the number of its writes.
    pub fn run(self, client: &mut dyn WorkloadClient, random: &mut RandomNumbers) -> Result<usize, Error> {
        client.run(&self.next(random))
    }
}

impl TatpTransaction {
    fn wrong(&self) -> Error {
        failed(
            "workload",
            &format!("a row of subscriber {} is wrong or missing: {:?}", self.subscriber, self.kind),
        )
    }

    /// Checks the index by which the subscriber is found.
    fn check_index(&self, value: Option<&Vec<u8>>) -> Result<(), Error> {
        match value {
            Some(value) if **value == self.subscriber.to_le_bytes() => Ok(()),
            _ => Err(self.wrong()),
        }
    }

    /// Returns the SUBSCRIBER row.
    fn row(&self, value: Option<&Vec<u8>>) -> Result<Vec<u8>, Error> {
        let is_right = |value: &&Vec<u8>| {
            value.len() == SUBSCRIBER_BYTES && value[..4] == (self.subscriber as u32).to_le_bytes()
        };
        value.filter(is_right).cloned().ok_or_else(|| self.wrong())
    }
}

impl PlannedTransaction for TatpTransaction {
    fn reads(&self) -> &[Vec<u8>] {
        &self.reads
    }

    fn is_read_only(&self) -> bool {
        matches!(
            self.kind,
            TatpKind::GetSubscriberData | TatpKind::GetNewDestination { .. } | TatpKind::GetAccessData
        )
    }

    fn decide(&self, values: &[Option<Vec<u8>>]) -> Result<Vec<KeyWrite>, Error> {
        let value = |index: usize| values.get(index).and_then(Option::as_ref);
        let write = |index: usize, value| vec![(self.reads[index].clone(), value)];
        match self.kind {
            TatpKind::GetSubscriberData => self.row(value(0)).map(|_| Vec::new()),
            TatpKind::GetAccessData => Ok(Vec::new()),
            TatpKind::GetNewDestination { end } => {
                let is_active = value(0).is_some_and(|facility| facility.first() == Some(&1));
                let found = values.iter().skip(1).flatten().filter(|row| is_active && row[0] > end);
                // Their numbers are the answer.
                std::hint::black_box(found.count());
                Ok(Vec::new())
            }
            TatpKind::UpdateSubscriberData { bit, data } => {
                let mut row = self.row(value(0))?;
                // Without the facility, nothing is written.
                let Some(mut facility) = value(1).cloned() else { return Ok(Vec::new()) };
                row[BIT_1_AT] = bit;
                facility[DATA_A_AT] = data;
                Ok([write(0, Some(row)), write(1, Some(facility))].concat())
            }
            TatpKind::UpdateLocation { location } => {
                self.check_index(value(0))?;
                let mut row = self.row(value(1))?;
                row[LOCATION_AT..].copy_from_slice(&location.to_le_bytes());
                Ok(write(1, Some(row)))
            }
            TatpKind::InsertCallForwarding { end } => {
                self.check_index(value(0))?;
                // Without the facility, or with such a row already, nothing is written.
                let may_insert = value(1).is_some() && value(2).is_none();
                Ok(if may_insert { write(2, Some(forwarding(end, self.subscriber))) } else { Vec::new() })
            }
            TatpKind::DeleteCallForwarding => {
                self.check_index(value(0))?;
                Ok(if value(1).is_some() { write(1, None) } else { Vec::new() })
            }
        }
    }
}

/// Returns a CALL_FORWARDING row.
fn forwarding(end: u8, number: u64) -> Vec<u8> {
    let mut row = vec![end];
    row.extend_from_slice(format!("{number:015}").as_bytes());
    row
}

/// Returns all rows of a subscriber.
fn rows(subscriber: u64) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut random = RandomNumbers::of(subscriber);
    let mut row = (subscriber as u32).to_le_bytes().to_vec();
    row.extend_from_slice(format!("{subscriber:015}").as_bytes());
    row.extend((row.len()..SUBSCRIBER_BYTES).map(|_| random.below(2) as u8));
    let mut rows = vec![
        (key(subscriber, format_args!("s")), row),
        (key(subscriber, format_args!("n")), subscriber.to_le_bytes().to_vec()),
    ];
    for kind in some_of([1, 2, 3, 4], 1, &mut random) {
        rows.push((key(subscriber, format_args!("a{kind}")), vec![b'A' + random.below(26) as u8; 10]));
    }
    for kind in some_of([1, 2, 3, 4], 1, &mut random) {
        let mut facility =
            vec![u8::from(random.below(100) < 85), random.below(256) as u8, random.below(256) as u8];
        facility.extend_from_slice(b"ABCDE");
        rows.push((key(subscriber, format_args!("f{kind}")), facility));
        for start in some_of(START_TIMES, 0, &mut random) {
            let end = start + 1 + random.below(8) as u8;
            rows.push((key(subscriber, format_args!("c{kind}-{start}")), forwarding(end, subscriber)));
        }
    }
    rows
}

/// Returns some of these, at least `least`; each number of them is as probable.
fn some_of<const N: usize>(mut all: [u8; N], least: usize, random: &mut RandomNumbers) -> Vec<u8> {
    for place in (1..N).rev() {
        all.swap(place, random.below(place as u64 + 1) as usize);
    }
    let count = least + random.below((N + 1 - least) as u64) as usize;
    all[..count].to_vec()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A store without a server.
    #[derive(Default)]
    struct Rows(BTreeMap<Vec<u8>, Vec<u8>>);

    impl Rows {
        fn run(&mut self, transaction: &TatpTransaction) -> usize {
            let values: Vec<_> = transaction.reads().iter().map(|key| self.0.get(key).cloned()).collect();
            let writes = transaction.decide(&values).expect("right rows");
            assert!(writes.is_empty() || !transaction.is_read_only());
            for (key, value) in &writes {
                match value {
                    Some(value) => drop(self.0.insert(key.clone(), value.clone())),
                    None => drop(self.0.remove(key)),
                }
            }
            writes.len()
        }
    }

    #[test]
    fn the_mix_and_the_rows_are_those_of_the_benchmark() {
        const COUNT: u64 = 2000;
        let subscribers = TatpSubscribers::of(COUNT);
        let mut store = Rows(subscribers.pairs().collect());
        // A subscriber has 2.5 rows of ACCESS_INFO and of SPECIAL_FACILITY, and 1.5 of CALL_FORWARDING for each of the latter.
        let each = store.0.len() as f64 / COUNT as f64;
        assert!((each - 10.75).abs() < 0.3, "{each}");
        let mut random = RandomNumbers::of(3);
        let (mut reads, mut found, mut updates, mut updated) = (0, 0, 0, 0);
        for _ in 0..20_000 {
            let transaction = subscribers.next(&mut random);
            let slots: Vec<_> = transaction.reads().iter().map(|key| caravan_cluster::slot_of(key)).collect();
            assert!(slots.windows(2).all(|pair| pair[0] == pair[1]), "one part: {transaction:?}");
            match transaction.kind {
                TatpKind::GetAccessData => found += u32::from(store.0.contains_key(&transaction.reads[0])),
                TatpKind::UpdateSubscriberData { .. } => updates += 1,
                _ => {}
            }
            reads += u32::from(transaction.is_read_only());
            let writes = store.run(&transaction);
            if matches!(transaction.kind, TatpKind::UpdateSubscriberData { .. }) {
                updated += u32::from(writes == 2);
            }
        }
        let percent = |count: u32, of: f64| f64::from(count) * 100.0 / of;
        assert!((percent(reads, 20_000.0) - 80.0).abs() < 2.0, "{reads}");
        // The benchmark's document says that 62.5 % of these succeed.
        assert!((percent(found, 7_000.0) - 62.5).abs() < 4.0, "{found}");
        assert!((percent(updated, f64::from(updates)) - 62.5).abs() < 10.0, "{updated} {updates}");
    }

    #[test]
    fn a_wrong_row_is_noticed() {
        let reads = [b"n", b"s"].map(|row| [b"{000000000000007}", &row[..]].concat()).to_vec();
        let transaction =
            TatpTransaction { kind: TatpKind::UpdateLocation { location: 9 }, subscriber: 7, reads };
        let store: BTreeMap<_, _> = rows(7).into_iter().chain(rows(8)).collect();
        let values = |subscriber: u64| {
            [b"n", b"s"].map(|row| store.get(&key(subscriber, format_args!("{}", row[0] as char))).cloned())
        };
        let writes = transaction.decide(&values(7)).expect("right rows");
        let [(_, Some(row))] = &writes[..] else { panic!("one row") };
        assert_eq!(row[LOCATION_AT..], 9_u32.to_le_bytes());
        assert!(transaction.decide(&values(8)).is_err());
        assert!(transaction.decide(&[None, None]).is_err());
    }
}

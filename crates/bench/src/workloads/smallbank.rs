//! SmallBank (Alomari et al., "The Cost of Serializability on Platforms That Use Snapshot Isolation", ICDE 2008): six transactions on
//! the accounts of a bank's customers, of which 85 % write. 40 % are about two customers, whose rows may lie in two parts of a store.
//!
//! The mix, and that 90 % of the customers chosen are of 4 % of them, are those of H-Store's and FaSST's versions.
//!
//! | row | key | value |
//! |---|---|---|
//! | CHECKING | `{number}c` | the balance in cents, 64 bits |
//! | SAVINGS | `{number}s` | the same |

use crate::error::Error;
use crate::process::failed;
use crate::store::pairs::RandomNumbers;
use crate::workloads::client::{KeyWrite, PlannedTransaction, WorkloadClient};

/// What each row has at first.
const BEGIN: i64 = 1_000_000;
const DEPOSIT: i64 = 130;
const SAVING: i64 = 2020;
const PAYMENT: i64 = 500;
/// What a check costs that the accounts do not cover.
const PENALTY: i64 = 100;
/// One in so many customers is a popular one.
const POPULAR: u64 = 25;

/// The customers.
#[derive(Clone, Copy, Debug)]
pub struct BankCustomers(pub u64);

/// A transaction and the rows that it reads.
#[derive(Debug)]
pub struct BankTransaction {
    kind: BankKind,
    rows: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum BankKind {
    /// Moves all that one customer has to the checking account of another.
    Amalgamate,
    Balance,
    DepositChecking,
    /// Moves money from one checking account to another.
    SendPayment,
    TransactSavings,
    WriteCheck,
}

fn checking(customer: u64) -> Vec<u8> {
    format!("{{{customer:012}}}c").into_bytes()
}

fn savings(customer: u64) -> Vec<u8> {
    format!("{{{customer:012}}}s").into_bytes()
}

impl BankCustomers {
    /// Returns all rows as they are at first.
    pub fn pairs(self) -> impl Iterator<Item = (Vec<u8>, Vec<u8>)> {
        let value = || BEGIN.to_le_bytes().to_vec();
        (0..self.0).flat_map(move |number| [(checking(number), value()), (savings(number), value())])
    }

    fn customer(self, random: &mut RandomNumbers) -> u64 {
        let popular = (self.0 / POPULAR).max(2);
        if random.below(100) < 90 { random.below(popular) } else { random.below(self.0) }
    }

    /// Returns the next transaction of the mix.
    pub fn next(self, random: &mut RandomNumbers) -> BankTransaction {
        let one = self.customer(random);
        let other =
            std::iter::repeat_with(|| self.customer(random)).find(|other| *other != one).unwrap_or(one);
        let (kind, rows) = match random.below(100) {
            0..15 => (BankKind::Amalgamate, vec![savings(one), checking(one), checking(other)]),
            15..30 => (BankKind::Balance, vec![savings(one), checking(one)]),
            30..45 => (BankKind::DepositChecking, vec![checking(one)]),
            45..70 => (BankKind::SendPayment, vec![checking(one), checking(other)]),
            70..85 => (BankKind::TransactSavings, vec![savings(one)]),
            _ => (BankKind::WriteCheck, vec![savings(one), checking(one)]),
        };
        BankTransaction { kind, rows }
    }
}

impl BankTransaction {
    /// Runs it, and returns the number of its writes.
    pub fn run(&self, client: &mut dyn WorkloadClient) -> Result<usize, Error> {
        client.run(self)
    }
}

impl PlannedTransaction for BankTransaction {
    fn reads(&self) -> &[Vec<u8>] {
        &self.rows
    }

    fn is_read_only(&self) -> bool {
        self.kind == BankKind::Balance
    }

    fn decide(&self, values: &[Option<Vec<u8>>]) -> Result<Vec<KeyWrite>, Error> {
        let balance =
            |value: &Option<Vec<u8>>| Some(i64::from_le_bytes(value.as_ref()?[..].try_into().ok()?));
        let found: Option<Vec<i64>> = values.iter().map(balance).collect();
        let found = found.filter(|found| found.len() == self.rows.len());
        let found = found
            .ok_or_else(|| failed("workload", &format!("a row is wrong or missing: {:?}", self.kind)))?;
        let write = |row: usize, balance: i64| (self.rows[row].clone(), Some(balance.to_le_bytes().to_vec()));
        Ok(match (self.kind, &found[..]) {
            (BankKind::Amalgamate, [savings, own, other]) => {
                vec![write(0, 0), write(1, 0), write(2, savings + own + other)]
            }
            (BankKind::DepositChecking, [own]) => vec![write(0, own + DEPOSIT)],
            (BankKind::SendPayment, [own, other]) if *own >= PAYMENT => {
                vec![write(0, own - PAYMENT), write(1, other + PAYMENT)]
            }
            (BankKind::TransactSavings, [savings]) => vec![write(0, savings + SAVING)],
            (BankKind::WriteCheck, [savings, own]) => {
                let penalty = if savings + own < PAYMENT { PENALTY } else { 0 };
                vec![write(1, own - PAYMENT - penalty)]
            }
            _ => Vec::new(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn the_mix_is_that_of_the_benchmark_and_money_only_moves() {
        const COUNT: u64 = 500;
        let customers = BankCustomers(COUNT);
        let mut store: BTreeMap<_, _> = customers.pairs().collect();
        let sum = |store: &BTreeMap<Vec<u8>, Vec<u8>>| {
            store
                .values()
                .map(|value| i64::from_le_bytes(value[..].try_into().expect("64 bits")))
                .sum::<i64>()
        };
        let mut random = RandomNumbers::of(5);
        let (mut reading, mut apart, mut popular) = (0, 0, 0);
        for _ in 0..20_000 {
            let before = sum(&store);
            let transaction = customers.next(&mut random);
            let values: Vec<_> = transaction.reads().iter().map(|key| store.get(key).cloned()).collect();
            let writes = transaction.decide(&values).expect("right rows");
            store.extend(writes.into_iter().map(|(key, value)| (key, value.expect("a row"))));
            let change = sum(&store) - before;
            let expected = match transaction.kind {
                BankKind::DepositChecking => change == DEPOSIT,
                BankKind::TransactSavings => change == SAVING,
                BankKind::WriteCheck => change == -PAYMENT || change == -PAYMENT - PENALTY,
                BankKind::Balance | BankKind::Amalgamate | BankKind::SendPayment => change == 0,
            };
            assert!(expected, "{transaction:?} {change}");
            reading += u32::from(transaction.is_read_only());
            let tags: Vec<_> = transaction.reads().iter().map(|key| key[1..13].to_vec()).collect();
            apart += u32::from(tags.first() != tags.last());
            popular += u32::from(tags[0] < format!("{:012}", COUNT / POPULAR).into_bytes());
        }
        let percent = |count: u32| f64::from(count) / 200.0;
        assert!((percent(reading) - 15.0).abs() < 1.5, "{reading}");
        assert!((percent(apart) - 40.0).abs() < 2.0, "{apart}");
        assert!((percent(popular) - 90.4).abs() < 1.5, "{popular}");
        assert!(customers.next(&mut random).decide(&[]).is_err());
    }
}

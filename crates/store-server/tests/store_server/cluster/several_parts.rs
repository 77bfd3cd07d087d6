//! Transactions of clients over several parts, while parts move and clients end in the middle.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use caravan_cluster::PartId;
use caravan_store::{ClusterStore, StoreError, StoreFunctions};

use super::rig::ClusterRig;

/// Accounts, and what each has at the beginning.
const ACCOUNTS: usize = 12;
const BEGIN: i64 = 100;

fn number(bytes: Option<Vec<u8>>) -> i64 {
    String::from_utf8(bytes.expect("an account")).expect("text").parse().expect("a number")
}

/// Returns accounts that are spread over all parts.
fn accounts(rig: &ClusterRig) -> Vec<String> {
    let parts = rig.configuration.parts.len();
    (0..ACCOUNTS)
        .map(|account| rig.key_of(PartId((account % parts) as u16), &format!("account{account}:")))
        .collect()
}

fn connect(rig: &ClusterRig, server: usize) -> ClusterStore {
    ClusterStore::connect(rig.servers[server].address()).expect("connected")
}

fn open_accounts(store: &ClusterStore, accounts: &[String]) {
    let put = |account: &String| store.put(account.as_bytes(), BEGIN.to_string().as_bytes());
    accounts.iter().try_for_each(put).expect("opened");
}

/// Returns the sum of all accounts as of one moment.
fn sum(store: &ClusterStore, accounts: &[String]) -> Result<i64, StoreError> {
    store.transaction(|tx| Ok(tx.get_many(accounts)?.into_iter().map(number).sum()))
}

#[test]
fn several_keys_are_read_together_wherever_they_are() {
    let rig = ClusterRig::new(2, 4);
    let accounts = accounts(&rig);
    let store = connect(&rig, 0);
    open_accounts(&store, &accounts);
    let absent = rig.key_of(PartId(2), "absent");
    // More than one call has, some of them more than once.
    let keys: Vec<&[u8]> =
        accounts.iter().cycle().take(400).map(String::as_bytes).chain([absent.as_bytes()]).collect();
    let begin = BEGIN.to_string().into_bytes();
    let mut seen = Vec::new();
    store.get_many(&keys, |index, value| seen.push((index, value.map(<[u8]>::to_vec)))).expect("values");
    let expected = |index: usize| (index, (index < 400).then(|| begin.clone()));
    assert!(seen.iter().enumerate().all(|(index, seen)| *seen == expected(index)) && seen.len() == 401);
    let long = vec![b'k'; caravan_store::limits::KEY_BYTES_MAX + 1];
    store
        .transaction(|tx| {
            tx.put(accounts[3].as_bytes(), b"mine")?;
            let values = tx.get_many(&keys)?;
            for (index, value) in values.into_iter().enumerate() {
                let expected = if index < 400 && index % ACCOUNTS == 3 {
                    Some(b"mine".to_vec())
                } else {
                    expected(index).1
                };
                assert_eq!(value, expected, "{index}");
            }
            assert!(matches!(tx.get_many(&[&long[..], keys[0]]), Err(StoreError::KeyTooLong { .. })));
            tx.delete(keys[0]).map(|existed| assert!(existed))?;
            assert_eq!(tx.get_many(&keys[..2])?, [None, Some(begin.clone())]);
            Ok::<_, StoreError>(())
        })
        .expect("committed");
    // Values that are too long for one answer are read one by one.
    let long = vec![7; 6 << 20];
    for number in 0..3 {
        store.put(rig.key_of(PartId(1), &format!("long{number}:")).as_bytes(), &long).expect("put");
    }
    let keys: Vec<String> = (0..3).map(|number| rig.key_of(PartId(1), &format!("long{number}:"))).collect();
    let values = store.transaction(|tx| tx.get_many(&keys)).expect("values");
    assert!(values.into_iter().all(|value: Option<Vec<u8>>| value.as_ref() == Some(&long)));
}

/// Moves money between accounts of any parts; returns whether the account covered it.
fn transfer(store: &ClusterStore, from: &str, to: &str, amount: i64) -> Result<bool, StoreError> {
    store.transaction(|tx| {
        let (source, target) = (number(tx.get(from.as_bytes())?), number(tx.get(to.as_bytes())?));
        if source < amount {
            return Ok(false);
        }
        tx.put(from.as_bytes(), (source - amount).to_string().as_bytes())?;
        tx.put(to.as_bytes(), (target + amount).to_string().as_bytes())?;
        Ok(true)
    })
}

/// Ends all threads of a test when one of them fails.
struct EndAtPanic<'e>(&'e AtomicBool);

impl Drop for EndAtPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

struct Dice(u64);

impl Dice {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % most
    }
}

#[test]
fn a_transaction_over_several_parts_happens_as_a_whole() {
    let rig = ClusterRig::new(3, 6);
    let (store, accounts) = (connect(&rig, 0), accounts(&rig));
    open_accounts(&store, &accounts);
    assert!(transfer(&store, &accounts[0], &accounts[1], 30).expect("done"));
    assert!(!transfer(&store, &accounts[0], &accounts[2], 80).expect("refused"));
    let read = |account: &String| number(store.get(account.as_bytes()).expect("read"));
    assert_eq!(accounts.iter().map(read).collect::<Vec<_>>()[..3], [BEGIN - 30, BEGIN + 30, BEGIN]);
    // A body that fails writes nothing anywhere.
    let failed: Result<(), StoreError> = store.transaction(|tx| {
        accounts.iter().try_for_each(|account| tx.put(account.as_bytes(), b"0"))?;
        Err(StoreError::VersionChanged)
    });
    assert!(matches!(failed, Err(StoreError::VersionChanged)));
    assert_eq!(sum(&store, &accounts).expect("read"), BEGIN * ACCOUNTS as i64);
    // What a transaction has written it reads, and a key may be deleted in one part and appear in another.
    store
        .transaction(|tx| {
            tx.put(accounts[3].as_bytes(), b"7")?;
            assert_eq!(tx.get(accounts[3].as_bytes())?.as_deref(), Some(&b"7"[..]));
            assert!(tx.delete(accounts[4].as_bytes())?);
            assert_eq!(tx.get(accounts[4].as_bytes())?, None);
            Ok::<_, StoreError>(())
        })
        .expect("committed");
    assert_eq!(store.get(accounts[3].as_bytes()).expect("read").as_deref(), Some(&b"7"[..]));
    assert_eq!(store.get(accounts[4].as_bytes()).expect("read"), None);
}

/// Many clients move money while every reading must find the same sum; parts move meanwhile, with what is undecided in them.
#[test]
fn sums_stay_right_while_parts_move() {
    let mut rig = ClusterRig::new(3, 6);
    let accounts = accounts(&rig);
    open_accounts(&connect(&rig, 0), &accounts);
    let (is_over, moved, read) = (AtomicBool::new(false), AtomicU64::new(0), AtomicU64::new(0));
    let stores: Vec<ClusterStore> = (0..4).map(|client| connect(&rig, client % 3)).collect();
    std::thread::scope(|scope| {
        let (stores, accounts, is_over) = (&stores, &accounts, &is_over);
        let (moved, read) = (&moved, &read);
        for (client, store) in stores[..3].iter().enumerate() {
            scope.spawn(move || {
                let _end = EndAtPanic(is_over);
                let mut dice = Dice(client as u64);
                while !is_over.load(Ordering::Relaxed) {
                    let from = dice.below(ACCOUNTS);
                    let to = (from + 1 + dice.below(ACCOUNTS - 1)) % ACCOUNTS;
                    let done = transfer(store, &accounts[from], &accounts[to], 1 + dice.below(40) as i64);
                    moved.fetch_add(u64::from(done.expect("a server of the part comes")), Ordering::Relaxed);
                }
            });
        }
        scope.spawn(move || {
            let _end = EndAtPanic(is_over);
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(sum(&stores[3], accounts).expect("read"), BEGIN * ACCOUNTS as i64);
                read.fetch_add(1, Ordering::Relaxed);
            }
        });
        let _end = EndAtPanic(is_over);
        let (mut dice, begin) = (Dice(99), Instant::now());
        while !is_over.load(Ordering::Relaxed) && begin.elapsed() < Duration::from_secs(4) {
            let part = PartId(dice.below(6) as u16);
            let to = (rig.holder(part) + 1 + dice.below(2)) % 3;
            let before = moved.load(Ordering::Relaxed);
            rig.move_part(part, to);
            let deadline = Instant::now() + Duration::from_secs(30);
            while moved.load(Ordering::Relaxed) == before && !is_over.load(Ordering::Relaxed) {
                assert!(Instant::now() < deadline, "no money moves any more");
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        is_over.store(true, Ordering::Relaxed);
    });
    println!("{moved:?} transfers, {read:?} readings");
    assert!(moved.load(Ordering::Relaxed) > 0 && read.load(Ordering::Relaxed) > 0);
    assert_eq!(sum(&connect(&rig, 1), &accounts).expect("read"), BEGIN * ACCOUNTS as i64);
}

#[test]
fn functions_run_where_the_keys_are() {
    const SUM: u16 = 1;
    const ADD: u16 = 2;
    const LIE: u16 = 3;
    let functions = StoreFunctions::new()
        .read(SUM, |tx, tag| {
            let sum: Result<i64, StoreError> =
                (0..3_u8).map(|key| Ok(number(tx.get(&[tag, &[key]].concat())?))).sum();
            Ok(sum?.to_string().into_bytes())
        })
        .write(ADD, |tx, key| {
            let more = number(tx.get(key)?) + 1;
            tx.put(key, more.to_string().as_bytes())?;
            Ok(more as u64)
        })
        .read(LIE, |tx, key| tx.put(key, b"7").map(|()| Vec::new()));
    let mut rig = ClusterRig::with(3, 6, |options| options.functions = functions.clone());
    let store = connect(&rig, 0);
    let tags: Vec<String> = (0..6).map(|part| format!("{{{}}}", rig.key_of(PartId(part), "tag"))).collect();
    for tag in &tags {
        let key = |key: u8| [tag.as_bytes(), &[key]].concat();
        (0..3).for_each(|number| store.put(&key(number), b"5").expect("put"));
        let part = store.of(tag.as_bytes()).expect("connected");
        assert_eq!(part.ask(SUM, tag.as_bytes()).expect("a sum"), b"15");
        assert_eq!(part.run(ADD, &key(1)).expect("added"), 6);
        assert_eq!(part.ask(SUM, tag.as_bytes()).expect("a sum"), b"16");
    }
    // They go where a part goes.
    rig.move_part(PartId(2), (rig.holder(PartId(2)) + 1) % 3);
    let part = store.of(tags[2].as_bytes()).expect("connected");
    assert_eq!(part.ask(SUM, tags[2].as_bytes()).expect("a sum"), b"16");
    let told = |result: Result<u64, StoreError>| result.expect_err("refused").to_string();
    assert!(told(part.ask(99, b"").map(|_| 0)).contains("no function 99"));
    assert!(told(part.run(SUM, b"")).contains("no function 1"), "it is one that only reads");
    assert!(told(part.ask(LIE, b"x").map(|_| 0)).contains("has written"));
    assert_eq!(part.get(b"x").expect("read"), None);
}

/// A transaction that is given up before its commit leaves the home nothing, however many there are.
#[test]
fn transactions_that_conflict_do_not_use_up_the_numbers_of_a_client() {
    let rig = ClusterRig::new(2, 2);
    let (store, other) = (connect(&rig, 0), connect(&rig, 1));
    let [home, read] = [0, 1].map(|part| rig.key_of(PartId(part), "key"));
    for round in 0..2 * caravan_store::limits::TRANSACTIONS_OPEN_MAX {
        let mut attempts = 0;
        let done = store.transaction(|tx| {
            attempts += 1;
            tx.put(home.as_bytes(), round.to_string().as_bytes())?;
            tx.get(read.as_bytes())?;
            // What was read changes before the commit of the first attempt.
            if attempts == 1 { other.put(read.as_bytes(), round.to_string().as_bytes()) } else { Ok(()) }
        });
        done.unwrap_or_else(|error| panic!("transaction {round}: {error}"));
        assert!(attempts > 1, "the first attempt has read what changed");
    }
}

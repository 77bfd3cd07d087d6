//! Transactions over two parts, whose owners end after any of their stores.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use caravan_store::calls::{CallService, ClientSessions};
use caravan_store::faults::{PlantedFault, cut_after, stores_of};
use caravan_store::{MappedRing, Outcome, Store, StoreCopy, StoreError, StoreOptions, TransactionId, limits};

use crate::children::{CAUGHT, status_of};
use crate::hostile_bytes::{NoLender, call};

const BEGIN: u16 = 22;
const PREPARE: u16 = 23;
const COMMIT_HOME: u16 = 24;
const ENDED: u16 = 26;
/// The part that is not the home.
const OTHER: u16 = 1;

/// A part, and the client of the test.
struct Part {
    store: Arc<Store>,
    service: CallService,
    /// Numbers that were opened, and their owner.
    open: Vec<(u64, u64)>,
}

/// What a client writes: keys, and their values unless they are deleted.
type Writes<'w> = &'w [(&'w [u8], Option<&'w [u8]>)];

fn options() -> StoreOptions {
    StoreOptions::new(32 << 20)
}

fn with_length(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u32).to_be_bytes(), bytes].concat()
}

/// Returns the body of a commit without reads.
fn body(writes: Writes<'_>) -> Vec<u8> {
    let mut body = [0_u32.to_be_bytes(), (writes.len() as u32).to_be_bytes()].concat();
    for (key, value) in writes {
        body.extend(with_length(key));
        body.push(u8::from(value.is_some()));
        if let Some(value) = value {
            body.push(0);
            body.extend(with_length(value));
        }
    }
    body.extend(0_u32.to_be_bytes());
    body
}

impl Part {
    fn open(memory: &OwnedFd) -> Self {
        let store = Arc::new(Store::open(memory.try_clone().unwrap(), options()).unwrap());
        let sessions = Arc::new(ClientSessions::new(&store).unwrap());
        let service = CallService::new(Arc::clone(&store), sessions);
        store.set_lock_wait(Duration::from_millis(1));
        Self { store, service, open: Vec::new() }
    }

    fn new() -> Self {
        Self::open(&Store::new_memory("part").unwrap())
    }

    /// Does a call, and returns the body of the reply, or its status.
    fn call(&mut self, kind: u16, body: &[u8]) -> Result<Vec<u8>, u16> {
        let mut output = Vec::new();
        self.service.serve(&call(1, kind, body), &mut output, &mut NoLender).unwrap();
        let status = u16::from_be_bytes([output[8], output[9]]);
        if status == 0 { Ok(output[12..].to_vec()) } else { Err(status) }
    }

    /// Opens a transaction whose home this part is, and returns it as it is sent.
    fn begin(&mut self) -> Vec<u8> {
        if self.open.is_empty() {
            let opened = self.call(BEGIN, &[]).unwrap();
            let word = |at: usize| u64::from_be_bytes(opened[8 * at..8 * at + 8].try_into().unwrap());
            let (owner, first, count) = (word(0), word(1), word(2));
            self.open = (first..first + count).map(|number| (owner, number)).collect();
        }
        let (owner, number) = self.open.pop().unwrap();
        [&0_u16.to_be_bytes()[..], &owner.to_be_bytes(), &number.to_be_bytes()].concat()
    }

    fn prepare(&mut self, id: &[u8], writes: Writes<'_>) -> Result<Vec<u8>, u16> {
        self.call(PREPARE, &[id, &body(writes)].concat())
    }

    fn commit_home(&mut self, id: &[u8], writes: Writes<'_>) -> Result<Vec<u8>, u16> {
        let parts = [1_u16.to_be_bytes(), OTHER.to_be_bytes()].concat();
        // It has no number: the test does not repeat it.
        self.call(COMMIT_HOME, &[&[0; 8], id, &parts, &body(writes)].concat())
    }

    fn undecided(&self) -> Vec<TransactionId> {
        self.store.undecided(Duration::ZERO)
    }
}

/// Does what servers do: decides the branches as their home says, and ends decisions that all have heard.
fn settle(home: &Part, other: &Part) {
    for id in other.undecided() {
        let outcome = home.store.outcome(id, true);
        assert_ne!(outcome, Outcome::Open);
        other.store.decide(id, outcome == Outcome::Committed).unwrap();
    }
    for (id, parts) in home.store.decisions(Duration::ZERO) {
        assert_eq!(parts, [OTHER]);
        other.store.decide(id, true).unwrap();
        home.store.end_transaction(id);
    }
}

/// What a transaction does in both parts, and what is there before.
struct Case {
    name: &'static str,
    before: fn(&Store, &Store),
    home: Vec<(&'static [u8], Option<Vec<u8>>)>,
    other: Vec<(&'static [u8], Option<Vec<u8>>)>,
}

fn many(store: &Store) {
    (0..200_u32).for_each(|key| store.put(&key.to_be_bytes(), &[1; 40]).unwrap());
}

fn cases() -> Vec<Case> {
    let text = |text: &str| Some(text.as_bytes().to_vec());
    vec![
        Case {
            name: "values that are overwritten",
            before: |home, other| {
                home.put(b"a", b"10").unwrap();
                other.put(b"b", b"10").unwrap();
            },
            home: vec![(b"a", text("07"))],
            other: vec![(b"b", text("13"))],
        },
        Case {
            name: "keys that come and go",
            before: |home, other| {
                many(home);
                many(other);
                home.put(b"a", b"here").unwrap();
                other.put(b"gone", &[7; 300]).unwrap();
            },
            home: vec![(b"a", None), (b"h", text("new"))],
            other: vec![(b"gone", None), (b"b", text("here")), (b"c", Some(vec![3; 700])), (b"d", text(""))],
        },
        Case {
            name: "long values",
            before: |home, other| {
                home.put(b"a", &vec![1; 3 << 20]).unwrap();
                other.put(b"b", &vec![2; 2 << 20]).unwrap();
            },
            home: vec![(b"a", text("short"))],
            // Its note is one object, so a branch has less than that.
            other: vec![(b"b", Some(vec![3; 600 << 10])), (b"c", Some(vec![4; 200 << 10]))],
        },
    ]
}

fn borrowed<'w>(writes: &'w [(&'static [u8], Option<Vec<u8>>)]) -> Vec<(&'w [u8], Option<&'w [u8]>)> {
    writes.iter().map(|(key, value)| (*key, value.as_deref())).collect()
}

/// Runs the transaction of a case, without settling.
fn run(case: &Case, home: &mut Part, other: &mut Part) {
    let id = home.begin();
    other.prepare(&id, &borrowed(&case.other)).unwrap();
    home.commit_home(&id, &borrowed(&case.home)).unwrap();
    settle(home, other);
}

/// Tells whether all that was written is there; `None` if only some of it is.
fn has_happened(case: &Case, home: &Part, other: &Part) -> Option<bool> {
    let is_there =
        |store: &Store, (key, value): &(&'static [u8], Option<Vec<u8>>)| store.get(key).unwrap() == *value;
    let there: Vec<bool> = case
        .home
        .iter()
        .map(|write| is_there(&home.store, write))
        .chain(case.other.iter().map(|write| is_there(&other.store, write)))
        .collect();
    there.iter().all(|is| *is == there[0]).then_some(there[0])
}

/// Cuts the transaction of a case, and all that ends it.
fn cut(case: &Case) -> Result<[u32; 2], String> {
    let memories = || {
        let memories = [Store::new_memory("home").unwrap(), Store::new_memory("other").unwrap()];
        let [home, other] = memories.each_ref().map(Part::open);
        (case.before)(&home.store, &other.store);
        memories
    };
    let stores = {
        let [mut home, mut other] = memories().each_ref().map(Part::open);
        let stores = stores_of(|| run(case, &mut home, &mut other));
        assert_eq!(has_happened(case, &home, &other), Some(true), "{}", case.name);
        stores
    };
    let cuts = stores.min(std::env::var("CARAVAN_CUTS").map_or(60, |text| text.parse().expect("a number")));
    let mut happened = [0, 0];
    for cut in (0..cuts).map(|cut| cut * stores / cuts) {
        let at = |text: &str| format!("{}, cut after {cut} of {stores} stores: {text}", case.name);
        let memories = memories();
        {
            let [mut home, mut other] = memories.each_ref().map(Part::open);
            assert!(cut_after(cut, || run(case, &mut home, &mut other)), "{}", at("it ended"));
        }
        // The next owners may end as well, one of them before the other.
        cut_after(cut * 31 % 97, || drop(memories.each_ref().map(Part::open)));
        let [home, other] = memories.each_ref().map(Part::open);
        // Until it is decided, nobody sees one half of it.
        for _ in other.undecided() {
            let hidden = other.store.get(case.other[0].0);
            if !matches!(hidden, Err(StoreError::Undecided)) {
                return Err(at("what is undecided can be read"));
            }
        }
        cut_after(cut * 17 % 53, || settle(&home, &other));
        drop((home, other));
        let [home, other] = memories.each_ref().map(Part::open);
        settle(&home, &other);
        if !other.undecided().is_empty() {
            return Err(at("a branch is undecided"));
        }
        let has_happened =
            has_happened(case, &home, &other).ok_or_else(|| at("a half of it has happened"))?;
        happened[usize::from(has_happened)] += 1;
        for part in [&home, &other] {
            part.store.audit().map_err(|error| at(&error.to_string()))?;
        }
    }
    println!("{}: {happened:?} of {stores} stores", case.name);
    Ok(happened)
}

/// Cuts all cases, and commits one that was given up; for a process in which a fault is planted, too.
pub fn cut_transactions(_: OwnedFd, _: bool) -> Result<(), String> {
    for case in cases() {
        let happened = cut(&case)?;
        assert!(happened[0] > 0 && happened[1] > 0, "{}: {happened:?}", case.name);
    }
    let (mut home, mut other) = (Part::new(), Part::new());
    let id = home.begin();
    other.prepare(&id, &[(b"b", Some(b"1"))]).unwrap();
    settle(&home, &other);
    match home.commit_home(&id, &[(b"a", Some(b"1"))]) {
        Ok(_) => Err("what was given up has happened".to_owned()),
        Err(_) => Ok(()),
    }
}

#[test]
fn owners_may_end_after_any_store() {
    assert_eq!(status_of("branches", None), 0);
}

#[test]
fn a_branch_that_is_not_noted_would_be_noticed() {
    assert_eq!(status_of("branches", Some(PlantedFault::UnnotedBranch)), CAUGHT);
}

#[test]
fn a_decision_that_is_not_noted_would_be_noticed() {
    assert_eq!(status_of("branches", Some(PlantedFault::UnnotedDecision)), CAUGHT);
}

#[test]
fn a_branch_that_a_new_owner_forgets_would_be_noticed() {
    assert_eq!(status_of("branches", Some(PlantedFault::ForgottenBranch)), CAUGHT);
}

#[test]
fn a_transaction_that_comes_back_would_be_noticed() {
    assert_eq!(status_of("branches", Some(PlantedFault::NeverClosed)), CAUGHT);
}

#[test]
fn a_copy_takes_branches_and_decisions_over() {
    let (ring_bytes, memory) = (limits::RING_COPY_BYTES_MIN, Store::new_memory("copy").unwrap());
    let ring = StoreCopy::new_ring("ring", ring_bytes).unwrap();
    let open_copy =
        || StoreCopy::open(memory.try_clone().unwrap(), ring.try_clone().unwrap(), options()).unwrap();
    let (mut home, mut other) = (Part::new(), Part::new());
    (0..4_u8).for_each(|key| other.store.put(&[key], b"old").unwrap());
    // The copy is filled while a branch is undecided.
    let early = home.begin();
    other.prepare(&early, &[(&[0], Some(b"new")), (b"come", Some(b"new"))]).unwrap();
    let is_filled = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut copy = open_copy();
            while !is_filled.load(Ordering::Acquire) {
                copy.apply(1000).unwrap();
            }
        });
        let writer = MappedRing::open(ring.try_clone().unwrap(), ring_bytes).unwrap();
        other.store.add_copy(Box::new(writer)).unwrap();
        other.store.fill_copies(Duration::ZERO).unwrap();
        is_filled.store(true, Ordering::Release);
    });
    let [committed, aborted, waiting] = [(); 3].map(|()| home.begin());
    for (id, key) in [(&committed, 1), (&aborted, 2), (&waiting, 3)] {
        other.prepare(id, &[(&[key], Some(b"new"))]).unwrap();
    }
    let parsed = other.undecided();
    let place =
        |id: &[u8]| parsed.iter().find(|known| format!("{known:?}").contains(&number(id))).copied().unwrap();
    other.store.decide(place(&committed), true).unwrap();
    other.store.decide(place(&aborted), false).unwrap();
    let mut kept = vec![place(&early), place(&waiting)];
    drop(other);
    let store = Arc::new(open_copy().promote().unwrap());
    store.restore().unwrap();
    store.set_lock_wait(Duration::from_millis(1));
    let mut undecided = store.undecided(Duration::ZERO);
    kept.sort();
    undecided.sort();
    assert_eq!(undecided, kept);
    assert!(matches!(store.get(&[0]), Err(StoreError::Undecided)));
    assert!(matches!(store.get(&[3]), Err(StoreError::Undecided)));
    store.decide(place(&early), true).unwrap();
    store.decide(place(&waiting), false).unwrap();
    let found: Vec<_> = (0..4_u8).map(|key| store.get(&[key]).unwrap().unwrap()).collect();
    assert_eq!(found, [b"new", b"new", b"old", b"old"]);
    assert_eq!(store.get(b"come").unwrap().as_deref(), Some(&b"new"[..]));
    store.audit().unwrap();
}

/// Returns the number of a transaction as it is shown.
fn number(id: &[u8]) -> String {
    format!("number: {} ", u64::from_be_bytes(id[10..].try_into().unwrap()))
}

#[test]
fn what_a_branch_has_locked_waits_for_its_end() {
    let (mut home, mut other) = (Part::new(), Part::new());
    other.store.put(b"b", b"old").unwrap();
    let id = home.begin();
    other.prepare(&id, &[(b"b", Some(b"new"))]).unwrap();
    assert!(matches!(other.store.get(b"b"), Err(StoreError::Undecided)));
    assert!(matches!(other.store.put(b"b", b"other"), Err(StoreError::Undecided)));
    assert!(matches!(other.store.clear(), Err(StoreError::Undecided)));
    // A second transaction that wants the same gives up at once: nobody waits for anybody.
    let second = home.begin();
    assert!(other.prepare(&second, &[(b"b", Some(b"second"))]).is_err());
    // Others go on.
    many(&other.store);
    let [branch] = other.undecided()[..] else { panic!("one branch") };
    assert_eq!(home.store.outcome(branch, false), Outcome::Open);
    home.commit_home(&id, &[(b"a", Some(b"1"))]).unwrap();
    assert_eq!(home.store.outcome(branch, true), Outcome::Committed);
    other.store.decide(branch, true).unwrap();
    // It is told again, which changes nothing.
    other.store.put(b"b", b"newer").unwrap();
    other.store.decide(branch, true).unwrap();
    assert_eq!(other.store.get(b"b").unwrap().as_deref(), Some(&b"newer"[..]));
    other.store.audit().unwrap();
}

#[test]
fn a_transaction_that_was_given_up_is_not_committed_later() {
    let (mut home, mut other) = (Part::new(), Part::new());
    let id = home.begin();
    other.prepare(&id, &[(b"b", Some(b"1"))]).unwrap();
    let [branch] = other.undecided()[..] else { panic!("one branch") };
    assert_eq!(home.store.outcome(branch, true), Outcome::Aborted);
    other.store.decide(branch, false).unwrap();
    assert!(home.commit_home(&id, &[(b"a", Some(b"1"))]).is_err());
    assert_eq!((home.store.get(b"a").unwrap(), other.store.get(b"b").unwrap()), (None, None));
    // Numbers of a client that has ended are open no longer.
    let id = home.begin();
    other.prepare(&id, &[(b"b", Some(b"1"))]).unwrap();
    let [branch] = other.undecided()[..] else { panic!("one branch") };
    let sessions = Arc::new(ClientSessions::new(&home.store).unwrap());
    home.service = CallService::new(Arc::clone(&home.store), sessions);
    home.open.clear();
    assert_eq!(home.store.outcome(branch, false), Outcome::Aborted);
}

#[test]
fn a_client_may_give_up_any_number_of_transactions() {
    let mut home = Part::new();
    for _ in 0..3 * limits::TRANSACTIONS_OPEN_MAX {
        let id = home.begin();
        home.call(ENDED, &id).unwrap();
        assert!(home.commit_home(&id, &[(b"a", Some(b"1"))]).is_err(), "it was given up");
    }
    assert_eq!(home.store.get(b"a").unwrap(), None);
}

/// Its copies may have the commit. An error would tell the client that it may have the branches undone.
#[test]
fn an_owner_that_loses_its_lease_in_a_commit_does_not_answer() {
    let mut home = Part::new();
    let id = home.begin();
    home.store.end_lease();
    let parts = [1_u16.to_be_bytes(), OTHER.to_be_bytes()].concat();
    let request = [&[0; 8], &id[..], &parts, &body(&[(b"a", Some(b"1"))])].concat();
    let (input, mut output) = (call(1, COMMIT_HOME, &request), Vec::new());
    let (taken, _) = home.service.serve(&input, &mut output, &mut NoLender).unwrap();
    assert_eq!((taken, output), (input.len(), Vec::new()));
}

#[test]
fn the_table_grows_when_no_branch_is_undecided() {
    let (mut home, mut other) = (Part::new(), Part::new());
    let id = home.begin();
    other.prepare(&id, &[(b"b", Some(b"1"))]).unwrap();
    // Meanwhile chains grow. A key that would come into the same bucket waits.
    let late: Vec<u32> =
        (0..20_000_u32).filter(|key| other.store.put(&key.to_be_bytes(), b"v").is_err()).collect();
    assert!(late.len() < 100, "{late:?}");
    let [branch] = other.undecided()[..] else { panic!("one branch") };
    other.store.decide(branch, true).unwrap();
    late.into_iter()
        .chain(20_000..40_000_u32)
        .for_each(|key| other.store.put(&key.to_be_bytes(), b"v").unwrap());
    assert!((0..40_000_u32).all(|key| other.store.get(&key.to_be_bytes()).unwrap().is_some()));
    assert_eq!(other.store.get(b"b").unwrap().as_deref(), Some(&b"1"[..]));
    other.store.audit().unwrap();
}

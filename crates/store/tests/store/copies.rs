//! Copies of a store's memory: random histories, after which each copy must be what its owner was; and what happens when a copy
//! comes, stands still, breaks or goes, when the owner's lease runs out, and when the way to a copy is cut.
//!
//! CARAVAN_HISTORIES is the number of histories.

use std::collections::{BTreeMap, HashSet};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use caravan_fabric::contract::{Endpoint, Exposure};
use caravan_fabric::{RegionAccess, shm, tcp};
use caravan_store::faults::PlantedFault;
use caravan_store::{
    CopyWriter, Eviction, FabricRing, FixedTable, MappedRing, ObjectAddress, ScanCursor, SessionId, Store,
    StoreCopy, StoreError, StoreOptions, limits,
};

use crate::children::{CAUGHT, SetOnDrop, status_of};

pub const MEMORY: u64 = 24 << 20;
pub const RING: u64 = limits::RING_COPY_BYTES_MIN;

/// A wait for what must happen ends so late only where nothing moves.
const LONG: Duration = Duration::from_secs(60);

/// Random numbers from a seed (splitmix64).
pub struct Random(u64);

impl Random {
    fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: u64) -> u64 {
        self.number() % end
    }
}

/// The memories of a copy, which outlive who keeps it.
pub struct Memories {
    pub memory: OwnedFd,
    pub ring: OwnedFd,
    pub options: StoreOptions,
}

impl Memories {
    pub fn new(options: &StoreOptions) -> Self {
        let memory = Store::new_memory("memory").unwrap();
        let ring = StoreCopy::new_ring("ring", RING).unwrap();
        Self { memory, ring, options: options.clone() }
    }

    pub fn open(&self) -> StoreCopy {
        let (memory, ring) = (self.memory.try_clone().unwrap(), self.ring.try_clone().unwrap());
        StoreCopy::open(memory, ring, self.options.clone()).unwrap()
    }

    pub fn writer(&self) -> Box<MappedRing> {
        Box::new(MappedRing::open(self.ring.try_clone().unwrap(), RING).unwrap())
    }
}

/// Applies what arrives until it is told to stop. Now and then it stands still, or is replaced by another keeper.
fn keep(store: &Store, memories: &Memories, seed: u64, is_done: &AtomicBool) -> Result<(), String> {
    let mut random = Random(seed);
    let mut copy = memories.open();
    while !is_done.load(Ordering::Acquire) {
        let applied = copy.apply(random.below(200) as usize).map_err(|error| {
            // Nobody waits for it.
            store.end_lease();
            format!("a copy: {error}")
        })?;
        match random.below(400) {
            0 => {
                drop(copy);
                copy = memories.open();
            }
            1 => std::thread::sleep(Duration::from_millis(random.below(5))),
            _ if applied == 0 => std::thread::sleep(Duration::from_micros(100)),
            _ => {}
        }
    }
    Ok(())
}

/// What a history knows besides keys.
#[derive(Default)]
pub struct Known {
    objects: Vec<ObjectAddress>,
    tables: Vec<ObjectAddress>,
    sessions: Vec<SessionId>,
}

/// All that can be read of a store.
#[derive(Debug, PartialEq, Eq)]
pub struct Contents {
    keys: BTreeMap<Vec<u8>, (Vec<u8>, Option<u64>, u64)>,
    objects: Vec<Option<Vec<u8>>>,
    tables: Vec<Option<BTreeMap<Vec<u8>, Vec<u8>>>>,
    sessions: Vec<Vec<Option<u64>>>,
    memory: String,
}

const REQUESTS: u64 = 40;

pub fn contents(store: &Store, known: &Known) -> Result<Contents, StoreError> {
    store.audit()?;
    let mut damaged = None;
    store.scrub(usize::MAX, |address| damaged = Some(address))?;
    if let Some(address) = damaged {
        return Err(StoreError::Damaged(format!("{address} is not what was written")));
    }
    let (mut names, mut cursor) = (Vec::new(), ScanCursor::START);
    loop {
        cursor = store.scan(cursor, 1000, |key| names.push(key.to_vec()))?;
        if cursor == ScanCursor::START {
            break;
        }
    }
    let mut keys = BTreeMap::new();
    for name in names {
        if let Some(entry) = store.entry(&name)? {
            keys.insert(name, (entry.value, entry.head.expires_at_ms, entry.head.version.to_u64()));
        }
    }
    let table = |address: &ObjectAddress| {
        let Ok(table) = FixedTable::open(store, *address) else { return Ok(None) };
        let mut pairs = BTreeMap::new();
        for number in 0..2000_u64 {
            if let Some(value) = table.get(store, &number.to_ne_bytes())? {
                pairs.insert(number.to_ne_bytes().to_vec(), value);
            }
        }
        Ok::<_, StoreError>(Some(pairs))
    };
    let reply = |session: SessionId, request| {
        let once = |tx: &mut caravan_store::Transaction<'_>| {
            tx.once(session, request, |_| Err(StoreError::VersionChanged))
        };
        store.transaction(once).ok()
    };
    let mut counts = store.memory_counts();
    counts.classes.retain(|class| class.used_places > 0);
    let used: Vec<_> = counts.classes.iter().map(|class| (class.place_bytes, class.used_places)).collect();
    Ok(Contents {
        keys,
        objects: known.objects.iter().map(|address| store.read(*address).ok()).collect(),
        tables: known.tables.iter().map(table).collect::<Result<_, _>>()?,
        sessions: known
            .sessions
            .iter()
            .map(|session| (1..=REQUESTS).map(|request| reply(*session, request)).collect())
            .collect(),
        memory: format!("{used:?}"),
    })
}

pub fn key(number: u64) -> Vec<u8> {
    format!("key {number}").into_bytes()
}

fn value(random: &mut Random) -> Vec<u8> {
    let bytes = match random.below(200) {
        0 => limits::OBJECT_BYTES_MAX + random.below(1_200_000) as usize,
        1 => random.below(limits::OBJECT_BYTES_MAX as u64) as usize,
        2..20 => random.below(5000) as usize,
        _ => random.below(100) as usize,
    };
    let byte = random.number() as u8;
    (0..bytes).map(|at| (at as u8).wrapping_mul(31) ^ byte).collect()
}

/// Does something at random.
fn operate(
    store: &Store,
    random: &mut Random,
    known: &Mutex<Known>,
    now_ms: &AtomicU64,
) -> Result<(), StoreError> {
    let some = |random: &mut Random, list: &[ObjectAddress]| {
        (!list.is_empty()).then(|| list[random.below(list.len() as u64) as usize])
    };
    let keys = 300;
    match random.below(120) {
        0..50 => store.put(&key(random.below(keys)), &value(random)),
        50..60 => store.delete(&key(random.below(keys))).map(drop),
        60..66 => {
            let at = now_ms.load(Ordering::Relaxed) + random.below(50);
            store.put_until(&key(random.below(keys)), &value(random), Some(at))
        }
        66..69 => {
            store.publish_now(now_ms.fetch_add(random.below(20), Ordering::Relaxed));
            store.remove_expired(100).map(drop)
        }
        69..75 => {
            let (from, to) = (key(random.below(keys)), key(random.below(keys)));
            store.transaction(|tx| {
                let value = tx.get(&from)?.unwrap_or_default();
                tx.put(&to, &value)?;
                tx.delete(&from).map(drop)
            })
        }
        75..82 => {
            let near = some(random, &known.lock().unwrap().objects);
            let bytes = value(random);
            let bytes = &bytes[..bytes.len().min(limits::OBJECT_BYTES_MAX)];
            let address = store.transaction(|tx| tx.alloc(bytes, near))?;
            known.lock().unwrap().objects.push(address);
            Ok(())
        }
        82..88 => {
            // In place, up to the longest records.
            let Some(address) = some(random, &known.lock().unwrap().objects) else { return Ok(()) };
            let fill = random.number() as u8;
            store.transaction(|tx| {
                let bytes = tx.read(address)?;
                tx.write(address, &vec![fill; bytes.len()])
            })
        }
        88..91 => {
            let Some(address) = some(random, &known.lock().unwrap().objects) else { return Ok(()) };
            store.transaction(|tx| tx.free(address))
        }
        91..97 => {
            let session = known.lock().unwrap().sessions.last().copied();
            let Some(session) = session else {
                let session = store.open_session()?;
                known.lock().unwrap().sessions.push(session);
                return Ok(());
            };
            let request = 1 + random.below(REQUESTS);
            let reply = random.number();
            store.transaction(|tx| {
                tx.once(session, request, |tx| {
                    tx.put(b"replies", &reply.to_ne_bytes())?;
                    Ok::<_, StoreError>(reply)
                })
                .map(drop)
            })
        }
        97 => {
            let session = known.lock().unwrap().sessions.pop();
            session.map_or(Ok(()), |session| store.close_session(session))
        }
        98..110 => {
            let table = some(random, &known.lock().unwrap().tables);
            let Some(table) = table else {
                let table = store.transaction(|tx| FixedTable::create(tx, 8, 16))?.address();
                known.lock().unwrap().tables.push(table);
                return Ok(());
            };
            let table = FixedTable::open(store, table)?;
            store.transaction(|tx| {
                for _ in 0..20 {
                    let number = random.below(2000).to_ne_bytes();
                    if random.below(4) == 0 {
                        table.delete(tx, &number)?;
                    } else {
                        table.put(tx, &number, &[number, number].concat())?;
                    }
                }
                Ok(())
            })
        }
        // A filling begins again after it.
        110 if random.below(10) == 0 => store.clear(),
        111 => {
            // Many small keys, so that shards are split or chains grow.
            let first = 1000 * (1 + random.below(12));
            (0..1000).try_for_each(|number| store.put(&key(first + number), b"small"))
        }
        _ => {
            let first = random.below(keys);
            store.transaction(|tx| {
                (first..first + 30).try_for_each(|number| tx.put(&key(number), &[number as u8; 60]))
            })
        }
    }
}

/// An operation may fail for want of memory, or because another thread has freed its object.
fn is_usual(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::Full { .. }
            | StoreError::NoObject(_)
            | StoreError::NoSession
            | StoreError::RequestForgotten { .. }
            | StoreError::ObjectTooSmall { .. }
            | StoreError::NotAFixedTable(_)
    )
}

/// Runs a history of some threads on a store with two copies, which come while they run; `steps` more follow.
fn history(seed: u64, steps: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let eviction = [Eviction::Refuse, Eviction::LeastRecentlyUsed][random.below(2) as usize];
    let options = StoreOptions::new(MEMORY).eviction(eviction);
    let store = Store::embedded(options.clone()).unwrap();
    let copies = [Memories::new(&options), Memories::new(&options)];
    let known = Mutex::new(Known::default());
    let now_ms = AtomicU64::new(1);
    let (is_filled, is_done) = (AtomicBool::new(false), AtomicBool::new(false));
    let threads = 1 + random.below(3);
    let text = |error: StoreError| error.to_string();
    std::thread::scope(|scope| -> Result<(), String> {
        let done = SetOnDrop(&is_done);
        let keepers: Vec<_> = copies
            .iter()
            .map(|copy| {
                let (seed, is_done) = (random.number(), &is_done);
                let store = &store;
                scope.spawn(move || keep(store, copy, seed, is_done))
            })
            .collect();
        let ended: Result<(), String> = std::thread::scope(|scope| {
            let seeds: Vec<u64> = (0..threads).map(|_| random.number()).collect();
            let threads: Vec<_> = seeds
                .into_iter()
                .map(|seed| {
                    let (store, known, now_ms, is_filled) = (&store, &known, &now_ms, &is_filled);
                    scope.spawn(move || {
                        let mut random = Random(seed);
                        let mut steps_left = steps;
                        while steps_left > 0 {
                            match operate(store, &mut random, known, now_ms) {
                                Err(error) if !is_usual(&error) => return Err(error.to_string()),
                                _ => steps_left -= u64::from(is_filled.load(Ordering::Acquire)),
                            }
                        }
                        Ok(())
                    })
                })
                .collect();
            let filled = SetOnDrop(&is_filled);
            for copy in &copies {
                store.add_copy(copy.writer()).map_err(text)?;
                store.fill_copies(Duration::from_micros(random.below(100))).map_err(text)?;
            }
            drop(filled);
            threads.into_iter().try_for_each(|thread| thread.join().unwrap())
        });
        drop(done);
        for keeper in keepers {
            // What a copy finds wrong explains the rest.
            keeper.join().unwrap()?;
        }
        ended
    })?;
    let known = known.into_inner().unwrap();
    store.publish_now(now_ms.load(Ordering::Relaxed));
    let expected = contents(&store, &known).map_err(|error| format!("the owner: {error}"))?;
    for copy in &copies {
        let copy = copy.open().promote().map_err(|error| format!("the copy: {error}"))?;
        copy.publish_now(now_ms.load(Ordering::Relaxed));
        copy.restore().map_err(|error| format!("the copy: {error}"))?;
        let found = contents(&copy, &known).map_err(|error| format!("the copy: {error}"))?;
        if found != expected {
            let keys: HashSet<_> = found.keys.keys().chain(expected.keys.keys()).collect();
            let other = keys.into_iter().find(|key| found.keys.get(*key) != expected.keys.get(*key));
            let other = other.map(|key| String::from_utf8_lossy(key).into_owned());
            let [of_copy, of_owner] = [&found, &expected].map(|contents| &contents.memory);
            return Err(format!(
                "the copy is not what the owner was: key {other:?}; objects {}, tables {}, sessions {}; {of_copy} {of_owner}",
                found.objects == expected.objects,
                found.tables == expected.tables,
                found.sessions == expected.sessions,
            ));
        }
        // It goes on as a store.
        copy.put(b"more", b"of it").map_err(text)?;
    }
    Ok(())
}

fn histories() -> u64 {
    std::env::var("CARAVAN_HISTORIES").map_or(4, |text| text.parse().expect("CARAVAN_HISTORIES is a number"))
}

fn seed() -> u64 {
    std::env::var("CARAVAN_SEED").map_or_else(
        |_| std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64,
        |text| text.parse().expect("CARAVAN_SEED is a number"),
    )
}

#[test]
fn a_copy_is_what_its_owner_was() {
    let first = seed();
    for seed in first..first + histories() {
        history(seed, 100).unwrap_or_else(|text| panic!("CARAVAN_SEED={seed}: {text}"));
    }
}

/// For processes in which a fault is planted.
pub fn run_histories(_: OwnedFd, _: bool) -> Result<(), String> {
    (1..40).try_for_each(|seed| history(seed, 100))
}

/// Waits until something has happened.
pub fn until(what: &str, mut has_happened: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !has_happened() {
        assert!(begin.elapsed() < LONG, "it does not happen that {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// A way to a copy that ends after some writes, in the middle of the last one.
#[derive(Debug)]
pub struct CutWay {
    pub way: MappedRing,
    pub writes_left: Arc<AtomicU64>,
}

pub const NO_CUT: u64 = u64::MAX;

impl CutWay {
    fn check(&self) -> Result<(), StoreError> {
        if self.writes_left.load(Ordering::Acquire) == 0 { Err(StoreError::Disconnected) } else { Ok(()) }
    }
}

impl CopyWriter for CutWay {
    fn ring_bytes(&self) -> u64 {
        self.way.ring_bytes()
    }
    fn write(&mut self, place: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.check()?;
        let left = self.writes_left.load(Ordering::Acquire);
        if left == 1 {
            self.way.write(place, &bytes[..bytes.len() / 16 * 8])?;
        } else {
            self.way.write(place, bytes)?;
        }
        self.writes_left.store(if left == NO_CUT { NO_CUT } else { left - 1 }, Ordering::Release);
        Ok(())
    }
    fn has_arrived(&mut self, limit: Duration) -> Result<bool, StoreError> {
        self.check()?;
        self.way.has_arrived(limit)
    }
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        self.check()?;
        self.way.read(place, bytes)
    }
}

/// A store with one complete copy, which a thread of the test keeps.
pub struct Pair {
    pub store: Store,
    memories: Memories,
    id: caravan_store::CopyId,
    writes_left: Arc<AtomicU64>,
}

impl Pair {
    pub fn new() -> Self {
        let options = StoreOptions::new(MEMORY);
        let store = Store::embedded(options.clone()).unwrap();
        store.put(b"first", b"value").unwrap();
        let memories = Memories::new(&options);
        let writes_left = Arc::new(AtomicU64::new(NO_CUT));
        let way = CutWay { way: *memories.writer(), writes_left: Arc::clone(&writes_left) };
        let id = store.add_copy(Box::new(way)).unwrap();
        let pair = Self { store, memories, id, writes_left };
        pair.keep(|| pair.store.fill_copies(Duration::ZERO).unwrap());
        pair
    }

    /// Runs `body` while the copy applies what arrives.
    pub fn keep<T: Send>(&self, body: impl FnOnce() -> T + Send) -> T {
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let done = SetOnDrop(&is_done);
            let keeper = scope.spawn(|| keep(&self.store, &self.memories, 1, &is_done));
            let result = body();
            drop(done);
            keeper.join().unwrap().unwrap();
            result
        })
    }

    pub fn promote(self) -> Store {
        let Self { store, memories, .. } = self;
        drop(store);
        let copy = memories.open().promote().unwrap();
        copy.audit().unwrap();
        copy
    }
}

/// Cuts the way to a copy at some moment; nothing that was answered may be missing in the copy.
fn cut_the_way(seed: u64) -> Result<(), String> {
    let mut random = Random(seed);
    let pair = Pair::new();
    pair.writes_left.store(1 + random.below(60), Ordering::Release);
    let answered = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 1.. {
                let value = vec![number as u8; Random(number).below(300) as usize];
                match pair.store.put(&key(number), &value) {
                    Ok(()) => answered.store(number, Ordering::Release),
                    Err(StoreError::NotPrimary) => break,
                    Err(error) => panic!("{error}"),
                }
            }
        });
        until("the copy is out of reach", || pair.store.copies().iter().any(|copy| copy.broken.is_some()));
        pair.store.end_lease();
        writer.join().unwrap();
    });
    let answered = answered.load(Ordering::Acquire);
    let copy = pair.promote();
    for number in 1..=answered {
        let value = vec![number as u8; Random(number).below(300) as usize];
        let found = copy.get(&key(number)).map_err(|error| error.to_string())?;
        if found != Some(value) {
            return Err(format!("write {number} of {answered} that were answered is not there"));
        }
    }
    Ok(())
}

/// A commit whose lease has run out is not answered before the next one.
fn let_the_lease_end() -> Result<(), String> {
    let pair = Pair::new();
    let arrived = || pair.store.copies()[0].arrived;
    let before = arrived();
    pair.store.set_lease(Some(Duration::from_nanos(1)));
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| pair.store.put(b"first", b"second"));
        until("the record arrives", || arrived() > before);
        let begin = Instant::now();
        while begin.elapsed() < Duration::from_millis(50) && !writer.is_finished() {
            std::thread::yield_now();
        }
        let is_early = writer.is_finished();
        pair.store.set_lease(None);
        writer.join().unwrap().unwrap();
        if is_early { Err("a commit without a lease was answered".to_owned()) } else { Ok(()) }
    })?;
    // One whose lease never comes back leaves everything to who owns the store next.
    pair.store.set_lease(Some(Duration::from_nanos(1)));
    let before = arrived();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| pair.store.put(b"first", b"third"));
        until("the record arrives", || arrived() > before);
        pair.store.end_lease();
        assert!(matches!(writer.join().unwrap(), Err(StoreError::NotPrimary)));
    });
    assert!(matches!(pair.store.put(b"other", b""), Err(StoreError::NotPrimary)));
    let copy = pair.promote();
    assert_eq!(copy.get(b"first").unwrap().as_deref(), Some(&b"third"[..]));
    Ok(())
}

/// Records of the same length, in a ring of which that is a divisor: what is left of a lap lies where records begin.
fn go_round() -> Result<(), String> {
    let options = StoreOptions::new(MEMORY);
    let store = Store::embedded(options.clone()).unwrap();
    let put = |number: u64| store.put(b"round", &number.to_ne_bytes()).unwrap();
    put(0);
    let probe = Memories::new(&options);
    let id = store.add_copy(probe.writer()).unwrap();
    put(1);
    let arrived = || store.copies()[0].arrived;
    let before = arrived();
    put(2);
    let record = arrived() - before;
    store.remove_copy(id).unwrap();
    let records = RING / record + 1;
    let ring_bytes = 4096 + records * record;
    let (memory, ring) =
        (Store::new_memory("memory").unwrap(), StoreCopy::new_ring("ring", ring_bytes).unwrap());
    let mut copy = StoreCopy::open(memory, ring.try_clone().unwrap(), options).unwrap();
    store.add_copy(Box::new(MappedRing::open(ring, ring_bytes).unwrap())).unwrap();
    for number in 0..5 * records / 2 {
        put(number);
        copy.apply(2).map_err(|error| error.to_string())?;
    }
    let applied = copy.apply(1000).map_err(|error| error.to_string())?;
    if copy.position() != arrived() {
        return Err(format!(
            "the copy is at {} of {}, after {applied} more records",
            copy.position(),
            arrived()
        ));
    }
    Ok(())
}

/// For processes in which a fault is planted.
pub fn run_ways(_: OwnedFd, _: bool) -> Result<(), String> {
    (0..30).try_for_each(cut_the_way)?;
    let_the_lease_end()?;
    go_round()
}

#[test]
fn what_was_answered_is_on_the_copy_when_the_way_there_is_cut() {
    let first = seed();
    for seed in first..first + 10 {
        cut_the_way(seed).unwrap_or_else(|text| panic!("CARAVAN_SEED={seed}: {text}"));
    }
}

#[test]
fn without_a_lease_nothing_is_answered() {
    let_the_lease_end().unwrap();
}

#[test]
fn what_an_earlier_lap_has_left_is_no_record() {
    go_round().unwrap();
}

#[test]
fn commits_wait_for_a_copy_that_stands_still() {
    let pair = Pair::new();
    let behind = || pair.store.copies()[0].behind_bytes;
    let value = vec![7; 10_000];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..300).try_for_each(|number| pair.store.put(&key(number), &value)));
        // As full as it gets: the next record has not arrived.
        until("the ring is full", || behind() > RING - 20_000);
        assert!(!writer.is_finished());
        pair.keep(|| writer.join().unwrap()).unwrap();
    });
    let copy = pair.promote();
    assert_eq!(copy.counts().keys, 301);
}

#[test]
fn commits_go_on_without_a_copy_that_was_removed() {
    let pair = Pair::new();
    let value = vec![7; 10_000];
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| (0..300).try_for_each(|number| pair.store.put(&key(number), &value)));
        until("the ring is full", || pair.store.copies()[0].behind_bytes > RING - 20_000);
        pair.store.remove_copy(pair.id).unwrap();
        writer.join().unwrap().unwrap();
    });
    assert!(pair.store.copies().is_empty());
    assert!(matches!(pair.store.remove_copy(pair.id), Err(StoreError::NoCopy)));
}

#[test]
fn a_copy_out_of_reach_goes_on_where_it_was() {
    let pair = Pair::new();
    pair.keep(|| {
        for round in 0..20 {
            pair.writes_left.store(1 + round, Ordering::Release);
            std::thread::scope(|scope| {
                let writer = scope.spawn(|| {
                    (0..40).try_for_each(|number| pair.store.put(&key(number), &[round as u8; 1000]))
                });
                until("the way is cut", || pair.store.copies()[0].broken.is_some());
                assert!(!writer.is_finished());
                pair.writes_left.store(NO_CUT, Ordering::Release);
                pair.store.mend_copy(pair.id, pair.memories.writer()).unwrap();
                writer.join().unwrap().unwrap();
                // The next round cuts it again.
                let writes_left = Arc::clone(&pair.writes_left);
                let way = CutWay { way: *pair.memories.writer(), writes_left };
                pair.store.mend_copy(pair.id, Box::new(way)).unwrap();
            });
        }
    });
    let copy = pair.promote();
    for number in 0..40 {
        assert_eq!(copy.get(&key(number)).unwrap(), Some(vec![19; 1000]));
    }
}

/// A way to a copy on which nothing arrives.
#[derive(Debug)]
struct LostWay(MappedRing);

impl CopyWriter for LostWay {
    fn ring_bytes(&self) -> u64 {
        self.0.ring_bytes()
    }
    fn write(&mut self, _: u64, _: &[u8]) -> Result<(), StoreError> {
        Ok(())
    }
    fn has_arrived(&mut self, _: Duration) -> Result<bool, StoreError> {
        Err(StoreError::Disconnected)
    }
    fn read(&mut self, place: u64, bytes: &mut [u8]) -> Result<(), StoreError> {
        self.0.read(place, bytes)
    }
}

#[test]
fn a_copy_whose_way_is_lost_at_the_very_beginning_is_filled_all_the_same() {
    let options = StoreOptions::new(MEMORY);
    let (store, memories) = (Store::embedded(options.clone()).unwrap(), Memories::new(&options));
    let id = store.add_copy(Box::new(LostWay(*memories.writer()))).unwrap();
    let mut copy = memories.open();
    let followed = std::thread::scope(|scope| {
        let writer = scope.spawn(|| store.put(b"k", b"v"));
        until("the way is lost", || store.copies()[0].broken.is_some());
        store.mend_copy(id, memories.writer()).unwrap();
        let followed = copy.apply(1).unwrap();
        if followed == 0 {
            // Nobody takes the stream: the writer would wait for ever.
            store.end_lease();
        }
        assert_eq!(writer.join().unwrap().is_ok(), followed == 1);
        followed
    });
    assert_eq!(followed, 1, "the copy knows nothing of the stream");
    drop(copy);
    let pair = Pair { store, memories, id, writes_left: Arc::default() };
    pair.keep(|| pair.store.fill_copies(Duration::ZERO).unwrap());
    assert_eq!(pair.promote().get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_copy_that_does_not_have_everything_cannot_take_over() {
    let options = StoreOptions::new(MEMORY);
    let store = Store::embedded(options.clone()).unwrap();
    let memories = Memories::new(&options);
    store.add_copy(memories.writer()).unwrap();
    store.put(b"k", b"v").unwrap();
    assert!(matches!(memories.open().promote(), Err(StoreError::IncompleteCopy)));
    // The memory is no store before that.
    assert!(Store::open(memories.memory.try_clone().unwrap(), options).is_err());
}

/// Runs `body` while a copy applies what arrives.
pub fn keep_while<T: Send>(store: &Store, copy: &Memories, body: impl FnOnce() -> T + Send) -> T {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let done = SetOnDrop(&is_done);
        let keeper = scope.spawn(|| keep(store, copy, 1, &is_done));
        let result = body();
        drop(done);
        keeper.join().unwrap().unwrap();
        result
    })
}

/// The ends of a connection: the keeper's and the owner's.
type Ends = (Box<dyn Endpoint>, Box<dyn Endpoint>);

/// Copies by one-sided operations, over each backend that needs no device.
#[test]
fn a_copy_is_reached_over_any_fabric() {
    let arena = 64 << 10;
    let over_shm = || {
        let (keeper, owner) = shm::pair(arena).unwrap();
        (Box::new(keeper) as Box<dyn Endpoint>, Box::new(owner) as Box<dyn Endpoint>)
    };
    let over_tcp = || {
        let (keeper, owner) = tcp::pair(&Exposure::all(arena), tcp::TcpSealing::Plain).unwrap();
        (Box::new(keeper) as Box<dyn Endpoint>, Box::new(owner) as Box<dyn Endpoint>)
    };
    let backends: [&dyn Fn() -> Ends; 2] = [&over_shm, &over_tcp];
    for backend in backends {
        let pair = Pair::new();
        let (mut keeper, owner) = backend();
        let copy = pair.memories.open();
        let token = keeper.lend(&copy.ring_region().unwrap(), RegionAccess::Write).unwrap();
        let provider = owner.provider();
        pair.store.mend_copy(pair.id, Box::new(FabricRing::borrow(owner, &token).unwrap())).unwrap();
        drop(copy);
        pair.keep(|| {
            std::thread::scope(|scope| {
                for thread in 0..3 {
                    let store = &pair.store;
                    scope.spawn(move || {
                        for number in 0..200_u64 {
                            let value = vec![number as u8; [50, 3000][number as usize % 2]];
                            store.put(&key(1000 * thread + number), &value).unwrap();
                        }
                        store.put(format!("long {thread}").as_bytes(), &vec![1; 1_100_000]).unwrap();
                    });
                }
            });
        });
        let counts = pair.store.copies();
        assert!(counts[0].broken.is_none() && counts[0].is_complete, "{provider:?}: {counts:?}");
        let copy = pair.promote();
        assert_eq!(copy.counts().keys, 604, "{provider:?}");
        assert_eq!(copy.get(b"long 2").unwrap(), Some(vec![1; 1_100_000]));
    }
}

#[test]
fn faults_of_copies_would_be_noticed() {
    let by_histories = [
        PlantedFault::SkippedRecord,
        PlantedFault::NoNewBytes,
        PlantedFault::FillBesideCommits,
        PlantedFault::NoStructureRecord,
        PlantedFault::OutOfOrder,
    ];
    for fault in by_histories {
        assert_eq!(status_of("histories", Some(fault)), CAUGHT, "{fault:?}");
    }
    for fault in [PlantedFault::AnsweredEarly, PlantedFault::RecordOfAnyLap, PlantedFault::IgnoredLease] {
        assert_eq!(status_of("ways", Some(fault)), CAUGHT, "{fault:?}");
    }
}

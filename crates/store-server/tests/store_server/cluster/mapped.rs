//! Clients that read the memory of a part, and the part is elsewhere by now: they read nothing that is over.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use caravan_cluster::{MemberId, PartId};
use caravan_store::faults::PlantedFault;
use caravan_store::{
    ClusterStore, ConnectOptions, ConnectedStore, ScanCursor, Store, StoreError, StoreOptions, StoreTransport,
};

use rustix::time::{ClockId, clock_gettime};

use super::rig::ClusterRig;
use crate::connected::children::{self, CAUGHT};
use crate::connected::repeats::Mortal;

const PART: PartId = PartId(0);
const MEMORY_BYTES: u64 = 32 << 20;

/// Takes a store over in a copy of its memory, as a server does that had one.
fn copy(memory: BorrowedFd<'_>) -> (OwnedFd, Arc<Store>) {
    let path = format!("/proc/self/fd/{}", memory.as_raw_fd());
    let mut bytes = Vec::new();
    File::open(path).unwrap().read_to_end(&mut bytes).unwrap();
    let copied = Store::new_memory("copy").unwrap();
    File::from(copied.try_clone().unwrap()).write_all(&bytes).unwrap();
    let store = Store::open(copied.try_clone().unwrap(), StoreOptions::new(MEMORY_BYTES)).unwrap();
    (copied, Arc::new(store))
}

/// A way of reading the key `k`.
type WayToRead = (&'static str, fn(&ConnectedStore) -> Result<Option<Vec<u8>>, StoreError>);

const WAYS_TO_READ: &[WayToRead] = &[
    ("get", |client| client.get(b"k")),
    ("get_into", |client| {
        let mut value = b"before".to_vec();
        client.get_into(b"k", &mut value)?;
        Ok(value.strip_prefix(b"before").map(<[u8]>::to_vec))
    }),
    ("entry", |client| Ok(client.entry(b"k")?.map(|entry| entry.value))),
    // It is not repeated when the connection breaks.
    ("start_get", |client| match client.start_get(b"k").wait() {
        Err(StoreError::Disconnected) => client.start_get(b"k").wait(),
        found => found,
    }),
    ("get_many", |client| {
        let mut found = None;
        client.get_many(&[b"no", b"k "], |_, value| assert_eq!(value, None))?;
        client.get_many(&[b"k"], |_, value| found = value.map(<[u8]>::to_vec))?;
        Ok(found)
    }),
    ("transaction", |client| client.transaction(|tx| tx.get(b"k"))),
    // What these return is not the value, but tells of it.
    ("head", |client| Ok(client.head(b"new")?.map(|_| b"2".to_vec()).or(Some(b"1".to_vec())))),
    ("scan", |client| {
        let mut keys = Vec::new();
        let mut cursor = ScanCursor::START;
        loop {
            cursor = client.scan(cursor, 100, |key| keys.push(key.to_vec()))?;
            if cursor == ScanCursor::START {
                break;
            }
        }
        Ok(Some(if keys.contains(&b"new".to_vec()) { b"2".to_vec() } else { b"1".to_vec() }))
    }),
];

/// Reads in each way, and says in which something else is found.
fn read_all(connect: impl Fn() -> ConnectedStore, change: impl FnOnce(), now: &[u8]) -> Result<(), String> {
    let clients: Vec<_> = WAYS_TO_READ.iter().map(|way| (way, connect())).collect();
    for ((name, read), client) in &clients {
        assert_eq!(client.transport(), StoreTransport::Mapped);
        assert_eq!(read(client).unwrap().as_deref(), Some(&b"1"[..]), "{name}");
    }
    change();
    for ((name, read), client) in &clients {
        let found = read(client).map_err(|error| format!("{name}: {error}"))?;
        if found.as_deref() != Some(now) {
            return Err(format!("{name} finds {found:?}"));
        }
        assert_eq!(client.transport(), StoreTransport::Mapped, "it has mapped the part where it is now");
    }
    Ok(())
}

fn change_values(store: &Store) {
    store.put(b"k", b"2").unwrap();
    store.put(b"new", b"").unwrap();
}

/// How the lease of an owner ends.
type WayToEnd = (&'static str, fn(Arc<Store>));

const DISCARDED: &str = "nobody owns the memory, which was given back";

const WAYS_TO_END: &[WayToEnd] = &[
    ("its time is over", |store| {
        store.set_lease(Some(Duration::from_nanos(1)));
        std::mem::forget(store);
    }),
    ("the part is another server's", |store| {
        store.end_lease();
        std::mem::forget(store);
    }),
    (DISCARDED, drop),
];

/// Moves a mapped part to other memory, in each way.
fn moves() -> Result<(), String> {
    for (name, end) in WAYS_TO_END {
        let mut rig = ClusterRig::new(2, 1);
        let store = rig.servers[0].parts.remove(PART).unwrap();
        store.set_lease(Some(Duration::from_secs(1 << 40)));
        rig.servers[0].parts.add(PART, Arc::clone(&store)).unwrap();
        store.put(b"k", b"1").unwrap();
        let socket = format!("unix:{}", rig.servers[0].server.socket().display());
        let whole = ClusterStore::connect(&*socket).unwrap();
        assert_eq!(whole.transaction(|tx| tx.get(b"k")).unwrap().as_deref(), Some(&b"1"[..]));
        let change = || {
            let (_, next) = copy(rig.memory(PART));
            drop(rig.servers[0].parts.remove(PART));
            end(store);
            if *name == DISCARDED {
                // What is mapped still is nothing at all.
                Store::discard_memory(rig.memory(PART)).unwrap();
            }
            change_values(&next);
            rig.servers[1].parts.add(PART, next).unwrap();
            rig.change(|configuration| {
                let epoch = configuration.epoch;
                let part = &mut configuration.parts[0];
                (part.primary, part.primary_since) = (Some(MemberId(1)), epoch);
            });
        };
        let connect = || Store::connect(ConnectOptions::new(&*socket).part(PART.0)).unwrap();
        read_all(connect, change, b"2").map_err(|text| format!("{name}: {text}"))?;
        let value = whole.transaction(|tx| tx.get(b"k")).map_err(|error: StoreError| error.to_string())?;
        if value.as_deref() != Some(b"2") {
            return Err(format!("{name}: a transaction finds {value:?}"));
        }
    }
    Ok(())
}

/// Kills a server; another one goes on in other memory.
fn kills() -> Result<(), String> {
    let mut mortal = Mortal::new(None);
    let options = mortal.options(StoreTransport::Mapped).part(PART.0);
    let connect = || Store::connect(options.clone()).unwrap();
    connect().put(b"k", b"1").unwrap();
    let change = || {
        mortal.kill();
        let (memory, next) = copy(mortal.memory());
        change_values(&next);
        drop(next);
        mortal.replace_memory(memory);
        mortal.serve(None);
    };
    read_all(connect, change, b"2").map_err(|text| format!("a kill: {text}"))
}

/// Reads a part one-sided over TCP until its owner's lease has ended, and then still reads.
fn lapses() -> Result<(), String> {
    const TERM: Duration = Duration::from_secs(1);
    let rig = ClusterRig::new(1, 1);
    let store = rig.servers[0].parts.remove(PART).unwrap();
    // A write would wait for a lease that has ended.
    store.put(b"k", b"1").unwrap();
    let end = || boot_time() + TERM;
    let mut until = end();
    store.set_lease(Some(until));
    rig.servers[0].parts.add(PART, Arc::clone(&store)).unwrap();
    let client = Store::connect(ConnectOptions::new(rig.servers[0].address()).part(PART.0)).unwrap();
    let begin = Instant::now();
    while client.one_sided_reads() == 0 {
        assert!(begin.elapsed() < Duration::from_secs(60), "nothing is read one-sided");
        until = end();
        store.set_lease(Some(until));
        client.get(b"k").unwrap();
    }
    while boot_time() <= until {
        std::thread::sleep(Duration::from_millis(10));
    }
    let before = client.one_sided_reads();
    assert_eq!(client.get(b"k").unwrap().as_deref(), Some(&b"1"[..]), "by a call");
    if client.one_sided_reads() == before { Ok(()) } else { Err("a read without a lease".to_owned()) }
}

/// Returns the time on the clock of leases.
fn boot_time() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

/// What the tests below do, in a process of its own where a fault is planted.
pub fn run(order: &str, _: bool) -> Result<(), String> {
    match order {
        "moves" => moves(),
        "kills" => kills(),
        _ => lapses(),
    }
}

#[test]
fn nothing_is_read_one_sided_without_a_lease() {
    assert_eq!(lapses(), Ok(()));
}

#[test]
fn a_part_that_has_moved_is_not_read_where_it_was() {
    assert_eq!(moves(), Ok(()));
}

#[test]
fn the_memory_of_a_killed_owner_is_not_read() {
    assert_eq!(kills(), Ok(()));
}

#[test]
fn reads_of_what_is_over_would_be_noticed() {
    for order in ["moves", "kills", "lapses"] {
        let mut child = children::start("mapped", order, Some(PlantedFault::UnseenLease));
        assert_eq!(child.status(), CAUGHT, "{order}");
    }
}

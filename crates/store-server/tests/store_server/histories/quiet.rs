//! Once all is quiet: each copy is what its primary is, and all memory in use can be reached, on both.
//!
//! The servers go on while this looks at their memory, which their keepers hold: at a copy of the bytes. So a look at a part that
//! is still written to may fail, and is repeated until nothing more happens there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use caravan_cluster::{Configuration, MemberId, PartId};
use caravan_store::{ScanCursor, Store, StoreCopy, StoreOptions};
use caravan_store_server::limits::COPY_RING_BYTES;
use rustix::fs::SeekFrom as SparseSeek;

use super::hosts::Hosts;
use super::several::{PART_BYTES, STORE};

const LOOK_PAUSE: Duration = Duration::from_millis(50);

/// All that can be read of a part, and the memory that it takes.
#[derive(Debug, PartialEq, Eq)]
struct PartContents {
    keys: BTreeMap<Vec<u8>, (Vec<u8>, u64)>,
    /// The used places of each size.
    places: Vec<(u64, u64)>,
}

/// Compares all copies with their primaries, for so long at most: what clients that have ended left undecided is decided first.
/// All copies are complete.
pub fn compare_copies(hosts: &Hosts, most: Duration) -> Result<(), String> {
    let begin = Instant::now();
    loop {
        match compare(hosts) {
            Err(_) if begin.elapsed() < most => std::thread::sleep(LOOK_PAUSE),
            outcome => return outcome,
        }
    }
}

fn compare(hosts: &Hosts) -> Result<(), String> {
    let configuration = hosts.configuration();
    for part in &configuration.parts {
        let primary = part.primary.ok_or("a part has no primary")?;
        let of_primary = read_primary(&folder(hosts, &configuration, primary)?, part.id)
            .map_err(|text| format!("part {}, its primary: {text}", part.id))?;
        for backup in &part.backups {
            let of_copy = read_copy(&folder(hosts, &configuration, *backup)?, part.id)
                .map_err(|text| format!("part {}, its copy: {text}", part.id))?;
            if of_copy != of_primary {
                let (copy, primary) = (&of_copy.keys, &of_primary.keys);
                let differs = |key: &&Vec<u8>| copy.get(*key) != primary.get(*key);
                let other = copy.keys().chain(primary.keys()).find(differs);
                let other = other.map(|key| String::from_utf8_lossy(key).into_owned());
                return Err(format!(
                    "part {}: the copy is not what its primary is: key {other:?}; places {:?} and {:?}",
                    part.id, of_copy.places, of_primary.places
                ));
            }
        }
    }
    Ok(())
}

/// Returns the folder with the descriptors of a member's keeper.
fn folder(hosts: &Hosts, configuration: &Configuration, member: MemberId) -> Result<String, String> {
    let name = configuration.member(member).map(|member| &member.name).ok_or("a member has gone")?;
    Ok(format!("/proc/{}/fd", hosts.keeper_of(name)?))
}

/// Copies a memory of this name that a process has into another one.
fn copied(descriptors: &str, name: &str, to: OwnedFd) -> Result<OwnedFd, String> {
    let failed = |error: &dyn std::fmt::Display| format!("{name}: {error}");
    let wanted = format!("/memfd:{name} (deleted)");
    let found = std::fs::read_dir(descriptors).map_err(|error| failed(&error))?;
    let mut found = found.flatten().map(|entry| entry.path());
    let path = found.find(|path| std::fs::read_link(path).is_ok_and(|link| link == Path::new(&wanted)));
    let from = File::open(path.ok_or_else(|| failed(&"no such memory"))?).map_err(|error| failed(&error))?;
    let bytes = from.metadata().map_err(|error| failed(&error))?.len();
    let to = File::from(to);
    if to.metadata().map_err(|error| failed(&error))?.len() < bytes {
        to.set_len(bytes).map_err(|error| failed(&error))?;
    }
    let mut place = 0;
    // Only what is there: most of it was never written.
    while let Ok(begin) = rustix::fs::seek(&from, SparseSeek::Data(place)) {
        let end = rustix::fs::seek(&from, SparseSeek::Hole(begin)).map_err(|error| failed(&error))?;
        let mut piece = vec![0; (end - begin) as usize];
        from.read_exact_at(&mut piece, begin).map_err(|error| failed(&error))?;
        to.write_all_at(&piece, begin).map_err(|error| failed(&error))?;
        place = end;
    }
    (&to).seek(SeekFrom::Start(0)).map_err(|error| failed(&error))?;
    Ok(to.into())
}

fn read_primary(descriptors: &str, part: PartId) -> Result<PartContents, String> {
    let memory = Store::new_memory("primary").map_err(|error| error.to_string())?;
    let memory = copied(descriptors, &format!("caravan-{STORE}-{part}"), memory)?;
    let store = Store::open(memory, StoreOptions::new(PART_BYTES)).map_err(|error| error.to_string())?;
    contents(&store)
}

fn read_copy(descriptors: &str, part: PartId) -> Result<PartContents, String> {
    let name = format!("caravan-{STORE}-{part}");
    let memory = Store::new_memory("copy").map_err(|error| error.to_string())?;
    let memory = copied(descriptors, &name, memory)?;
    let ring = StoreCopy::new_ring("ring", COPY_RING_BYTES).map_err(|error| error.to_string())?;
    let ring = copied(descriptors, &format!("{name}-ring"), ring)?;
    let copy = StoreCopy::open(memory, ring, StoreOptions::new(PART_BYTES));
    let store = copy.and_then(StoreCopy::promote).map_err(|error| error.to_string())?;
    store.restore().map_err(|error| error.to_string())?;
    contents(&store)
}

fn contents(store: &Store) -> Result<PartContents, String> {
    let failed = |error: caravan_store::StoreError| error.to_string();
    store.audit().map_err(failed)?;
    let mut damaged = Vec::new();
    store.scrub(usize::MAX, |address| damaged.push(address)).map_err(failed)?;
    if !damaged.is_empty() {
        return Err(format!("damaged objects: {damaged:?}"));
    }
    let (mut names, mut cursor) = (Vec::new(), ScanCursor::START);
    loop {
        cursor = store.scan(cursor, 1000, |key| names.push(key.to_vec())).map_err(failed)?;
        if cursor == ScanCursor::START {
            break;
        }
    }
    let mut keys = BTreeMap::new();
    for name in names {
        if let Some(entry) = store.entry(&name).map_err(failed)? {
            keys.insert(name, (entry.value, entry.head.version.to_u64()));
        }
    }
    let classes = store.memory_counts().classes;
    let used = classes.iter().filter(|class| class.used_places > 0);
    Ok(PartContents { keys, places: used.map(|class| (class.place_bytes, class.used_places)).collect() })
}

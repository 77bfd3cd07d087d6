//! Registers: one file, or etcd, and what becomes of them.

mod etcd;
mod file;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use caravan_cluster::{
    Configuration, ConfigurationRegister, NewMember, Revision, StoreInstance, StoredConfiguration,
    SwapOutcome,
};

/// How long a call may take that does not fail.
fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

fn configuration(instance: u128) -> Configuration {
    let member = |name: &str| NewMember {
        name: name.into(),
        client_address: format!("{name}:1"),
        member_address: format!("{name}:2"),
        kept: Vec::new(),
    };
    Configuration::create("test", StoreInstance(instance), 2, 3, &[member("a"), member("b")]).expect("right")
}

/// Returns the configuration with a later epoch.
fn later(configuration: &Configuration) -> Configuration {
    let mut next = configuration.clone();
    next.epoch += 1;
    next
}

/// A folder that goes with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("caravan-registers-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(register: &dyn ConfigurationRegister) -> StoredConfiguration {
    register.read(soon()).expect("readable").expect("written")
}

/// Writes the first configuration.
fn begin(register: &dyn ConfigurationRegister) -> StoredConfiguration {
    let first = configuration(7);
    assert_eq!(register.read(soon()).expect("readable"), None);
    let outcome = register.compare_and_swap(Revision::NONE, &first, soon()).expect("written");
    let stored = read(register);
    assert_eq!((outcome, &stored.configuration), (SwapOutcome::Swapped(stored.revision), &first));
    stored
}

/// Eight threads swap, each on what it has read: each epoch has exactly one author.
fn race(registers: &[&dyn ConfigurationRegister], swaps: u64) {
    let first = begin(registers[0]).configuration.epoch;
    let won: Vec<u64> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..8)
            .map(|index| {
                let register = registers[index % registers.len()];
                scope.spawn(move || {
                    let mut won = Vec::new();
                    let mut stored = read(register);
                    while stored.configuration.epoch < first + swaps {
                        let next = later(&stored.configuration);
                        match register.compare_and_swap(stored.revision, &next, soon()).expect("an outcome") {
                            SwapOutcome::Swapped(revision) => {
                                assert!(revision > stored.revision);
                                won.push(next.epoch);
                                stored = StoredConfiguration { revision, configuration: next };
                            }
                            SwapOutcome::Changed(now) => stored = now.expect("it is never removed"),
                        }
                    }
                    won
                })
            })
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("no panic")).collect()
    });
    let mut epochs = won.clone();
    epochs.sort_unstable();
    assert_eq!(epochs, (first + 1..=first + swaps).collect::<Vec<_>>());
    assert_eq!(read(registers[0]).configuration.epoch, first + swaps);
}

/// A watch returns what was written since, and nothing when nothing was.
fn watches(register: &dyn ConfigurationRegister) {
    let first = begin(register);
    let begin = Instant::now();
    let limit = begin + Duration::from_millis(100);
    assert_eq!(register.watch(first.revision, limit).expect("no news"), None);
    assert!(Instant::now() >= limit && begin.elapsed() < Duration::from_secs(30));
    assert_eq!(register.watch(Revision::NONE, soon()).expect("news").as_ref(), Some(&first));
    std::thread::scope(|scope| {
        let watch = scope.spawn(|| register.watch(first.revision, soon()).expect("news"));
        let next = later(&first.configuration);
        register.compare_and_swap(first.revision, &next, soon()).expect("written");
        let news = watch.join().expect("no panic").expect("news before the deadline");
        assert_eq!(news.configuration, next);
    });
}

/// A configuration of another store is not written over this one.
fn refuses_another_store(register: &dyn ConfigurationRegister) {
    let first = begin(register);
    let error = register.compare_and_swap(first.revision, &configuration(8), soon()).expect_err("refused");
    assert!(error.to_string().contains("instance 00000000000000000000000000000007"), "{error}");
    // Who makes a store, at the same moment as somebody else, is told of the other one.
    let outcome = register.compare_and_swap(Revision::NONE, &configuration(8), soon()).expect("an outcome");
    assert_eq!(outcome, SwapOutcome::Changed(Some(first.clone())));
    assert_eq!(read(register), first);
}

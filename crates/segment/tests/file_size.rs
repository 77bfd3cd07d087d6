//! Under a limit on the size of files (`ulimit -f`), which holds for the whole process: this test is alone here.
#![forbid(unsafe_code)]

use std::os::fd::AsFd;

use caravan_segment::counters::{CounterTable, TableKind};
use caravan_segment::{Error, Pages, Segment};
use rustix::process::{Resource, Rlimit};

const LIMIT: u64 = 64 << 10;

/// Without the check, the kernel would send SIGXFSZ, which ends the process.
#[test]
fn memory_above_the_limit_on_files_is_an_error_and_no_signal() {
    let before = Segment::create("caravan-test", 4 * LIMIT, Pages::Small).unwrap();
    let limit = Rlimit { current: Some(LIMIT), ..rustix::process::getrlimit(Resource::Fsize) };
    rustix::process::setrlimit(Resource::Fsize, limit).unwrap();

    for pages in [Pages::Small, Pages::HugeIfOffered] {
        let refused = Segment::create("caravan-test", LIMIT + 1, pages).unwrap_err();
        assert!(matches!(refused, Error::FileSize { limit: LIMIT, .. }), "{refused}");
        assert!(refused.to_string().contains("ulimit -f"), "{refused}");
    }
    let table = CounterTable::create(TableKind::Links, "test", &["count"]);
    assert!(matches!(table, Err(Error::FileSize { .. })));

    let small = Segment::create("caravan-test", LIMIT, Pages::Small).unwrap();
    small.grow(LIMIT).unwrap();
    // A segment that was made under another limit, here or by a peer, can be used.
    before.grow(4 * LIMIT).unwrap();
    Segment::attach(before.as_fd().try_clone_to_owned().unwrap(), 4 * LIMIT).unwrap();
}

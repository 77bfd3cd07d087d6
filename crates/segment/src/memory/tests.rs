use super::*;

fn segment(bytes: u64) -> Arc<Segment> {
    let segment = Segment::create("caravan-test", bytes, Pages::Small).unwrap();
    segment.grow(bytes).unwrap();
    Arc::new(segment)
}

#[test]
fn two_mappings_of_one_file_see_the_same_bytes() {
    let ours = segment(8192);
    let theirs = Arc::new(Segment::attach(ours.as_fd().try_clone_to_owned().unwrap(), 8192).unwrap());
    ours.slice(0, 8192).unwrap().copy_in(100, b"over there");
    let mut seen = [0; 10];
    theirs.slice(96, 64).unwrap().copy_out(4, &mut seen);
    assert_eq!(&seen, b"over there");
}

#[test]
fn a_window_must_be_committed_and_inside() {
    let segment = Arc::new(Segment::create("caravan-test", 1 << 20, Pages::Small).unwrap());
    assert!(matches!(segment.slice(0, 4096), Err(Error::Range { .. })));
    segment.grow(4096).unwrap();
    assert!(segment.slice(0, 4096).is_ok());
    assert!(matches!(segment.slice(8, 4096), Err(Error::Range { .. })));
    assert!(matches!(segment.slice(u64::MAX - 3, 8), Err(Error::Range { .. })));
    assert!(matches!(segment.grow((1 << 20) + 1), Err(Error::Size { .. })));
}

#[test]
#[should_panic(expected = "outside a slice")]
fn a_copy_past_the_end_panics_instead_of_writing() {
    segment(4096).slice(0, 64).unwrap().copy_in(60, b"12345");
}

#[test]
fn a_file_that_could_shrink_is_refused() {
    let file = rustix::fs::memfd_create("caravan-test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    assert!(matches!(Segment::attach(file, 4096), Err(Error::Foreign(_))));
    let sealed = segment(4096);
    let file = sealed.as_fd().try_clone_to_owned().unwrap();
    assert!(matches!(Segment::attach(file, 8192), Err(Error::Foreign(_))));
}

#[test]
fn looking_at_the_start_of_a_segment_commits_none_of_it() {
    let ours = Arc::new(Segment::create("caravan-test", 1 << 30, Pages::Small).unwrap());
    ours.grow(8192).unwrap();
    ours.slice(0, 8192).unwrap().word(4096).store(7, Ordering::Relaxed);
    let file = || ours.as_fd().try_clone_to_owned().unwrap();
    let theirs = Arc::new(Segment::attach_committed(file(), 8192).unwrap());
    assert_eq!(theirs.slice(0, 8192).unwrap().word(4096).load(Ordering::Relaxed), 7);
    assert_eq!(theirs.committed_bytes(), 8192);
    assert!(matches!(theirs.slice(0, 8200), Err(Error::Range { .. })));
    assert!(matches!(theirs.grow(1 << 20), Err(Error::Size { .. })), "it is not ours to grow");
    assert_eq!(rustix::fs::fstat(&ours.file).unwrap().st_blocks, 16, "8192 bytes are backed, and no more");

    assert!(matches!(Segment::attach_committed(file(), (1 << 30) + 1), Err(Error::Foreign(_))));
    assert!(matches!(Segment::attach_committed(file(), u64::MAX), Err(Error::Foreign(_))));
    assert!(matches!(Segment::attach_committed(file(), 0), Err(Error::Foreign(_))));
}

#[test]
fn a_file_that_could_shrink_is_not_looked_at_either() {
    let file = rustix::fs::memfd_create("caravan-test", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&file, 4096).unwrap();
    assert!(matches!(Segment::attach_committed(file, 4096), Err(Error::Foreign(_))));
}

#[test]
fn huge_pages_or_not_it_works_and_says_so() {
    let segment = Arc::new(Segment::create("caravan-test", 4 << 20, Pages::HugeIfOffered).unwrap());
    segment.grow(segment.maximum_bytes()).unwrap();
    let slice = segment.slice(0, 4 << 20).unwrap();
    slice.word((4 << 20) - 8).store(7, Ordering::Relaxed);
    assert_eq!(slice.word((4 << 20) - 8).load(Ordering::Relaxed), 7);
    let file = segment.as_fd().try_clone_to_owned().unwrap();
    let start = Arc::new(Segment::attach_committed(file.try_clone().unwrap(), 4096).unwrap());
    assert_eq!(start.slice(0, 4096).unwrap().word(0).load(Ordering::Relaxed), 0);
    assert_eq!(start.pages(), segment.pages());
    drop(start);
    let refused = Segment::attach(file, segment.maximum_bytes()).is_err();
    assert_eq!(refused, segment.pages() == Pages::HugeIfOffered, "a stranger's huge pages");
}

#[test]
fn more_memory_than_there_is_is_an_error() {
    let segment = Segment::create("caravan-test", 1 << 43, Pages::Small).unwrap();
    assert!(matches!(segment.grow(1 << 43), Err(Error::OutOfMemory { .. })));
}

#[test]
fn a_kept_file_becomes_the_same_segment_again() {
    let kept = Segment::empty_file("caravan-test").unwrap();
    let adopt = |committed| Segment::adopt(kept.try_clone().unwrap(), 8192, committed);
    let first = Arc::new(adopt(0).unwrap());
    assert!(first.slice(0, 8).is_err());
    first.grow(4096).unwrap();
    first.slice(0, 4096).unwrap().copy_in(0, b"kept");
    drop(first);
    let second = Arc::new(adopt(4096).unwrap());
    let mut seen = [0; 4];
    second.slice(0, 4096).unwrap().copy_out(0, &mut seen);
    assert_eq!(&seen, b"kept");
    assert!(matches!(second.slice(4096, 8), Err(Error::Range { .. })));
    // It is sealed now, and stays as large as it is.
    assert!(rustix::fs::ftruncate(&kept, 0).is_err());
    let other = Segment::adopt(kept.try_clone().unwrap(), 4096, 0);
    assert!(matches!(other, Err(Error::Foreign(_))), "{other:?}");
    assert!(matches!(adopt(8193), Err(Error::Size { .. })));
    let file = std::fs::File::open("/proc/self/exe").unwrap();
    assert!(matches!(Segment::adopt(file.into(), 8192, 0), Err(Error::Foreign(_))));
}

#[test]
fn pages_are_joined_whether_they_were_touched_or_not_and_keep_their_bytes() {
    let page = JOINED_PAGE_BYTES;
    let file = Segment::empty_file("caravan-test").unwrap();
    let reader = file.try_clone().unwrap();
    let owner = Arc::new(Segment::adopt(file, 4 * page, 0).unwrap());
    owner.grow(page / 2).unwrap();
    owner.slice(0, page / 2).unwrap().word(8).store(7, Ordering::Relaxed);
    let view = crate::SegmentView::attach(reader, 4 * page).unwrap();
    assert_eq!(view.load(8), 7);
    owner.grow(3 * page + page / 2).unwrap();
    owner.slice(0, 3 * page).unwrap().word(2 * page as usize).store(8, Ordering::Relaxed);
    assert_eq!([8, 2 * page as usize, 3 * page as usize].map(|at| view.load(at)), [7, 8, 0]);
    for address in [owner.slice(0, 8).unwrap().address(0, 8).addr(), view.address().addr()] {
        assert_eq!(address % page as usize, 0, "no joined page can be mapped");
    }
    let blocks = rustix::fs::fstat(&owner.file).unwrap().st_blocks as u64;
    assert_eq!(512 * blocks, 3 * page + page / 2, "what is not committed is not backed");
}

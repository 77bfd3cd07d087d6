//! Files that are looked at where they are: a hop with a digest, unsealed, not compressed.

use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom};
use std::path::PathBuf;

use super::super::inlet::Source;
use super::super::outlet::Sink;
use super::super::splice::Splice;
use super::*;

/// A file with a name, as only those are held; gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str, bytes: &[u8]) -> Self {
        let path = std::env::temp_dir().join(format!("caravan-looked-{}-{name}", std::process::id()));
        std::fs::write(&path, bytes).expect("written");
        Self(path)
    }

    fn open(&self) -> File {
        File::open(&self.0).expect("open")
    }

    fn append(&self) -> File {
        OpenOptions::new().append(true).open(&self.0).expect("open to write")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn is_looked_at(file: File) -> bool {
    let (near, _far) = hop(1);
    let sink = Sink::new(to_hop(near, &OPTIONS), TIMING).expect("begun");
    let source = Source::new(Inlet::Descriptor(file.into()), TIMING).expect("begun");
    Splice::between(&source, &sink, &shape(DigestKind::Xxh3)).is_some()
}

#[test]
fn files_arrive_as_they_are_from_where_they_stand() {
    let data = pattern((9 << 20) + 7);
    let scratch = Scratch::new("whole", &data);
    assert!(is_looked_at(scratch.open()));
    for digest in [DigestKind::Xxh3, DigestKind::Sha256] {
        for start in [0, 6, (1 << 20) - 1, 5 << 20, (9 << 20) + 7] {
            let mut file = scratch.open();
            file.seek(SeekFrom::Start(start as u64)).expect("sought");
            let after = file.try_clone().expect("the same open file");
            let ((near, far), (outlet, drain)) = (hop(1), drained());
            let options = HopOptions { digest, ..OPTIONS };
            let inlet = Inlet::Descriptor(file.into());
            let sender = Running::start(inlet, vec![to_hop(near, &options)], MoverOptions::default());
            let receiver = Running::start(from_hop(far, &options), vec![outlet], MoverOptions::default());
            assert!(all_of(drain) == data[start..], "from {start} on");
            let (sent, received) = (sender.join(), receiver.join());
            assert!(is_complete(&sent) && is_complete(&received), "{sent:?} {received:?}");
            assert_eq!(sent.bytes, (data.len() - start) as u64);
            assert!(sent.digest.is_some() && sent.digest == received.digest, "{sent:?} {received:?}");
            assert_eq!(
                (&after).stream_position().expect("told"),
                data.len() as u64,
                "it was read to its end"
            );
        }
    }
    // Nothing holds it any more.
    drop(scratch.append());
}

#[test]
fn small_ones_and_those_that_are_being_written_are_copied() {
    let scratch = Scratch::new("small", &pattern(4 << 20));
    assert!(is_looked_at(scratch.open()));
    let writer = scratch.append();
    assert!(!is_looked_at(scratch.open()));
    drop(writer);
    let smaller = Scratch::new("smaller", &pattern((4 << 20) - 1));
    assert!(!is_looked_at(smaller.open()));
}

#[test]
fn whoever_wants_to_write_can_though_nobody_reads_and_what_is_written_then_comes_too() {
    let data = pattern(12 << 20);
    let scratch = Scratch::new("wanted", &data);
    let ((near, far), (outlet, drain)) = (hop(1), drained());
    // There is no receiver yet that would say that it lives.
    let options = HopOptions { silence: None, ..OPTIONS };
    let inlet = Inlet::Descriptor(scratch.open().into());
    let sender = Running::start(inlet, vec![to_hop(near, &options)], MoverOptions::default());
    // The stream is full soon, and stays so.
    while sender.gauge.bytes.load(Ordering::Relaxed) == 0 {
        std::thread::yield_now();
    }
    let since = std::time::Instant::now();
    scratch.append().write_all(b" and more").expect("written");
    // The kernel itself would make it wait for 45 s.
    assert!(since.elapsed() < Duration::from_secs(10), "{:?}", since.elapsed());
    assert!(sender.gauge.bytes.load(Ordering::Relaxed) < 12 << 20, "it is still being sent");
    let receiver = Running::start(from_hop(far, &options), vec![outlet], MoverOptions::default());
    let got = all_of(drain);
    let (sent, received) = (sender.join(), receiver.join());
    assert!(is_complete(&sent) && is_complete(&received), "{sent:?} {received:?}");
    assert!(got[..12 << 20] == data && got[12 << 20..] == *b" and more");
}

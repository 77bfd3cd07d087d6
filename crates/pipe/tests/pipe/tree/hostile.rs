//! Tests hostile streams: each is an error, and nothing outside of the destination changes.

use std::fs;
use std::path::Path;

use caravan_pipe::tree::Attributes;
use caravan_pipe::tree::format::{FRAME_BYTES_MAX, MAGIC, TreeFrameKind, frame};
use caravan_pipe::tree::records::{self, LargeBegin, TreePath, TreeRecord};

use super::common::{ScratchFolder, Wanted, tree_of};

const PLAIN: Attributes = Attributes { mode: 0o644, owner: 0, group: 0, seconds: 1, nanoseconds: 0 };
const TOP: TreePath<'static> = TreePath { root: 0, path: b"" };

fn spot(path: &[u8]) -> TreePath<'_> {
    TreePath { root: 0, path }
}

fn batch(folders: &[TreePath<'_>], all: &[TreeRecord<'_>]) -> Vec<u8> {
    let folders: Vec<_> = folders.iter().map(|folder| (*folder, 0o755)).collect();
    batch_of(&folders, all)
}

/// Returns a batch of directories with their permissions, and then records.
pub fn batch_of(folders: &[(TreePath<'_>, u32)], all: &[TreeRecord<'_>]) -> Vec<u8> {
    let mut made = Vec::new();
    for (folder, mode) in folders {
        records::put_spot(&mut made, *folder);
        made.extend_from_slice(&mode.to_le_bytes());
        made.extend_from_slice(&0_u32.to_le_bytes());
    }
    let mut payload = (made.len() as u32).to_le_bytes().to_vec();
    payload.extend_from_slice(&made);
    all.iter().for_each(|record| records::put(&mut payload, record));
    frame(TreeFrameKind::Batch, &payload)
}

pub fn begin(begin: &LargeBegin<'_>) -> Vec<u8> {
    let mut payload = Vec::new();
    records::put_begin(&mut payload, begin);
    frame(TreeFrameKind::Begin, &payload)
}

pub fn data(offset: u64, bytes: &[u8]) -> Vec<u8> {
    frame(TreeFrameKind::Data, &[&offset.to_le_bytes(), bytes].concat())
}

pub fn end(size: u64) -> Vec<u8> {
    frame(TreeFrameKind::End, &[&[1], &size.to_le_bytes()[..]].concat())
}

pub fn finish() -> Vec<u8> {
    frame(TreeFrameKind::Finish, &[0; 8])
}

fn file(name: &[u8]) -> TreeRecord<'_> {
    TreeRecord::File { name, attributes: PLAIN, content: b"evil" }
}

/// Returns a batch of the source itself with one record in it.
fn in_top(record: TreeRecord<'_>) -> Vec<u8> {
    batch(&[TOP], &[TreeRecord::Folder(TOP), record])
}

fn large<'a>(folder: TreePath<'a>, name: &'a [u8], size: u64) -> LargeBegin<'a> {
    LargeBegin { folder, name, attributes: PLAIN, size, kept: 0, is_apart: false }
}

/// Returns the frames of a large file of one byte.
fn large_file(folder: TreePath<'_>, name: &[u8]) -> Vec<u8> {
    [begin(&large(folder, name, 1)), data(0, b"x"), end(1)].concat()
}

/// Checks that each stream is refused, or changes nothing but the destination.
fn refused(name: &str, frames: &[Vec<u8>]) {
    let folder = ScratchFolder::new();
    let (outside, to) = (folder.join("outside"), folder.join("to"));
    fs::create_dir(&outside).expect("a folder");
    fs::write(outside.join("victim"), b"untouched").expect("a file");
    fs::write(folder.join("victim"), b"untouched").expect("a file");
    let before = (tree_of(&outside), fs::read(folder.join("victim")).expect("read"));
    let stream = [MAGIC.to_vec(), frames.concat()].concat();
    let result = Wanted::tree(Path::new("x"), &to).replay(&stream[..]);
    let error = result.expect_err(name).to_string();
    assert!(!error.is_empty());
    assert_eq!(
        before,
        (tree_of(&outside), fs::read(folder.join("victim")).expect("read")),
        "{name}: {error}"
    );
    let beside: Vec<_> =
        fs::read_dir(&folder.0).expect("listed").map(|entry| entry.expect("an entry").file_name()).collect();
    assert!(
        beside.iter().all(|name| ["outside", "to", ".to.part", "victim"].iter().any(|known| name == known)),
        "{name}: {beside:?}"
    );
}

#[test]
fn no_path_leads_out() {
    let paths: [&[u8]; 11] = [
        b"..",
        b"../outside",
        b"a/../../outside",
        b"/etc",
        b"/",
        b"a//b",
        b"a/",
        b".",
        b"a/./b",
        b"a\0b",
        &[b'x'; 5000],
    ];
    for path in paths {
        let shown = String::from_utf8_lossy(path).into_owned();
        refused(&shown, &[batch(&[TOP, spot(path)], &[]), finish()]);
        refused(&shown, &[batch(&[TOP], &[TreeRecord::Folder(spot(path)), file(b"victim")]), finish()]);
        let leave = TreeRecord::Leave { spot: spot(path), attributes: PLAIN };
        refused(&shown, &[batch(&[TOP], &[leave]), finish()]);
        refused(&shown, &[in_top(TreeRecord::Link { name: b"x", target: spot(path) }), finish()]);
        refused(&shown, &[batch(&[TOP], &[]), large_file(spot(path), b"victim"), finish()]);
    }
}

#[test]
fn no_name_is_a_path() {
    for name in [&b".."[..], b".", b"a/b", b"../victim", b"/etc/x", b"a\0", b""] {
        let shown = String::from_utf8_lossy(name).into_owned();
        for record in [
            file(name),
            TreeRecord::Symlink { name, attributes: PLAIN, target: b"x" },
            TreeRecord::Fifo { name, attributes: PLAIN },
            TreeRecord::Link { name, target: spot(b"a") },
        ] {
            refused(&shown, &[in_top(record), finish()]);
        }
        if !name.is_empty() {
            refused(&shown, &[batch(&[TOP], &[]), large_file(TOP, name), finish()]);
        }
    }
}

#[test]
fn nothing_is_written_through_a_link_that_came_before() {
    for target in [&b"../outside"[..], b"/tmp", b"..", b"."] {
        let link = TreeRecord::Symlink { name: b"link", attributes: PLAIN, target };
        let first = || in_top(link);
        // The link itself is valid; files below it fail, one by one.
        let below = batch(&[], &[TreeRecord::Folder(spot(b"link")), file(b"victim")]);
        refused("a file", &[first(), below, finish()]);
        refused("a folder", &[first(), batch(&[spot(b"link")], &[]), finish()]);
        refused("below", &[first(), batch(&[spot(b"link/x")], &[]), finish()]);
        let attributes = Attributes { mode: 0o777, ..PLAIN };
        let leave = batch(&[], &[TreeRecord::Leave { spot: spot(b"link"), attributes }]);
        refused("a mode", &[first(), leave, finish()]);
        let hard = TreeRecord::Link { name: b"x", target: spot(b"link/victim") };
        refused("a hard link", &[first(), batch(&[], &[TreeRecord::Folder(TOP), hard]), finish()]);
        refused("large", &[first(), large_file(spot(b"link"), b"victim"), finish()]);
    }
}

#[test]
fn a_part_that_is_a_link_is_not_written_through() {
    let folder = ScratchFolder::new();
    fs::write(folder.join("victim"), b"untouched").expect("a file");
    let link = TreeRecord::Symlink { name: b".x.part", attributes: PLAIN, target: b"../victim" };
    let large = large(TOP, b"x", 4);
    let frames = [in_top(link), begin(&large), data(0, b"evil"), end(4), finish()];
    let stream = [MAGIC.to_vec(), frames.concat()].concat();
    // Whether or not the link existed before, it is not followed.
    for _ in 0..2 {
        let _ = Wanted::tree(Path::new("x"), &folder.join("to")).replay(&stream[..]);
        assert_eq!(fs::read(folder.join("victim")).expect("read"), b"untouched");
    }
    let kept = LargeBegin { kept: 2, ..large };
    let frames = [in_top(link), begin(&kept), data(2, b"il"), end(4), finish()];
    let stream = [MAGIC.to_vec(), frames.concat()].concat();
    let _ = Wanted::tree(Path::new("x"), &folder.join("to/x")).replay(&stream[..]);
    assert_eq!(fs::read(folder.join("victim")).expect("read"), b"untouched");
}

#[test]
fn what_makes_no_sense_is_refused() {
    let large = large(TOP, b"x", 4);
    let top = || batch(&[TOP], &[]);
    let other = TreePath { root: 1, path: b"" };
    let nowhere = TreeRecord::Symlink { name: b"x", attributes: PLAIN, target: b"" };
    let bad_mode = Attributes { mode: 0o170_000, ..PLAIN };
    let bad_time = Attributes { nanoseconds: 1_000_000_000, ..PLAIN };
    for (name, frames) in [
        ("nothing at all", vec![]),
        ("no end", vec![top()]),
        ("another source", vec![batch(&[other], &[]), finish()]),
        ("a name without a folder", vec![batch(&[TOP], &[file(b"x")]), finish()]),
        (
            "a folder that was not made",
            vec![top(), batch(&[], &[TreeRecord::Folder(spot(b"no")), file(b"x")]), finish()],
        ),
        ("data of nothing", vec![top(), data(0, b"x"), finish()]),
        ("an end of nothing", vec![top(), end(0), finish()]),
        ("two at once", vec![top(), begin(&large), begin(&large), finish()]),
        ("an end within a file", vec![top(), begin(&large), finish()]),
        ("a batch within a file", vec![top(), begin(&large), top(), finish()]),
        ("more than announced", vec![top(), begin(&large), data(0, b"12345"), end(4), finish()]),
        ("beyond the end", vec![top(), begin(&large), data(u64::MAX, b"1"), end(4), finish()]),
        ("backwards", vec![top(), begin(&large), data(2, b"1"), data(0, b"1"), end(4), finish()]),
        ("another size", vec![top(), begin(&large), data(0, b"1234"), end(5), finish()]),
        ("more kept than there is", vec![top(), begin(&LargeBegin { kept: 5, ..large }), finish()]),
        ("an endless size", vec![top(), begin(&LargeBegin { size: u64::MAX - 1, ..large }), finish()]),
        ("a part that is not there", vec![top(), begin(&LargeBegin { kept: 4, ..large }), end(4), finish()]),
        ("a mode", vec![batch(&[TOP], &[TreeRecord::Leave { spot: TOP, attributes: bad_mode }]), finish()]),
        ("a time", vec![batch(&[TOP], &[TreeRecord::Leave { spot: TOP, attributes: bad_time }]), finish()]),
        ("a record", vec![frame(TreeFrameKind::Batch, &[0, 0, 0, 0, b'?']), finish()]),
        ("directories without an end", vec![frame(TreeFrameKind::Batch, &[255, 0, 0, 0]), finish()]),
        ("an answer", vec![frame(TreeFrameKind::Answer, &[]), finish()]),
        ("an offer", vec![frame(TreeFrameKind::Offer, &[0; 11]), finish()]),
        ("a link to itself", vec![in_top(TreeRecord::Link { name: b"x", target: spot(b"x") }), finish()]),
        ("a link to a folder", vec![in_top(TreeRecord::Link { name: b"x", target: TOP }), finish()]),
        ("a link without a target", vec![in_top(nowhere), finish()]),
    ] {
        refused(name, &frames);
    }
    let mut length = frame(TreeFrameKind::Batch, &[]);
    length[4..8].copy_from_slice(&(FRAME_BYTES_MAX as u32 + 1).to_le_bytes());
    refused("a length", &[length]);
    let mut damaged = in_top(file(b"x"));
    *damaged.last_mut().expect("a byte") ^= 1;
    refused("a flipped bit", &[damaged, finish()]);
}

#[test]
fn a_file_cannot_become_a_tree() {
    let folder = ScratchFolder::new();
    let stream = [MAGIC.to_vec(), in_top(file(b"x")), finish()].concat();
    let wanted = Wanted::file(Path::new("x"), &folder.join("to"));
    let error = wanted.replay(&stream[..]).expect_err("refused").to_string();
    assert!(error.contains("nobody asked for"), "{error}");
    assert!(!folder.join("to").exists());
}

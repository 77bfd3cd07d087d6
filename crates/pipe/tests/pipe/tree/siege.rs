//! Tests with a real other user who owns the destination directory and swaps its names all the time. They need the
//! superuser; otherwise they say so and pass.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use caravan_pipe::tree::Attributes;
use caravan_pipe::tree::format::MAGIC;
use caravan_pipe::tree::records::{LargeBegin, TreePath, TreeRecord};
use rustix::fs::{CWD, OFlags, RenameFlags, renameat_with};
use rustix::process::{Gid, Uid};

use super::common::{ScratchFolder, Wanted, bytes};
use super::hostile::{batch_of, begin, data, end, finish};

/// The user who swaps names.
const STRANGER: u32 = 54_321;
const ROUNDS: usize = 1000;
/// The number of names in the directory beyond which the stranger removes what he can.
const NAMES_MAX: usize = 32;
/// A variable that is set for a test with a process of its own.
const OWN_PROCESS: &str = "CARAVAN_TEST_SIEGE";
const SECRET: &[u8] = b"for nobody else";

fn attributes(mode: u32) -> Attributes {
    Attributes { mode, owner: 0, group: 0, seconds: 1, nanoseconds: 0 }
}

/// A directory of the stranger's, and a file of the superuser's beside it.
struct Besieged {
    folder: ScratchFolder,
    victim: PathBuf,
    field: PathBuf,
}

impl Besieged {
    /// Returns a directory only in a process of its own, which this starts: nobody needs the output of thousands of
    /// failing copies.
    fn new(test: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("another user takes the superuser to play");
            return None;
        }
        if std::env::var_os(OWN_PROCESS).is_none() {
            let mut own = Command::new(std::env::current_exe().expect("this program"));
            let own = own.args(["--exact", &format!("tree::siege::{test}")]).env(OWN_PROCESS, "1");
            let output = own.output().expect("it starts");
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return None;
        }
        let folder = ScratchFolder::new();
        fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o711)).expect("a mode");
        let (victim, field) = (folder.join("victim"), folder.join("field"));
        fs::write(&victim, SECRET).expect("a file");
        fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).expect("a mode");
        fs::create_dir(&field).expect("a folder");
        chown(&field, Some(STRANGER), Some(STRANGER)).expect("given away");
        Some(Self { folder, victim, field })
    }

    /// Copies while the stranger swaps `names` and the names of parts.
    fn copy(&self, names: &[&str], stream: &[u8], wanted: &Wanted) {
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| self.swap(names, &is_over));
            for _ in 0..ROUNDS {
                let _ = wanted.replay(stream);
            }
            is_over.store(true, Ordering::Relaxed);
        });
        let victim = fs::metadata(&self.victim).expect("there");
        assert_eq!((victim.mode() & 0o7777, victim.uid(), victim.nlink()), (0o600, 0, 1));
        assert_eq!(fs::read(&self.victim).expect("read"), SECRET);
    }

    /// Swaps names as the stranger, whom the kernel keeps from files that are not his.
    fn swap(&self, names: &[&str], is_over: &AtomicBool) {
        let stranger = (Uid::from_raw(STRANGER), Gid::from_raw(STRANGER));
        rustix::thread::set_thread_groups(&[]).expect("no groups");
        rustix::thread::set_thread_res_gid(stranger.1, stranger.1, stranger.1).expect("a group");
        rustix::thread::set_thread_res_uid(stranger.0, stranger.0, stranger.0).expect("a user");
        let mut state = 1_u64;
        while !is_over.load(Ordering::Relaxed) {
            let mut known: Vec<PathBuf> = names.iter().map(|name| self.field.join(name)).collect();
            let there = fs::read_dir(&self.field).into_iter().flatten().flatten();
            known.extend(there.map(|entry| entry.path()));
            for _ in 0..known.len() {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let at = |shift: u32| &known[(state >> shift) as usize % known.len()];
                self.strike((state >> 60) as u8, at(20), at(35));
            }
            for path in &known {
                assert_unreadable(path);
                assert_unreadable(&path.join("f"));
            }
            if known.len() > NAMES_MAX {
                known.iter().for_each(|path| _ = fs::remove_file(path).or_else(|_| fs::remove_dir_all(path)));
            }
        }
    }

    fn strike(&self, how: u8, one: &Path, other: &Path) {
        match how {
            0 => _ = fs::remove_file(one),
            1 => _ = symlink(&self.victim, one),
            2 => _ = fs::create_dir(one),
            3 => _ = fs::remove_dir(one).or_else(|_| fs::remove_dir_all(one)),
            4 => _ = fs::hard_link(other, one),
            // A FIFO that nobody reads must not block the stranger.
            5 => {
                let flags = OFlags::NONBLOCK.bits() as i32;
                let _ = fs::OpenOptions::new()
                    .write(true)
                    .create(true)
                    .truncate(true)
                    .custom_flags(flags)
                    .open(one);
            }
            6 => _ = symlink(&self.folder.0, one),
            7 => _ = fs::rename(one, other),
            _ => _ = renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE),
        }
    }
}

/// Checks that no file that the stranger can open has secret content.
fn assert_unreadable(path: &Path) {
    let flags = (OFlags::NOFOLLOW | OFlags::NONBLOCK).bits() as i32;
    let Ok(file) = fs::OpenOptions::new().read(true).custom_flags(flags).open(path) else { return };
    let mut start = Vec::new();
    if file.metadata().is_ok_and(|data| data.is_file()) {
        let _ = file.take(SECRET.len() as u64).read_to_end(&mut start);
    }
    assert_ne!(start, SECRET, "{}", path.display());
}

fn file(mode: u32, name: &'static [u8], content: &'static [u8]) -> TreeRecord<'static> {
    TreeRecord::File { name, attributes: attributes(mode), content }
}

fn spot(path: &[u8]) -> TreePath<'_> {
    TreePath { root: 0, path }
}

fn stream(frames: &[Vec<u8>]) -> Vec<u8> {
    [MAGIC.to_vec(), frames.concat(), finish()].concat()
}

#[test]
fn files_links_and_fifos_of_a_besieged_directory_stay_what_they_are() {
    let Some(besieged) = Besieged::new("files_links_and_fifos_of_a_besieged_directory_stay_what_they_are")
    else {
        return;
    };
    let fifo = |name, mode| TreeRecord::Fifo { name, attributes: attributes(mode) };
    let given = Attributes { owner: STRANGER, group: STRANGER, ..attributes(0o777) };
    let records = [
        TreeRecord::Folder(spot(b"")),
        file(0o600, b"private", SECRET),
        file(0o644, b"public", b"for all"),
        fifo(b"fifo0", 0o600),
        fifo(b"fifo6", 0o666),
        // The stranger gets only files that were made for him.
        TreeRecord::Symlink { name: b"link", attributes: given, target: b"public" },
        TreeRecord::Fifo { name: b"his", attributes: given },
        TreeRecord::Link { name: b"again", target: spot(b"public") },
    ];
    let stream = stream(&[batch_of(&[(spot(b""), 0o777)], &records)]);
    let wanted = Wanted::tree(Path::new("x/."), &besieged.field);
    besieged.copy(&["private", "public", "fifo0", "fifo6", "link", "his"], &stream, &wanted);
}

#[test]
fn directories_of_a_besieged_directory_keep_what_is_in_them() {
    let Some(besieged) = Besieged::new("directories_of_a_besieged_directory_keep_what_is_in_them") else {
        return;
    };
    let leave = |path, mode| TreeRecord::Leave { spot: spot(path), attributes: attributes(mode) };
    let open = [TreeRecord::Folder(spot(b"open")), file(0o644, b"g", b"for all"), leave(b"open", 0o755)];
    let closed = [TreeRecord::Folder(spot(b"closed")), file(0o644, b"f", SECRET), leave(b"closed", 0o700)];
    let top = batch_of(&[(spot(b""), 0o777)], &[]);
    let both = batch_of(&[(spot(b"closed"), 0o700), (spot(b"open"), 0o755)], &closed);
    let stream = stream(&[top, both, batch_of(&[], &open)]);
    let wanted = Wanted::tree(Path::new("x/."), &besieged.field);
    besieged.copy(&["closed", "open"], &stream, &wanted);
}

#[test]
fn a_new_tree_in_a_besieged_directory_is_nobody_elses() {
    let Some(besieged) = Besieged::new("a_new_tree_in_a_besieged_directory_is_nobody_elses") else { return };
    let leave = |path, mode| TreeRecord::Leave { spot: spot(path), attributes: attributes(mode) };
    let records = [TreeRecord::Folder(spot(b"")), file(0o644, b"f", SECRET), leave(b"", 0o700)];
    let stream = stream(&[batch_of(&[(spot(b""), 0o700)], &records)]);
    // The copy goes into a directory under its own name, and to a new name, for which a part may be planted.
    besieged.copy(&["x"], &stream, &Wanted::tree(Path::new("x"), &besieged.field));
    besieged.copy(&["new", ".new.part"], &stream, &Wanted::tree(Path::new("x"), &besieged.field.join("new")));
}

#[test]
fn large_files_of_a_besieged_directory_are_not_gone_on_with() {
    let Some(besieged) = Besieged::new("large_files_of_a_besieged_directory_are_not_gone_on_with") else {
        return;
    };
    let large = |name, mode, content: &[u8]| {
        let size = content.len() as u64;
        let begun = LargeBegin {
            folder: spot(b""),
            name,
            attributes: attributes(mode),
            size,
            kept: 0,
            is_apart: false,
        };
        [begin(&begun), data(0, content), end(size)].concat()
    };
    let top = batch_of(&[(spot(b""), 0o777)], &[]);
    let stream = stream(&[top, large(b"private", 0o600, SECRET), large(b"public", 0o644, b"for all")]);
    let names = ["private", "public", ".private.part", ".public.part"];
    besieged.copy(&names, &stream, &Wanted::tree(Path::new("x/."), &besieged.field));
}

/// Without any race: a file that another user has planted is never resumed.
#[test]
fn what_another_user_has_planted_is_not_gone_on_with() {
    let Some(besieged) = Besieged::new("what_another_user_has_planted_is_not_gone_on_with") else { return };
    let from = besieged.folder.join("from");
    let content = bytes(3 << 20, 5);
    fs::create_dir(&from).expect("a folder");
    fs::write(from.join("large"), &content).expect("a file");
    fs::set_permissions(from.join("large"), fs::Permissions::from_mode(0o600)).expect("a mode");
    fs::set_permissions(&from, fs::Permissions::from_mode(0o700)).expect("a mode");

    // A file with the right first byte.
    let (to, part) = (besieged.field.join("large"), besieged.field.join(".large.part"));
    fs::write(&part, &content[..1]).expect("a part");
    chown(&part, Some(STRANGER), Some(STRANGER)).expect("given away");
    Wanted::file(&from.join("large"), &to).run().ok();
    assert_eq!(fs::read(&part).expect("untouched").len(), 1);
    assert_eq!(fs::metadata(&to).expect("there").uid(), 0);
    assert!(fs::read(&to).expect("read") == content);

    // A directory for a directory that does not exist yet.
    let part = besieged.field.join(".backup.part");
    fs::create_dir(&part).expect("a folder");
    chown(&part, Some(STRANGER), Some(STRANGER)).expect("given away");
    Wanted::tree(&from, &besieged.field.join("backup")).run().ok();
    let backup = fs::metadata(besieged.field.join("backup")).expect("there");
    assert_eq!((backup.uid(), backup.mode() & 0o777), (0, 0o700));
    assert_eq!(fs::read_dir(&part).expect("listed").count(), 0);

    // A directory in the place of one that is not for everybody.
    let into = besieged.field.join("from");
    fs::create_dir(&into).expect("a folder");
    chown(&into, Some(STRANGER), Some(STRANGER)).expect("given away");
    assert!(Wanted::tree(&from, &besieged.field).run().sink.is_err());
    assert_eq!(fs::read_dir(&into).expect("listed").count(), 0);

    // A link in the place of a file.
    symlink(&besieged.victim, besieged.field.join("link")).expect("a link");
    chown_link(&besieged.field.join("link"));
    assert!(Wanted::file(&from.join("large"), &besieged.field.join("link")).run().sink.is_err());
    assert_eq!(fs::read(&besieged.victim).expect("read"), SECRET);
}

fn chown_link(path: &Path) {
    std::os::unix::fs::lchown(path, Some(STRANGER), Some(STRANGER)).expect("given away");
}

#[test]
fn the_superuser_can_play_another_user() {
    let Some(besieged) = Besieged::new("the_superuser_can_play_another_user") else { return };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            besieged.swap(&[], &AtomicBool::new(true));
            fs::read(&besieged.victim).expect_err("not his");
            fs::write(besieged.field.join("his"), b"x").expect("his directory");
        });
    });
    fs::read(&besieged.victim).expect("still the superuser");
}

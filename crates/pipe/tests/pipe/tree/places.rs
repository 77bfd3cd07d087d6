//! Tests what each source becomes, as with cp; and failures of single files.

use std::fs;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use super::common::{ScratchFolder, Wanted, bytes, tree_of};

fn text(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn names_end_up_where_cp_puts_them() {
    let folder = ScratchFolder::new();
    let path = |name: &str| folder.join(name);
    fs::create_dir_all(path("dir/sub")).expect("folders");
    fs::write(path("dir/sub/f"), "f").expect("a file");
    fs::write(path("file"), "content").expect("a file");
    fs::create_dir(path("there")).expect("a folder");

    Wanted::file(&path("file"), &path("new")).run().ok();
    assert_eq!(text(&path("new")), "content");
    Wanted::file(&path("file"), &path("there")).run().ok();
    assert_eq!(text(&path("there/file")), "content");
    Wanted::tree(&path("dir"), &path("there")).run().ok();
    assert_eq!(text(&path("there/dir/sub/f")), "f");
    Wanted::tree(&path("dir/"), &path("fresh")).run().ok();
    assert_eq!(text(&path("fresh/sub/f")), "f");
    Wanted::tree(&path("dir/."), &path("there")).run().ok();
    assert_eq!(text(&path("there/sub/f")), "f");
    let both =
        Wanted { sources: vec![path("file"), path("dir")], ..Wanted::tree(&path("file"), &path("many")) };
    fs::create_dir(path("many")).expect("a folder");
    both.run().ok();
    assert_eq!(
        (text(&path("many/file")), text(&path("many/dir/sub/f"))),
        ("content".to_owned(), "f".to_owned())
    );

    // An existing file is replaced at once, and a link on the way to it stays.
    fs::write(path("old"), "old").expect("a file");
    symlink("old", path("to-old")).expect("a link");
    Wanted::file(&path("file"), &path("to-old")).run().ok();
    assert!(path("to-old").is_symlink() && text(&path("old")) == "content");
}

#[test]
fn what_cannot_be_is_said_and_changes_nothing() {
    let folder = ScratchFolder::new();
    let path = |name: &str| folder.join(name);
    fs::create_dir(path("dir")).expect("a folder");
    fs::write(path("dir/x"), "x").expect("a file");
    fs::write(path("file"), "content").expect("a file");
    let before = tree_of(&folder.0);
    let several = |destination: &str| Wanted {
        sources: vec![path("file"), path("dir/x")],
        ..Wanted::file(&path("file"), &path(destination))
    };
    for (name, wanted) in [
        ("a directory without -r", Wanted::file(&path("dir"), &path("new"))),
        ("no such file", Wanted::file(&path("nowhere"), &path("new"))),
        ("several into a file", several("file")),
        ("several into nothing", several("new")),
        ("into a directory that is not there", Wanted::file(&path("file"), &path("no/new"))),
        (
            "a file as a directory",
            Wanted { into_directory: true, ..Wanted::file(&path("file"), &path("new/")) },
        ),
        ("itself", Wanted::file(&path("file"), &path("file"))),
        ("a tree onto itself", Wanted::tree(&path("dir/."), &path("dir"))),
    ] {
        let ran = wanted.run();
        assert!(ran.source.is_err() || ran.sink.is_err(), "{name}");
        assert_eq!(tree_of(&folder.0), before, "{name}");
    }
    let ran = Wanted::tree(&path("dir"), &path("file")).run();
    assert!(ran.sink.is_err());
    assert_eq!(text(&path("file")), "content");
}

#[test]
fn a_tree_is_not_copied_into_itself_for_ever() {
    let folder = ScratchFolder::new();
    fs::create_dir_all(folder.join("dir/sub")).expect("folders");
    fs::write(folder.join("dir/x"), "x").expect("a file");
    symlink("dir", folder.join("link")).expect("a link");
    let before = tree_of(&folder.0);
    for source in ["dir", "dir/.", "link/"] {
        for destination in ["dir/new", "dir/sub", "dir/sub/new", "dir"] {
            let ran = Wanted::tree(&folder.join(source), &folder.join(destination)).run();
            assert!(ran.source.is_err(), "{source} to {destination}");
            assert_eq!(tree_of(&folder.0), before, "{source} to {destination}");
        }
    }
}

#[test]
fn devices_and_pipes_take_and_give_content() {
    let folder = ScratchFolder::new();
    let (from, fifo, to) = (folder.join("from"), folder.join("fifo"), folder.join("to"));
    let content = bytes(3 << 20, 3);
    fs::write(&from, &content).expect("a file");
    Wanted::file(&from, Path::new("/dev/null")).run().ok();
    assert!(fs::metadata("/dev/null").expect("there").mode() & 0o170_000 == 0o020_000, "still a device");
    rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::from_raw_mode(0o600)).expect("a FIFO");
    let taken = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut taken = Vec::new();
            fs::File::open(&fifo).and_then(|mut file| file.read_to_end(&mut taken)).expect("read");
            taken
        });
        Wanted::file(&from, &fifo).run().ok();
        reader.join().expect("no panic")
    });
    assert!(taken == content);
    std::thread::scope(|scope| {
        scope.spawn(|| fs::write(&fifo, &content).expect("written"));
        Wanted::file(&fifo, &to).run().ok();
    });
    assert!(fs::read(&to).expect("read") == content);
    // A full device fails as a full disk does.
    let ran = Wanted::file(&from, Path::new("/dev/full")).run();
    assert!(ran.sink.expect_err("full").to_string().starts_with("1 could not be copied"));
}

#[test]
fn one_file_that_fails_does_not_stop_the_others() {
    let folder = ScratchFolder::new();
    let (from, to) = (folder.join("from"), folder.join("to"));
    fs::create_dir(&from).expect("a folder");
    for name in ["a", "b", "blocked", "c"] {
        fs::write(from.join(name), name).expect("a file");
    }
    let _socket = UnixListener::bind(from.join("socket")).expect("a socket");
    // A directory has the name of a file: nobody can write a file there, not even the superuser.
    fs::create_dir_all(to.join("blocked/full")).expect("a folder");
    let ran = Wanted::tree(&from.join("."), &to).run();
    ran.source.expect("a socket is left out, and no failure");
    assert!(ran.sink.expect_err("one failed").to_string().starts_with("1 could not be copied"));
    for name in ["a", "b", "c"] {
        assert_eq!(text(&to.join(name)), name);
    }
    let names: Vec<_> =
        fs::read_dir(&to).expect("listed").map(|entry| entry.expect("an entry").file_name()).collect();
    assert_eq!(names.len(), 4, "no socket, and nothing half-written: {names:?}");
}

#[test]
fn a_file_of_a_million_bytes_of_nothing_is_no_hole() {
    let folder = ScratchFolder::new();
    let (from, to) = (folder.join("from"), folder.join("to"));
    fs::write(&from, vec![0; 1_000_000]).expect("a file");
    Wanted::file(&from, &to).run().ok();
    assert!(fs::metadata(&to).expect("there").blocks() * 512 >= 1_000_000);
}

#[test]
fn permissions_are_never_wider_than_they_will_be() {
    let folder = ScratchFolder::new();
    let (from, to) = (folder.join("from"), folder.join("to"));
    fs::write(&from, bytes(3 << 20, 3)).expect("a file");
    fs::set_permissions(&from, fs::Permissions::from_mode(0o604)).expect("a mode");
    let wanted = Wanted::file(&from, &to);
    assert!(wanted.run_cut(2 << 20).sink.is_err());
    assert_eq!(fs::metadata(folder.join(".to.part")).expect("there").mode() & 0o777, 0o600);
    wanted.run().ok();
    assert_eq!(fs::metadata(&to).expect("there").mode() & 0o777, 0o604);
}

#[test]
fn what_cannot_be_written_is_not_sent() {
    const MIB: usize = 1 << 20;
    let folder = ScratchFolder::new();
    let (from, large, file) = (folder.join("from"), folder.join("from/large"), folder.join("file"));
    fs::create_dir(&from).expect("a folder");
    fs::write(&large, bytes(100 * MIB, 3)).expect("a file");
    fs::write(&file, "a file").expect("a file");
    for (name, wanted) in [
        ("a full device", Wanted::file(&large, Path::new("/dev/full"))),
        ("a file for a directory", Wanted::tree(&from, &file)),
    ] {
        let ran = wanted.run();
        assert!(ran.sink.is_err() && ran.source.is_err(), "{name}");
        assert!(ran.sent.len() < 50 * MIB, "{name}: {} bytes", ran.sent.len());
    }
}

#[test]
fn files_that_misstate_their_size_are_copied() {
    let folder = ScratchFolder::new();
    // A file of /sys that claims 4096 bytes, a file of /proc that claims none, and one of more than one piece.
    for path in ["/sys/class/net/lo/mtu", "/proc/version", "/proc/kallsyms"] {
        let Ok(content) = fs::read(path) else { continue };
        let to = folder.join("to");
        fs::write(&to, "old").expect("a file");
        Wanted::file(Path::new(path), &to).run().ok();
        assert!(fs::read(&to).expect("read") == content, "{path}");
    }
}

/// Only the superuser can make a disk of 2 MiB; for other users the test of /dev/full above has to be enough.
#[test]
fn a_full_disk_leaves_nothing_half_written() {
    let folder = ScratchFolder::new();
    let (from, disk) = (folder.join("from"), folder.join("disk"));
    fs::create_dir(&from).expect("a folder");
    fs::create_dir(&disk).expect("a folder");
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=2m", "none"]).arg(&disk).status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("this superuser may not mount: /dev/full has to do");
        return;
    }
    let _unmounted = Unmount(&disk);
    for number in 0..10 {
        fs::write(from.join(format!("small{number}")), bytes(1000, number)).expect("a file");
    }
    fs::write(from.join("large"), bytes(5 << 20, 99)).expect("a file");
    fs::write(from.join("fits-not"), bytes(1 << 20, 98)).expect("a file");
    fs::write(from.join("nor-that"), bytes(1 << 20, 97)).expect("a file");
    let wanted = Wanted::tree(&from, &disk.join("to"));
    assert!(wanted.run().sink.expect_err("full").to_string().contains("could not be copied"));
    let (whole, arrived) = (tree_of(&from), tree_of(&disk.join(".to.part")));
    for (path, kept) in &arrived {
        assert_eq!(whole.get(path).map(|kept| &kept.what), Some(&kept.what), "{path:?}");
    }
    // With more room, the same command resumes the copy.
    let grown = Command::new("mount").args(["-o", "remount,size=20m"]).arg(&disk).status();
    assert!(grown.is_ok_and(|status| status.success()));
    wanted.run().ok();
    assert_eq!(tree_of(&disk.join("to")), whole);
}

struct Unmount<'a>(&'a Path);

impl Drop for Unmount<'_> {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.0).status();
    }
}

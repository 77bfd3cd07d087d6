//! Tests copies that are cut off and resumed.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use caravan_pipe::Error;

use super::common::{ScratchFolder, Wanted, What, bytes, tree_of};

const MIB: usize = 1 << 20;

#[test]
fn a_stream_cut_anywhere_leaves_whole_files_and_says_so() {
    let folder = ScratchFolder::new();
    let from = folder.join("from");
    fs::create_dir_all(from.join("sub/empty")).expect("folders");
    for number in 0..20 {
        fs::write(from.join(format!("sub/{number}")), bytes(50 + number, number as u64)).expect("a file");
    }
    fs::write(from.join("large"), bytes(MIB + MIB / 2, 1)).expect("a file");
    symlink("sub", from.join("link")).expect("a link");
    let stream = Wanted::tree(&from, &folder.join("whole")).run().ok();
    let whole = tree_of(&from);
    let (length, small) = (stream.len(), stream.len() - MIB);
    // Every byte of a small copy would take long; the bytes of the frames around it and many others are enough.
    let cuts =
        (0..300).step_by(5).chain((300..small).step_by(39_973)).chain((length - 200..length).step_by(3));
    for cut in cuts {
        let to = folder.join(&format!("to-{cut}"));
        let error = Wanted::tree(&from, &to).replay(&stream[..cut]).expect_err("cut off");
        assert!(matches!(error, Error::Truncated { .. }), "{cut}: {error}");
        assert!(!to.exists(), "{cut}");
        let to = folder.join(&format!(".to-{cut}.part"));
        if !to.exists() {
            continue;
        }
        for (path, kept) in tree_of(&to) {
            let is_part = path.to_string_lossy().ends_with(".part");
            match (&kept.what, whole.get(&path)) {
                (What::File(part), None) if is_part => {
                    let large = fs::read(from.join("large")).expect("read");
                    assert!(path == Path::new(".large.part") && large.starts_with(part), "{cut}: {path:?}");
                }
                (What::Folder, Some(expected)) => assert_eq!(expected.what, What::Folder),
                (what, Some(expected)) => assert_eq!(what, &expected.what, "{cut}: {path:?}"),
                (_, None) => panic!("{cut}: {path:?} was never there"),
            }
        }
        fs::remove_dir_all(&to).expect("removed");
    }
}

#[test]
fn a_copy_goes_on_where_it_was_cut() {
    for cut in [100, MIB / 2, MIB + 77, 3 * MIB, 5 * MIB + 1] {
        let folder = ScratchFolder::new();
        let (from, to) = (folder.join("from"), folder.join("to"));
        fs::write(&from, bytes(6 * MIB, 5)).expect("a file");
        let wanted = Wanted::file(&from, &to);
        let ran = wanted.run_cut(cut);
        assert!(ran.source.is_err() && ran.sink.is_err());
        assert!(!to.exists(), "nothing under the final name");
        let part = fs::metadata(folder.join(".to.part")).map_or(0, |data| data.len() as usize);
        // The part has everything but the piece that was cut.
        assert!(part + MIB + 1000 > cut, "{cut}: {part}");
        let sent = wanted.run().ok();
        assert_eq!(fs::read(&to).expect("read"), fs::read(&from).expect("read"));
        assert!(sent.len() < 6 * MIB - part + 10_000, "{cut}: {} sent, {part} were there", sent.len());
        assert!(!folder.join(".to.part").exists());
    }
}

#[test]
fn a_tree_goes_on_where_it_was_cut() {
    let folder = ScratchFolder::new();
    let (from, to) = (folder.join("from"), folder.join("to"));
    fs::create_dir_all(from.join("sub/deep")).expect("folders");
    fs::write(from.join("first"), bytes(MIB, 4)).expect("a file");
    fs::write(from.join("sub/deep/large"), bytes(6 * MIB, 5)).expect("a file");
    let into = folder.join("into");
    fs::create_dir(&into).expect("a folder");
    for (destination, arrived, is_first_kept) in [(&to, to.clone(), true), (&into, into.join("from"), false)]
    {
        let wanted = Wanted::tree(&from, destination);
        assert!(wanted.run_cut(5 * MIB).sink.is_err());
        assert!(!to.exists(), "a directory that is not complete does not have its name");
        let sent = wanted.run().ok();
        assert_eq!(tree_of(&from), tree_of(&arrived));
        let most = if is_first_kept { 4 * MIB } else { 5 * MIB };
        assert!(sent.len() < most, "{}", sent.len());
        fs::remove_dir_all(&arrived).expect("removed");
    }
    let names = fs::read_dir(&folder.0).expect("listed").count();
    assert_eq!(names, 2, "nothing else stays behind");
}

#[test]
fn what_is_no_beginning_of_the_file_is_written_anew() {
    let folder = ScratchFolder::new();
    let (from, to, part) = (folder.join("from"), folder.join("to"), folder.join(".to.part"));
    let content = bytes(3 * MIB, 5);
    fs::write(&from, &content).expect("a file");
    let mut other = content[..2 * MIB].to_vec();
    other[MIB] ^= 1;
    for was in [other, bytes(4 * MIB, 9), Vec::new(), content.clone()] {
        let _ = fs::remove_file(&to);
        fs::write(&part, &was).expect("a part");
        fs::set_permissions(&part, fs::Permissions::from_mode(0o600)).expect("a mode");
        let sent = Wanted::file(&from, &to).run().ok();
        assert!(fs::read(&to).expect("read") == content && !part.exists());
        assert_eq!(sent.len() < MIB, was == content, "{}", sent.len());
    }
}

#[test]
fn a_file_of_the_tree_may_have_the_name_of_a_part() {
    let folder = ScratchFolder::new();
    let (from, to) = (folder.join("from"), folder.join("to"));
    fs::create_dir(&from).expect("a folder");
    fs::write(from.join("x"), bytes(2 * MIB, 1)).expect("a file");
    fs::write(from.join(".x.part"), b"not a part of x").expect("a file");
    for _ in 0..2 {
        Wanted::tree(&from.join("."), &to).run().ok();
        assert_eq!(tree_of(&from), tree_of(&to));
    }
    let ran = Wanted::tree(&from.join("."), &to).run_cut(MIB + 5000);
    assert!(ran.sink.is_err());
    let names = fs::read_dir(&to).expect("listed").count();
    assert_eq!(names, 2, "nothing else stays behind");
}

#[test]
fn sparse_files_stay_sparse_after_a_cut_too() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let folder = ScratchFolder::new();
    let (from, to) = (folder.join("from"), folder.join("to"));
    let file = fs::File::create(&from).expect("a file");
    file.set_len(64 * MIB as u64).expect("a hole");
    for at in [8, 9, 40] {
        file.write_at(&bytes(MIB, at), at * MIB as u64).expect("written");
    }
    let wanted = Wanted::file(&from, &to);
    assert!(wanted.run_cut(2 * MIB + MIB / 2).sink.is_err());
    let sent = wanted.run().ok();
    assert!(sent.len() < 2 * MIB, "{}", sent.len());
    assert!(fs::read(&to).expect("read") == fs::read(&from).expect("read"));
    let blocks = |path: &Path| fs::metadata(path).expect("there").blocks();
    assert!(blocks(&to) <= blocks(&from) + 64, "{} blocks became {}", blocks(&from), blocks(&to));
}

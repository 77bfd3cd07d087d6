//! Tests that any tree arrives unchanged.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::common::{ScratchFolder, Wanted, bytes, set_modified, tree_of};

/// A file to make, of any type.
#[derive(Clone, Debug)]
enum MadeTree {
    Folder(u32),
    File(usize, u32),
    Sparse(u64, u64),
    Symlink(Vec<u8>),
    Hard(usize),
    Fifo,
}

const NAMES: [&[u8]; 10] = [
    b"a",
    b"b",
    b"..c",
    b"with space",
    b"new\nline",
    b"\xff\xfe",
    b"-rf",
    b".hidden.part",
    b"caf\xc3\xa9",
    b"*",
];

fn made() -> impl Strategy<Value = MadeTree> {
    let modes = prop::sample::select(vec![0o755, 0o700, 0o500, 0o555, 0o2775, 0o1777]);
    let file_modes = prop::sample::select(vec![0o644, 0o600, 0o400, 0o755, 0o4755, 0o000, 0o666]);
    let sizes = prop::sample::select(vec![0, 1, 100, 4096, 70_000, (1 << 20) - 1, 1 << 20, (1 << 20) + 1]);
    let targets = prop::sample::select(vec!["a", "../..", "/etc/passwd", "nowhere", "..c/x"]);
    prop_oneof![
        4 => modes.prop_map(MadeTree::Folder),
        6 => (sizes, file_modes).prop_map(|(size, mode)| MadeTree::File(size, mode)),
        1 => (0_u64..4 << 20, 0_u64..4 << 20).prop_map(|(at, end)| MadeTree::Sparse(at, at.max(end))),
        2 => targets.prop_map(|target| MadeTree::Symlink(target.as_bytes().to_vec())),
        2 => (0_usize..8).prop_map(MadeTree::Hard),
        1 => Just(MadeTree::Fifo),
    ]
}

/// Makes every file whose place is free; sets the permissions of folders at the end.
fn build(top: &Path, plan: &[(usize, usize, MadeTree)]) {
    fs::create_dir(top).expect("the top");
    let (mut folders, mut files, mut modes) = (vec![top.to_owned()], Vec::<PathBuf>::new(), Vec::new());
    for (index, (folder, name, made)) in plan.iter().enumerate() {
        let folder = &folders[folder % folders.len()];
        let path = folder.join(OsString::from_vec(NAMES[name % NAMES.len()].to_vec()));
        if path.symlink_metadata().is_ok() {
            continue;
        }
        match made {
            MadeTree::Folder(mode) => {
                fs::create_dir(&path).expect("a folder");
                modes.push((path.clone(), *mode));
                folders.push(path.clone());
            }
            MadeTree::File(size, mode) => {
                fs::write(&path, bytes(*size, index as u64)).expect("a file");
                // Only the superuser reads files that nobody may read.
                let mode = if rustix::process::geteuid().is_root() { *mode } else { mode | 0o400 };
                fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a mode");
                files.push(path.clone());
            }
            MadeTree::Sparse(at, end) => {
                let file = fs::File::create(&path).expect("a file");
                file.set_len(*end + 10).expect("a hole");
                file.write_at(b"something", *at).expect("written");
                files.push(path.clone());
            }
            MadeTree::Symlink(target) => symlink(OsString::from_vec(target.clone()), &path).expect("a link"),
            MadeTree::Hard(which) if !files.is_empty() => {
                fs::hard_link(&files[which % files.len()], &path).expect("a link");
            }
            MadeTree::Hard(_) => continue,
            MadeTree::Fifo => {
                rustix::fs::mkfifoat(rustix::fs::CWD, &path, rustix::fs::Mode::from_raw_mode(0o640))
                    .expect("a FIFO");
            }
        }
        set_modified(&path, 1_000_000_000 + index as i64 * 7, 123_456_789 + index as u32);
    }
    for (path, mode) in modes.iter().rev() {
        set_modified(path, 900_000_000, 1);
        fs::set_permissions(path, fs::Permissions::from_mode(*mode)).expect("a mode");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, max_shrink_iters: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_tree_arrives_as_it_is(plan in prop::collection::vec((any::<usize>(), any::<usize>(), made()), 0..30)) {
        let folder = ScratchFolder::new();
        let (from, to) = (folder.join("from"), folder.join("to"));
        build(&from, &plan);
        Wanted::tree(&from, &to).run().ok();
        prop_assert_eq!(tree_of(&from), tree_of(&to));
        // A copy over an existing one gives the same tree; after that, nothing needs to be sent.
        Wanted::tree(&from.join("."), &to).run().ok();
        prop_assert_eq!(tree_of(&from), tree_of(&to));
        let update = Wanted { update: true, ..Wanted::tree(&from.join("."), &to) };
        let again = update.run().ok();
        prop_assert_eq!(tree_of(&from), tree_of(&to));
        prop_assert!(again.len() < 20_000, "{} bytes", again.len());
    }
}

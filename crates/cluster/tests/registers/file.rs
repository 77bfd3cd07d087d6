//! The configuration in a file.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use caravan_cluster::{ClusterError, ConfigurationRegister, FileRegister, Revision, SwapOutcome};

use crate::{Folder, begin, later, read, soon};

fn register(folder: &Folder) -> FileRegister {
    FileRegister::new(folder.0.join("store.json")).expect("a local file system")
}

#[test]
fn each_epoch_has_one_author() {
    let folder = Folder::new("race");
    let registers: Vec<FileRegister> = (0..8).map(|_| register(&folder)).collect();
    let registers: Vec<&dyn ConfigurationRegister> = registers.iter().map(|it| it as _).collect();
    crate::race(&registers, 100);
}

#[test]
fn a_watch_sees_a_swap() {
    crate::watches(&register(&Folder::new("watch")));
}

#[test]
fn another_store_is_refused() {
    crate::refuses_another_store(&register(&Folder::new("foreign")));
}

/// Whatever is cut off or changed, nothing but the configuration is ever read, and the error names the file.
#[test]
fn a_damaged_file_is_refused_by_name() {
    let folder = Folder::new("damaged");
    let register = register(&folder);
    let path = folder.0.join("store.json");
    begin(&register);
    let whole = fs::read(&path).expect("readable");
    let refused = |bytes: &[u8], what: &str| {
        fs::write(&path, bytes).expect("writable");
        match register.read(soon()) {
            Err(error @ (ClusterError::File { .. } | ClusterError::Form { .. })) => error.to_string(),
            other => panic!("{what}: {other:?}"),
        }
    };
    for length in 0..whole.len() {
        let error = refused(&whole[..length], &format!("cut at {length}"));
        assert!(error.contains("store.json"), "{error}");
    }
    let head = whole.iter().position(|byte| *byte == b'\n').expect("a first line");
    for place in (0..whole.len()).filter(|place| *place < head || place % 7 == 0) {
        let mut bytes = whole.clone();
        bytes[place] ^= 1;
        fs::write(&path, &bytes).expect("writable");
        match register.read(soon()) {
            // The number of the revision is the only thing that the checksum does not cover.
            Ok(Some(stored)) => {
                assert!(place < head && stored.configuration == crate::configuration(7), "at {place}")
            }
            Ok(None) => panic!("at {place}: it is there"),
            Err(ClusterError::File { .. } | ClusterError::Form { .. }) => {}
            Err(error) => panic!("at {place}: {error}"),
        }
    }
    let error = refused(b"{\"name\": \"something else\"}\n", "foreign");
    assert!(error.contains("not a configuration of Caravan"), "{error}");
    let newer =
        String::from_utf8_lossy(&whole).replacen("caravan-configuration 1", "caravan-configuration 2", 1);
    let error = refused(newer.as_bytes(), "newer");
    assert!(error.contains("use the newer program"), "{error}");
}

/// What a writer that was killed has left beside the file is of no effect.
#[test]
fn a_killed_writer_leaves_the_file_as_it_was() {
    let folder = Folder::new("killed");
    let register = register(&folder);
    let first = begin(&register);
    fs::write(folder.0.join("store.json.new"), "caravan-conf").expect("writable");
    assert_eq!(read(&register), first);
    let next = later(&first.configuration);
    let outcome = register.compare_and_swap(first.revision, &next, soon()).expect("written");
    assert_eq!(outcome, SwapOutcome::Swapped(Revision(first.revision.0 + 1)));
    assert_eq!(read(&register).configuration, next);
}

#[test]
fn a_writer_that_is_stopped_holds_others_up_until_their_deadline() {
    let folder = Folder::new("locked");
    let register = register(&folder);
    let first = begin(&register);
    let lock = fs::File::open(folder.0.join("store.json.lock")).expect("the lock");
    rustix::fs::flock(&lock, rustix::fs::FlockOperation::LockExclusive).expect("nobody has it");
    let deadline = Instant::now() + Duration::from_millis(50);
    let error = register.compare_and_swap(first.revision, &later(&first.configuration), deadline);
    assert!(matches!(error, Err(ClusterError::Locked(_))), "{error:?}");
    // Readers need no lock.
    assert_eq!(read(&register), first);
    drop(lock);
    register.compare_and_swap(first.revision, &later(&first.configuration), soon()).expect("written");
}

#[test]
fn a_missing_folder_is_named() {
    let error = FileRegister::new("/nowhere/at/all/store.json").expect_err("refused").to_string();
    assert!(error.contains("/nowhere/at/all"), "{error}");
    let folder = Folder::new("missing");
    let register = register(&folder);
    fs::remove_dir_all(&folder.0).expect("removable");
    assert!(matches!(register.read(soon()), Err(ClusterError::Folder { .. })));
}

/// Runs one of the tests below in namespaces of its own, with what the shell does first. None where the system allows no
/// such namespaces.
fn in_namespaces(options: &[&str], first: &str, test: &str, folder: &Folder) -> Option<bool> {
    let unshare = |words: &str| {
        let mut command = Command::new("unshare");
        command.args(options).args(["sh", "-c", words]).env("FOLDER", &folder.0);
        command
    };
    if !unshare("true").status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: this user may not make namespaces");
        return None;
    }
    let program = std::env::current_exe().expect("this program");
    let words = format!("{first} exec '{}' --ignored --exact {test}", program.display());
    let output = unshare(&words).output().expect("unshare runs");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("1 passed"), "{text}");
    Some(output.status.success())
}

fn folder_of_the_parent() -> FileRegister {
    FileRegister::new(std::path::Path::new(&std::env::var("FOLDER").expect("a folder")).join("store.json"))
        .expect("a local file system")
}

#[test]
fn a_full_disk_leaves_the_configuration_as_it_was() {
    let folder = Folder::new("full");
    let mount = "mount -t tmpfs -o size=16k tmpfs \"$FOLDER\" &&";
    in_namespaces(&["-rm"], mount, "file::on_a_full_disk", &folder);
}

#[test]
#[ignore = "runs on a small disk, in namespaces of its parent's"]
fn on_a_full_disk() {
    let register = folder_of_the_parent();
    let first = begin(&register);
    let filler = std::path::PathBuf::from(register.place()).with_file_name("filler");
    assert!(fs::write(&filler, vec![1; 1 << 20]).is_err());
    let next = later(&first.configuration);
    let error = register.compare_and_swap(first.revision, &next, soon());
    assert!(
        matches!(&error, Err(error @ ClusterError::DiskFull(_)) if error.to_string().contains("store.json")),
        "{error:?}"
    );
    assert_eq!(read(&register), first);
    fs::remove_file(filler).expect("removable");
    register.compare_and_swap(first.revision, &next, soon()).expect("there is room again");
    assert_eq!(read(&register).configuration, next);
}

#[test]
fn a_folder_without_rights_is_named() {
    let folder = Folder::new("rights");
    begin(&register(&folder));
    fs::remove_file(folder.0.join("store.json.lock")).expect("removable");
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o500)).expect("ours");
    // Without a mapping of users, even root has no more rights than the folder gives.
    in_namespaces(&["-U"], "", "file::in_a_folder_without_rights", &folder);
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o700)).expect("ours");
}

#[test]
#[ignore = "runs without rights, in a namespace of its parent's"]
fn in_a_folder_without_rights() {
    let register = folder_of_the_parent();
    let first = read(&register);
    let error = register.compare_and_swap(first.revision, &later(&first.configuration), soon());
    assert!(
        matches!(&error, Err(error @ ClusterError::Folder { .. }) if error.to_string().contains("cannot write in this folder")),
        "{error:?}"
    );
    assert_eq!(read(&register), first);
}

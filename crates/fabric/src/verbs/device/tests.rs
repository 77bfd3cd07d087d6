//! Every obstacle on the way to a device, on a machine that has none: with a tree like the kernel's, and
//! libraries that answer as a real one would.

use std::ffi::c_char;
use std::ptr;

use super::*;
use crate::verbs::ports::usable_of;

/// A folder that is removed when the value is dropped.
struct Tree(std::path::PathBuf);

impl Tree {
    fn new(test: &str, files: &[(&str, &str)]) -> Self {
        let root = std::env::temp_dir().join(format!("caravan-device-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        for (path, text) in files {
            let path = root.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Self(root)
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

fn leaked<T>(value: T) -> *mut T {
    Box::leak(Box::new(value))
}

fn text<const N: usize>(text: &str) -> [c_char; N] {
    let mut bytes = [0; N];
    bytes.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte as c_char);
    bytes
}

unsafe extern "C" fn no_device(count: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: `count` is the caller's own variable.
    unsafe { *count = 0 };
    leaked([ptr::null_mut::<ibv_device>()]).cast()
}

unsafe extern "C" fn one_device(count: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: the structure is plain numbers, for which zeros are valid.
    let mut device: ibv_device = unsafe { std::mem::zeroed() };
    (device.name, device.dev_name) = (text("mlx5_0"), text("uverbs0"));
    // SAFETY: `count` is the caller's own variable.
    unsafe { *count = 1 };
    leaked([leaked(device), ptr::null_mut()]).cast()
}

unsafe extern "C" fn free_list(_: *mut *mut ibv_device) {}

fn no_context(error: c_int) -> *mut ibv_context {
    // SAFETY: `errno` is this thread's own variable.
    unsafe { *libc::__errno_location() = error };
    ptr::null_mut()
}

unsafe extern "C" fn forbidden(_: *mut ibv_device) -> *mut ibv_context {
    no_context(libc::EACCES)
}

unsafe extern "C" fn missing(_: *mut ibv_device) -> *mut ibv_context {
    no_context(libc::ENOENT)
}

unsafe extern "C" fn broken(_: *mut ibv_device) -> *mut ibv_context {
    no_context(libc::EIO)
}

unsafe extern "C" fn opens(device: *mut ibv_device) -> *mut ibv_context {
    // SAFETY: the structure is pointers and numbers, for which zeros are valid.
    let mut context: ibv_context = unsafe { std::mem::zeroed() };
    context.device = device;
    leaked(context)
}

unsafe extern "C" fn closes(_: *mut ibv_context) -> c_int {
    0
}

unsafe extern "C" fn one_port(_: *mut ibv_context, attributes: *mut ibv_device_attr) -> c_int {
    // SAFETY: `attributes` is the caller's own variable.
    unsafe { (*attributes).phys_port_cnt = 1 };
    0
}

unsafe extern "C" fn port_down(_: *mut ibv_context, _: u8, attributes: *mut ibv_port_attr) -> c_int {
    // SAFETY: `attributes` is the caller's own variable.
    unsafe { ((*attributes).state, (*attributes).link_layer) = (1, IBV_LINK_LAYER_ETHERNET) };
    0
}

unsafe extern "C" fn port_active(_: *mut ibv_context, _: u8, attributes: *mut ibv_port_attr) -> c_int {
    // SAFETY: `attributes` is the caller's own variable.
    unsafe { ((*attributes).state, (*attributes).link_layer) = (IBV_PORT_ACTIVE, IBV_LINK_LAYER_ETHERNET) };
    0
}

/// Returns a library with one device, which `open` opens.
fn library(open: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context) -> Verbs {
    Verbs {
        ibv_get_device_list: one_device,
        ibv_free_device_list: free_list,
        ibv_open_device: open,
        ibv_close_device: closes,
        ibv_query_device: one_port,
        ..Verbs::unexpected()
    }
}

/// Returns the obstacles of a machine whose kernel has one device, and whose loader returns `verbs`.
fn obstacles(test: &str, verbs: Result<Verbs, String>, accessible: bool) -> Vec<Obstacle> {
    obstacles_with("uverbs0", test, verbs, accessible)
}

/// Does what `obstacles` does, with another device file.
fn obstacles_with(file: &str, test: &str, verbs: Result<Verbs, String>, accessible: bool) -> Vec<Obstacle> {
    let tree = Tree::new(
        test,
        &[
            ("infiniband/mlx5_0/node_type", "1: CA\n"),
            (&format!("dev/{file}"), ""),
            ("infiniband_verbs/uverbs0/ibdev", if accessible { "mlx5_0\n" } else { "mlx5_9\n" }),
        ],
    );
    let verbs = verbs.map(leaked_ref);
    let names = names_below(&tree.0.join("infiniband"));
    assert_eq!(names, ["mlx5_0"]);
    let open = |name: &str| {
        {
            let paths = DevicePaths { listed: &tree.0.join("infiniband_verbs"), files: &tree.0.join("dev") };
            Context::open_by(verbs.clone(), name, paths)
        }
        .map(Arc::new)
    };
    let usable = usable_of(names, open);
    assert_eq!(usable.ports, []);
    usable.obstacles
}

fn leaked_ref(verbs: Verbs) -> &'static Verbs {
    Box::leak(Box::new(verbs))
}

#[test]
fn each_obstacle_is_named() {
    let device = || "mlx5_0".to_owned();
    let path = || "/dev/infiniband/uverbs0".to_owned();
    let why = "libibverbs.so.1: cannot open shared object file".to_owned();
    let bare = Verbs { ibv_get_device_list: no_device, ..library(broken) };
    let down = Verbs { ibv_query_port: port_down, ..library(opens) };
    let no_gid = Verbs { ibv_query_port: port_active, ..library(opens) };
    let table = [
        ("library", Err(why.clone()), true, Obstacle::NoLibrary { why }),
        ("provider", Ok(bare), true, Obstacle::NoProvider { device: device() }),
        ("access", Ok(bare), false, Obstacle::NoUserAccess { device: device() }),
        (
            "permission",
            Ok(library(forbidden)),
            true,
            Obstacle::NoPermission { device: device(), path: path() },
        ),
        ("file", Ok(library(missing)), true, Obstacle::NoDeviceFile { device: device(), path: path() }),
        ("down", Ok(down), true, Obstacle::PortDown { device: device(), port: 1, state: "down" }),
        ("address", Ok(no_gid), true, Obstacle::NoAddress { device: device(), port: 1 }),
    ];
    for (test, verbs, accessible, expected) in table {
        assert_eq!(obstacles(test, verbs, accessible), [expected]);
    }
    let [Obstacle::NoDeviceFile { path, .. }] = &obstacles_with("other", "no-file", Ok(bare), true)[..]
    else {
        panic!("another obstacle");
    };
    assert!(path.ends_with("/dev/uverbs0"), "{path}");
    let [Obstacle::NotOpened { why, .. }] = &obstacles("broken", Ok(library(broken)), true)[..] else {
        panic!("another obstacle");
    };
    assert!(why.contains("Input/output error"), "{why}");
}

#[test]
fn without_a_device_nothing_is_loaded() {
    assert_eq!(names_below(Path::new("/nowhere")), Vec::<String>::new());
    let usable = usable_of(Vec::new(), |_| panic!("nothing is there to be opened"));
    assert_eq!(usable.obstacles, [Obstacle::NoDevice]);
}

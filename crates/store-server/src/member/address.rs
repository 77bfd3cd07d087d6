//! Where members reach each other: `unix:PATH#HOST`, `HOST:PORT`, or both with a comma between them. The path is for members of
//! the same host, who then share memory.

use std::path::Path;

use caravan_store::ConnectOptions;

/// Returns the address of a member with this socket, and with this address on TCP if it has one; `host` names its host.
pub(crate) fn member_address(socket: &Path, tcp: Option<&str>, host: &str) -> Option<String> {
    let path =
        socket.to_str().filter(|path| path.bytes().all(|byte| byte.is_ascii_graphic() && byte != b','));
    let unix = path.map(|path| format!("unix:{path}#{host}"));
    let all: Vec<String> = unix.into_iter().chain(tcp.map(str::to_owned)).collect();
    (!all.is_empty()).then(|| all.join(","))
}

/// Returns the addresses at which a member of the host `host` may reach another one, the best first, as
/// `caravan_store::ConnectOptions` takes them.
pub(crate) fn reachable(address: &str, host: &str) -> Vec<String> {
    let usable = |one: &str| match one.strip_prefix("unix:") {
        Some(unix) => {
            unix.rsplit_once('#').filter(|(_, at)| *at == host).map(|(path, _)| format!("unix:{path}"))
        }
        None => Some(one.to_owned()),
    };
    address.split(',').filter_map(usable).collect()
}

/// Returns the host of a member that has a UNIX socket.
pub(crate) fn host_of(address: &str) -> Option<&str> {
    address.split(',').find_map(|one| one.strip_prefix("unix:")?.rsplit_once('#').map(|(_, host)| host))
}

/// Returns how to connect to a member at one of these addresses.
pub(crate) fn options(address: &str, password: Option<&[u8]>) -> ConnectOptions {
    let mut options = ConnectOptions::new(address);
    options.password = password.map(<[u8]>::to_vec);
    options
}

/// Says whether a member has a UNIX socket on this host.
pub(crate) fn is_of_host(address: &str, host: &str) -> bool {
    reachable(address, host).iter().any(|one| one.starts_with("unix:"))
}

/// Names this host until it starts again, or the part of it that shares its files.
pub fn host_name() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    boot.trim().chars().filter(char::is_ascii_alphanumeric).take(16).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_one_host_share_memory_and_others_use_tcp() {
        let both = member_address(Path::new("/run/a#b.sock"), Some("192.0.2.1:7000"), "h1").unwrap();
        assert_eq!(both, "unix:/run/a#b.sock#h1,192.0.2.1:7000");
        assert_eq!(reachable(&both, "h1"), ["unix:/run/a#b.sock", "192.0.2.1:7000"]);
        assert_eq!(reachable(&both, "h2"), ["192.0.2.1:7000"]);
        assert_eq!((host_of(&both), host_of("192.0.2.1:7000")), (Some("h1"), None));
        assert_eq!(member_address(Path::new("/run/a b"), None, "h1"), None);
        assert_eq!(reachable("unix:/run/a#h1", "h2"), Vec::<String>::new());
        assert!(!host_name().is_empty());
    }
}

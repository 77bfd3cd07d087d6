//! What carries a link towards a host, as far as this side alone can tell.

use std::net::{IpAddr, ToSocketAddrs};

use caravan_fabric::verbs::{self, Obstacle, Port, Route};
use serde::Serialize;

use super::survey::{Findings, name};
use crate::error::Error;

/// The best that could be had, and why not better.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Towards {
    pub host: String,
    pub addresses: Vec<IpAddr>,
    /// "shm", "rdma" or "tcp", as in the options of a node.
    pub transport: &'static str,
    /// Ways over RDMA, the best first.
    pub ways: Vec<Way>,
    /// Why nothing better, and what only the peer knows; a sentence each.
    pub notes: Vec<String>,
}

/// A port of ours from which packets would get there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Way {
    pub port: String,
    pub to: IpAddr,
    pub route: &'static str,
}

impl Towards {
    /// Looks the host's addresses up and asks this machine's routes.
    pub fn find(host: &str, found: &Findings) -> Result<Self, Error> {
        let addresses = resolve(host)?;
        let is_here = addresses.iter().any(|&ip| verbs::is_here(ip));
        let mut ways: Vec<(IpAddr, Port, Route)> = Vec::new();
        for &ip in &addresses {
            ways.extend(verbs::towards(&found.ports, ip).into_iter().map(|(port, route)| (ip, port, route)));
        }
        ways.sort_by_key(|(_, _, route)| std::cmp::Reverse(*route));
        Ok(Self::decide(host, addresses, is_here, &ways, found))
    }

    fn decide(
        host: &str,
        addresses: Vec<IpAddr>,
        is_here: bool,
        ways: &[(IpAddr, Port, Route)],
        found: &Findings,
    ) -> Self {
        let mut notes = Vec::new();
        let transport = match (is_here, ways.is_empty()) {
            (true, _) => "shm",
            (false, false) => "rdma",
            (false, true) => "tcp",
        };
        if is_here {
            notes.push(
                "it is this host; between processes of different users, containers or network namespaces it is RDMA or TCP instead"
                    .to_owned(),
            );
        } else {
            notes.push("shared memory: no, it is another host".to_owned());
        }
        if transport == "rdma" {
            notes.push(format!(
                "whether {host} has an RDMA device at that address, of the same kind and in reach, only {host} knows: `caravan selftest {host}` tries it"
            ));
        }
        if ways.is_empty() {
            notes.extend(no_rdma(host, &addresses, found));
        }
        let ways = ways.iter().map(|(to, port, route)| Way {
            port: name(port),
            to: *to,
            route: words(port, *route),
        });
        Self { host: host.to_owned(), addresses, transport, ways: ways.collect(), notes }
    }
}

/// Why RDMA does not lead there.
fn no_rdma(host: &str, addresses: &[IpAddr], found: &Findings) -> Vec<String> {
    if found.ports.is_empty() {
        return found.obstacles.iter().map(|obstacle| format!("RDMA: no, {obstacle}")).collect();
    }
    let ours: Vec<_> = found.ports.iter().map(name).collect();
    let at: Vec<_> = addresses.iter().map(IpAddr::to_string).collect();
    let theirs = format!("{host} at {}", at.join(", "));
    vec![format!("RDMA: no, {}", Obstacle::NoPath { ours: ours.join(", "), theirs })]
}

fn words(port: &Port, route: Route) -> &'static str {
    use verbs::device::Fabric;
    match (port.fabric, route) {
        (Fabric::InfiniBand, _) => "if it is in the same InfiniBand subnet",
        (_, Route::Usual) => "on the kernel's own route",
        _ => "beside the kernel's own route, which begins at another address",
    }
}

/// Every address of a host, as the system resolves it; each once.
fn resolve(host: &str) -> Result<Vec<IpAddr>, Error> {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(host);
    let failed = |source| Error::Resolve { host: host.to_owned(), source };
    let mut addresses: Vec<IpAddr> = Vec::new();
    for socket in (bare, 0).to_socket_addrs().map_err(failed)? {
        if !addresses.contains(&socket.ip()) {
            addresses.push(socket.ip());
        }
    }
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use super::super::firewall::Firewall;
    use super::super::survey::tests::{findings, port};
    use super::*;
    use caravan_fabric::verbs::device::Fabric;

    const PEER: &str = "192.0.2.7";

    fn decided(is_here: bool, ports: Vec<Port>, ways: bool) -> Towards {
        let ip: IpAddr = PEER.parse().expect("an address");
        let ways: Vec<_> =
            ports.iter().filter(|_| ways).map(|port| (ip, port.clone(), Route::Usual)).collect();
        let mut found = findings(ports, None, Firewall::Open);
        if found.ports.is_empty() {
            found.obstacles.push(Obstacle::NoDevice);
        }
        Towards::decide("beta", vec![ip], is_here, &ways, &found)
    }

    #[test]
    fn the_best_is_named_and_why_not_a_better() {
        let card = || vec![port(Fabric::Roce, "mlx5_0", 1)];
        let same = decided(true, card(), true);
        assert_eq!((same.transport, same.ways.len()), ("shm", 1));
        let other = decided(false, card(), true);
        assert_eq!(other.transport, "rdma");
        assert_eq!(other.ways[0].port, "mlx5_0 port 1 (RoCE v2, 100 Gb/s) at 127.0.0.1");
        assert!(other.notes.join("\n").contains("`caravan selftest beta` tries it"), "{other:?}");
        let apart = decided(false, card(), false);
        assert_eq!(apart.transport, "tcp");
        assert!(
            apart.notes.join("\n").contains("reaches one of the peer's (beta at 192.0.2.7)"),
            "{apart:?}"
        );
        let bare = decided(false, Vec::new(), false);
        assert!(bare.notes.contains(&"RDMA: no, this machine has no RDMA device".to_owned()), "{bare:?}");
    }

    #[test]
    fn names_are_resolved() {
        assert_eq!(resolve("127.0.0.1").expect("an address"), ["127.0.0.1".parse::<IpAddr>().expect("one")]);
        assert_eq!(resolve("[::1]").expect("an address"), ["::1".parse::<IpAddr>().expect("one")]);
        let error = resolve("no-such-host.invalid").expect_err("refused").to_string();
        assert!(error.contains("no-such-host.invalid"), "{error}");
    }
}

//! From which ports a peer might be reached, before it has said anything.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::choose::{self, Route, reach};
use super::device::Fabric;
use super::message::Port;
use super::ports::{self, is_near};

/// The ports of `ours` from which packets would get to a peer's RDMA device at the address `to`, best
/// first, and how this machine's routes see it. Whether there is such a device only the peer knows. An
/// InfiniBand port needs no IP address: of those, whether they are in one subnet.
pub fn towards(ours: &[Port], to: IpAddr) -> Vec<(Port, Route)> {
    let mut ways: Vec<_> = ours
        .iter()
        .filter_map(|our| reach(our, &peer(our, to), ports::route).map(|(_, route)| (our.clone(), route)))
        .collect();
    ways.sort_by_key(|(port, route)| std::cmp::Reverse((*route, is_near(port), port.megabits)));
    ways
}

/// Every pair of ports between which packets would get through as far as this machine's routes tell, the
/// best first: the first is the one that [`connect`](super::connect()) takes.
pub fn pairs(ours: &[Port], theirs: &[Port]) -> Vec<(Port, Port)> {
    let pairs = choose::pairs(ours, theirs, ports::route, is_near);
    pairs.into_iter().map(|(our, their)| (our.clone(), their.clone())).collect()
}

/// True if the address is this machine's own. Nothing is sent.
pub fn is_here(ip: IpAddr) -> bool {
    ip.is_loopback() || ports::source(ip) == Some(ip)
}

/// A port like `our` at the address `ip`, or in the subnet of `our`.
fn peer(our: &Port, ip: IpAddr) -> Port {
    let gid = match (our.fabric, ip) {
        (Fabric::InfiniBand, _) => our.gid,
        (_, IpAddr::V4(v4)) => Ipv4Addr::to_ipv6_mapped(&v4).octets(),
        (_, IpAddr::V6(v6)) => Ipv6Addr::octets(&v6),
    };
    Port { gid, ..our.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(fabric: Fabric, ip: &str) -> Port {
        let at_no_address = Port {
            fabric: Fabric::Roce,
            device: "mlx5_0".to_owned(),
            number: 1,
            gid: [0; 16],
            gid_index: 0,
            lid: 1,
            megabits: 0,
            mtu: 4096,
        };
        let at = peer(&at_no_address, ip.parse().unwrap());
        Port { fabric, ..at }
    }

    #[test]
    fn ways_are_of_the_kind_and_family_of_the_peer() {
        let here: IpAddr = "127.0.0.1".parse().unwrap();
        let [v4, v6] = ["127.0.0.1", "fd00::1"].map(|ip| port(Fabric::Roce, ip));
        let subnet = port(Fabric::InfiniBand, "fe80::1");
        let ways = towards(&[v6, v4.clone(), subnet.clone()], here);
        let ways: Vec<_> = ways.iter().map(|(port, _)| port.clone()).collect();
        assert_eq!(ways.len(), 2);
        assert!(ways.contains(&v4) && ways.contains(&subnet), "{ways:?}");
        let theirs = std::slice::from_ref(&subnet);
        assert_eq!(pairs(&[v4, subnet.clone()], theirs), [(subnet.clone(), subnet.clone())]);
    }

    #[test]
    fn this_machine_knows_its_own_addresses() {
        for (ip, here) in [("127.0.0.1", true), ("::1", true), ("127.9.9.9", true), ("192.0.2.1", false)] {
            assert_eq!(is_here(ip.parse().unwrap()), here, "{ip}");
        }
    }
}

//! Which port of this side talks to which of the peer's, and from which ports a peer that has sent nothing yet
//! might be reached.

use std::cmp::Reverse;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use super::device::Fabric;
use super::message::Port;
use super::obstacle::Obstacle;
use super::ports::{self, is_near};

/// How this machine's routes see a pair of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Route {
    /// There is no route.
    None,
    /// There is a route from that address, but the kernel prefers another address.
    Possible,
    /// The kernel itself takes this route.
    Usual,
}

/// Chooses the best pair of ports, or returns why there is none. Criteria, in order: reachable at all; not by an
/// address that is valid on one link only; on the kernel's own route; near to this process; fast. Among equals,
/// pairs that belong to different peers differ, so that several cards share the work.
pub fn choose<'a>(
    ours: &'a [Port],
    theirs: &'a [Port],
    route: impl Fn(IpAddr, IpAddr) -> Route,
    is_near: impl Fn(&Port) -> bool,
) -> Result<(&'a Port, &'a Port), Obstacle> {
    let best = rated_pairs(ours, theirs, route, is_near).into_iter().next();
    best.ok_or_else(|| Obstacle::NoPath { ours: list(ours), theirs: list(theirs) })
}

/// Returns every pair of ports between which packets would get through, the best first.
fn rated_pairs<'a>(
    ours: &'a [Port],
    theirs: &'a [Port],
    route: impl Fn(IpAddr, IpAddr) -> Route,
    is_near: impl Fn(&Port) -> bool,
) -> Vec<(&'a Port, &'a Port)> {
    let pairs = ours.iter().flat_map(|our| theirs.iter().map(move |their| (our, their)));
    let rated = pairs.filter_map(|(our, their)| {
        let reach = reach(our, their, &route)?;
        let speed = our.megabits.min(their.megabits);
        let lot = our
            .gid
            .iter()
            .chain(&their.gid)
            .fold(0u32, |lot, &byte| lot.wrapping_mul(31).wrapping_add(u32::from(byte)).rotate_left(5));
        Some(((reach, is_near(our), speed, lot), (our, their)))
    });
    let mut rated: Vec<_> = rated.collect();
    rated.sort_by_key(|(rating, _)| Reverse(*rating));
    rated.into_iter().map(|(_, pair)| pair).collect()
}

/// Returns the ports of `ours` from which packets would get to a peer's RDMA device at the address `to`, best
/// first, each with its route. Only the peer knows whether it has such a device. An InfiniBand port needs no IP
/// address: every one is returned, for a peer in its subnet.
pub fn towards(ours: &[Port], to: IpAddr) -> Vec<(Port, Route)> {
    let mut ways: Vec<_> = ours
        .iter()
        .filter_map(|our| reach(our, &peer_at(our, to), ports::route).map(|(_, route)| (our.clone(), route)))
        .collect();
    ways.sort_by_key(|(port, route)| std::cmp::Reverse((*route, is_near(port), port.megabits)));
    ways
}

/// Returns every pair of ports between which packets would get through as far as this machine's routes tell, the
/// best first: [`connect`](super::connect()) takes the first.
pub fn pairs(ours: &[Port], theirs: &[Port]) -> Vec<(Port, Port)> {
    let pairs = rated_pairs(ours, theirs, ports::route, is_near);
    pairs.into_iter().map(|(our, their)| (our.clone(), their.clone())).collect()
}

/// Returns a port like `our` at the address `ip`, or in the subnet of `our`.
fn peer_at(our: &Port, ip: IpAddr) -> Port {
    let gid = match (our.fabric, ip) {
        (Fabric::InfiniBand, _) => our.gid,
        (_, IpAddr::V4(v4)) => Ipv4Addr::to_ipv6_mapped(&v4).octets(),
        (_, IpAddr::V6(v6)) => Ipv6Addr::octets(&v6),
    };
    Port { gid, ..our.clone() }
}

/// Rates a pair, the higher the better; `None` if no packet would get through.
fn reach(our: &Port, their: &Port, route: impl Fn(IpAddr, IpAddr) -> Route) -> Option<(bool, Route)> {
    if our.fabric != their.fabric {
        return None;
    }
    match our.fabric {
        // The upper half of a GID is its subnet.
        Fabric::InfiniBand => (our.gid[..8] == their.gid[..8]).then_some((true, Route::Usual)),
        Fabric::Roce | Fabric::Iwarp => {
            let (from, to) = (our.ip(), their.ip());
            if from.is_ipv4() != to.is_ipv4() || our.is_link_local() != their.is_link_local() {
                return None;
            }
            // No machine's routes contain link-local addresses.
            if our.is_link_local() {
                return (our.fabric == Fabric::Roce).then_some((false, Route::Possible));
            }
            let route = route(from, to);
            (route > Route::None).then_some((true, route))
        }
    }
}

fn list(ports: &[Port]) -> String {
    let mut names: Vec<_> =
        ports.iter().map(|port| format!("{} at {}", port.describe(), port.address())).collect();
    names.dedup();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(fabric: Fabric, device: &str, ip: &str, megabits: u32) -> Port {
        let gid = match ip.parse().unwrap() {
            IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4).octets(),
            IpAddr::V6(v6) => Ipv6Addr::octets(&v6),
        };
        Port { fabric, device: device.to_owned(), number: 1, gid, gid_index: 0, lid: 1, megabits, mtu: 4096 }
    }

    /// Addresses with the same first number reach each other.
    fn by_first_number(from: IpAddr, to: IpAddr) -> Route {
        match (from, to) {
            (IpAddr::V4(from), IpAddr::V4(to)) if from.octets()[0] == to.octets()[0] => Route::Usual,
            (IpAddr::V6(from), IpAddr::V6(to)) if from.octets()[..2] == to.octets()[..2] => Route::Possible,
            _ => Route::None,
        }
    }

    #[test]
    fn pairs_are_chosen() {
        use Fabric::{InfiniBand, Iwarp, Roce};
        let slow = port(Roce, "slow", "10.0.0.1", 10_000);
        let fast = port(Roce, "fast", "10.0.1.1", 100_000);
        let v6 = port(Roce, "six", "fd00::1", 400_000);
        let link = port(Roce, "link", "fe80::1", 400_000);
        let iwarp = port(Iwarp, "iwarp", "10.0.0.9", 400_000);
        let other = port(Roce, "other", "11.0.0.1", 400_000);
        let subnet = port(InfiniBand, "ib", "fe80::1:0:0:1", 200_000);
        let beyond = port(InfiniBand, "beyond", "fd80::1:0:0:1", 200_000);
        let near_none = |_: &Port| false;
        let table = [
            (vec![&slow], vec![&slow], Some(("slow", "slow"))),
            (vec![&slow, &fast], vec![&slow, &fast], Some(("fast", "fast"))),
            (vec![&slow, &v6], vec![&slow, &v6], Some(("slow", "slow"))),
            (vec![&v6], vec![&slow, &v6], Some(("six", "six"))),
            (vec![&link, &slow], vec![&link, &slow], Some(("slow", "slow"))),
            (vec![&link], vec![&link, &slow], Some(("link", "link"))),
            (vec![&iwarp], vec![&slow], None),
            (vec![&iwarp, &other], vec![&iwarp], Some(("iwarp", "iwarp"))),
            (vec![&other], vec![&slow, &fast], None),
            (vec![&subnet], vec![&subnet, &beyond], Some(("ib", "ib"))),
            (vec![&subnet], vec![&beyond], None),
            (vec![], vec![&slow], None),
        ];
        for (ours, theirs, expected) in table {
            let owned = |ports: &[&Port]| ports.iter().map(|&port| port.clone()).collect::<Vec<_>>();
            let (ours, theirs) = (owned(&ours), owned(&theirs));
            let chosen = choose(&ours, &theirs, by_first_number, near_none);
            let names = chosen.as_ref().ok().map(|(our, their)| (our.device.as_str(), their.device.as_str()));
            assert_eq!(names, expected, "{ours:?} {theirs:?}");
            let all = rated_pairs(&ours, &theirs, by_first_number, near_none);
            assert_eq!(all.first().copied(), chosen.ok());
            let reach = |(our, their): (&Port, &Port)| reach(our, their, by_first_number);
            assert!(all.iter().all(|pair| reach(*pair).is_some()));
            assert!(all.windows(2).all(|two| reach(two[0]) >= reach(two[1])), "the best come first");
        }
    }

    #[test]
    fn a_near_card_is_preferred_and_no_path_is_named() {
        let [a, b] = ["10.0.0.1", "10.0.0.2"].map(|ip| port(Fabric::Roce, ip, ip, 100_000));
        let ports = [a, b];
        for near in ["10.0.0.1", "10.0.0.2"] {
            let is_near = |port: &Port| port.device == near;
            let (our, _) = choose(&ports, &ports, by_first_number, is_near).unwrap();
            assert_eq!(our.device, near);
        }
        let why = choose(&ports[..1], &[], by_first_number, |_| true).unwrap_err().to_string();
        assert!(
            why.contains("(10.0.0.1 port 1 (RoCE v2, 100 Gb/s) at 10.0.0.1)") && why.contains("(none)"),
            "{why}"
        );
    }

    #[test]
    fn ways_are_of_the_kind_and_family_of_the_peer() {
        let here: IpAddr = "127.0.0.1".parse().unwrap();
        let [v4, v6] = ["127.0.0.1", "fd00::1"].map(|ip| port(Fabric::Roce, "mlx5_0", ip, 0));
        let subnet = port(Fabric::InfiniBand, "mlx5_0", "fe80::1", 0);
        let ways = towards(&[v6, v4.clone(), subnet.clone()], here);
        let ways: Vec<_> = ways.iter().map(|(port, _)| port.clone()).collect();
        assert_eq!(ways.len(), 2);
        assert!(ways.contains(&v4) && ways.contains(&subnet), "{ways:?}");
        let theirs = std::slice::from_ref(&subnet);
        assert_eq!(pairs(&[v4, subnet.clone()], theirs), [(subnet.clone(), subnet.clone())]);
    }
}

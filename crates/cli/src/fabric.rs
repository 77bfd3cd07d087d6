//! `caravan fabric`: shows what this host has for RDMA, the obstacles, and what would be used towards another host.

pub mod survey;

use std::fmt::Write as _;
use std::net::{IpAddr, ToSocketAddrs};

use caravan_fabric::verbs::{self, Obstacle, Port, Route};
use serde::Serialize;

use crate::args::FabricArgs;
use crate::error::Error;
use crate::fabric::survey::{DevicePort, Findings, Survey, SurveyedDevice, name};
use crate::{pretty_json, print};

#[derive(Debug, Serialize)]
struct FabricReport<'a> {
    #[serde(flatten)]
    survey: &'a Survey,
    towards: Option<&'a Towards>,
}

/// Prints the report. Returns an error if only TCP leads to the host that was asked for.
pub fn run(args: &FabricArgs) -> Result<(), Error> {
    let found = Findings::of_this_host()?;
    let towards = args.host.as_ref().map(|host| Towards::find(host, &found)).transpose()?;
    let text = match args.json {
        true => pretty_json(&FabricReport { survey: &found.survey, towards: towards.as_ref() })?,
        false => {
            let mut text = survey(&found.survey);
            text.extend(towards.iter().map(|known| format!("\n{}", towards_text(known))));
            text
        }
    };
    print(&text)?;
    match towards {
        Some(Towards { transport: "tcp", host, .. }) => Err(Error::OnlyTcp { host }),
        _ => Ok(()),
    }
}

/// The best transport towards a host, and why there is no better one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Towards {
    pub host: String,
    pub addresses: Vec<IpAddr>,
    /// "shm", "rdma" or "tcp", as in the options of a node.
    pub transport: &'static str,
    /// The routes over RDMA, the best first.
    pub ways: Vec<FabricRoute>,
    /// Why there is no better transport, and what only the peer knows; a sentence each.
    pub notes: Vec<String>,
}

/// A port of this host from which packets reach the other one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FabricRoute {
    pub port: String,
    pub to: IpAddr,
    pub route: &'static str,
}

impl Towards {
    /// Resolves the host's addresses and asks this machine's routes.
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
        let ways = ways.iter().map(|(to, port, route)| FabricRoute {
            port: name(port),
            to: *to,
            route: words(port, *route),
        });
        Self { host: host.to_owned(), addresses, transport, ways: ways.collect(), notes }
    }
}

/// Returns why RDMA does not lead to a host.
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

/// Returns every address of a host once, as the system resolves it.
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

/// Describes a host, its devices and its obstacles.
pub fn survey(survey: &Survey) -> String {
    let mut text = String::new();
    let rdma_core = match survey.rdma_core.as_deref() {
        None => "no rdma-core".to_owned(),
        Some("") => "rdma-core".to_owned(),
        Some(version) => format!("rdma-core {version}"),
    };
    let Survey { host, kernel, caravan, .. } = survey;
    // Writing into a String cannot fail.
    let _ = writeln!(text, "{host}: caravan {caravan}, Linux {kernel}, {rdma_core}");
    for device in &survey.devices {
        write_device(&mut text, device);
    }
    if survey.devices.is_empty() {
        text.push_str("  no RDMA device that can be opened\n");
    }
    let _ = writeln!(text, "  locked memory: {}", survey.locked_memory.sentence());
    let _ = writeln!(text, "  firewall: {}", survey.firewall);
    match survey.obstacles.is_empty() {
        true => text.push_str("  nothing is in the way of RDMA on this host\n"),
        false => text.push_str("  in the way of RDMA:\n"),
    }
    for obstacle in &survey.obstacles {
        let _ = writeln!(text, "  - {obstacle}");
    }
    text
}

fn write_device(text: &mut String, device: &SurveyedDevice) {
    let origin = match (device.is_software, device.firmware.is_empty()) {
        (true, _) => "a software device".to_owned(),
        (false, true) => format!("vendor and part {}", device.vendor),
        (false, false) => format!("vendor and part {}, firmware {}", device.vendor, device.firmware),
    };
    let (connections, depth) = (device.connections_max, device.queue_depth_max);
    let _ = writeln!(
        text,
        "  {}: {origin}; at most {connections} queue pairs of {depth} work requests",
        device.name
    );
    let capabilities = [
        (device.memory_windows, "memory windows"),
        (device.compare_and_swap, "compare-and-swap"),
        (device.atomic_with_processor, "compare-and-swap is atomic with the processor"),
        (device.write_with_immediate, "write with immediate"),
    ];
    for (has, prefix) in [(true, "has"), (false, "lacks")] {
        let names: Vec<_> = capabilities.iter().filter(|(is, _)| *is == has).map(|(_, name)| *name).collect();
        if !names.is_empty() {
            let _ = writeln!(text, "    {prefix}: {}", names.join(", "));
        }
    }
    device.ports.iter().for_each(|port| write_port(text, port));
}

fn write_port(text: &mut String, port: &DevicePort) {
    let speed = match port.megabits {
        0 => "speed unknown".to_owned(),
        megabits => format!("{} Gb/s", f64::from(megabits) / 1000.0),
    };
    let lid = if port.lid == 0 { String::new() } else { format!(", LID {}", port.lid) };
    let DevicePort { number, kind, state, mtu, .. } = port;
    let _ = writeln!(text, "    port {number}: {kind}, {state}, {speed}, MTU {mtu}{lid}");
    for address in &port.addresses {
        let place = address.gid_index.map_or_else(String::new, |index| format!("GID {index}: "));
        let interface = match address.interface.as_str() {
            "" => String::new(),
            name => format!(", {name}"),
        };
        let _ = writeln!(text, "      {place}{} ({}{interface})", address.address, address.kind);
    }
}

/// Describes what would be used towards a host.
pub fn towards_text(towards: &Towards) -> String {
    let Towards { host, addresses, transport, ways, notes } = towards;
    let addresses: Vec<_> = addresses.iter().map(ToString::to_string).collect();
    let name = match *transport {
        "shm" => "shared memory",
        "rdma" => "RDMA",
        _ => "TCP",
    };
    let mut text = format!("towards {host} ({}): {name}\n", addresses.join(", "));
    for way in ways {
        let _ = writeln!(text, "  RDMA from {}, towards {}, {}", way.port, way.to, way.route);
    }
    for note in notes {
        let _ = writeln!(text, "  {note}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fabric::survey::tests::{findings, port};
    use crate::fabric::survey::{DevicePort, Firewall, SurveyedAddress};
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
    }

    #[test]
    fn a_host_is_described_in_plain_words() {
        let mut found = findings(Vec::new(), Some(8 << 20), Firewall::Open);
        found.survey.obstacles = vec!["mlx5_0 port 1: the port is down".to_owned()];
        found.survey.devices[0].ports = vec![DevicePort {
            number: 1,
            kind: "RoCE v2".to_owned(),
            state: "active".to_owned(),
            megabits: 2500,
            mtu: 1024,
            lid: 0,
            addresses: vec![SurveyedAddress {
                gid_index: Some(3),
                address: "10.0.0.1".to_owned(),
                kind: "RoCE v2".to_owned(),
                interface: "eth0".to_owned(),
            }],
        }];
        let text = survey(&found.survey);
        for expected in [
            "rdma-core 44.0",
            "  mlx5_0: vendor and part 15b3:1017, firmware 16.35; at most 1000 queue pairs of 8192 work requests\n",
            "    lacks: compare-and-swap is atomic with the processor\n",
            "    port 1: RoCE v2, active, 2.5 Gb/s, MTU 1024\n      GID 3: 10.0.0.1 (RoCE v2, eth0)\n",
            "  rxe0: a software device;",
            "  locked memory: 8 MiB, room for 7 links",
            "  in the way of RDMA:\n  - mlx5_0 port 1: the port is down\n",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }
}

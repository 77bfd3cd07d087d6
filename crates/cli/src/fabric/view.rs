//! A survey as text.

use std::fmt::Write;

use super::survey::{Device, DevicePort, Survey};
use super::towards::Towards;

/// A host, its devices, and what is in the way.
pub fn survey(survey: &Survey) -> String {
    let mut text = String::new();
    let rdma_core = match survey.rdma_core.as_deref() {
        None => "no rdma-core".to_owned(),
        Some("") => "rdma-core".to_owned(),
        Some(version) => format!("rdma-core {version}"),
    };
    let Survey { host, kernel, caravan, .. } = survey;
    // Nothing fails that is written to a string.
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

fn write_device(text: &mut String, device: &Device) {
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

/// What would be used towards a host.
pub fn towards(towards: &Towards) -> String {
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
    use super::super::firewall::Firewall;
    use super::super::survey::tests::findings;
    use super::super::survey::{Address, DevicePort};
    use super::*;

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
            addresses: vec![Address {
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

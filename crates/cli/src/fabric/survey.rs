//! The survey of a host, as reports show it and the two sides of a self-test exchange it.

use std::fs;
use std::process::{Command, Stdio};

use caravan_bench::number;
use caravan_fabric::verbs::device::{self, Context, Fabric, Gid, PortFacts};
use caravan_fabric::verbs::{self, MEMORY_LOCK_REMEDY, Obstacle, Port, Usable};
use caravan_fabric::{Error as FabricError, Link};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The default ring size in bytes, which Erlang nodes use.
pub const RING_BYTES: u64 = 512 << 10;

/// What a host has for RDMA.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Survey {
    pub host: String,
    pub caravan: String,
    pub kernel: String,
    /// `None` if the library cannot be loaded; empty if its version is unknown.
    pub rdma_core: Option<String>,
    pub devices: Vec<SurveyedDevice>,
    pub locked_memory: LockedMemory,
    pub firewall: String,
    /// Ports that a connection could use, as users see them.
    pub usable: Vec<String>,
    /// Why there are no more usable ports.
    pub obstacles: Vec<String>,
}

/// An RDMA device that could be opened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurveyedDevice {
    pub name: String,
    /// True if the kernel makes the packets, not a card.
    pub is_software: bool,
    pub firmware: String,
    /// The PCI numbers of the vendor and of the part.
    pub vendor: String,
    pub connections_max: u32,
    pub queue_depth_max: u32,
    pub memory_windows: bool,
    pub compare_and_swap: bool,
    pub atomic_with_processor: bool,
    pub write_with_immediate: bool,
    /// True if the memory that a peer may reach is registered a second time.
    pub registers_twice: bool,
    pub ports: Vec<DevicePort>,
}

/// A port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicePort {
    pub number: u8,
    pub kind: String,
    pub state: String,
    pub megabits: u32,
    pub mtu: u32,
    pub lid: u16,
    pub addresses: Vec<SurveyedAddress>,
}

/// An address of a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SurveyedAddress {
    /// The index in the port's GID table; `None` if the connection manager finds the address.
    pub gid_index: Option<u8>,
    pub address: String,
    pub kind: String,
    pub interface: String,
}

/// The memory that devices may reach.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedMemory {
    /// `None` means without limit.
    pub limit_bytes: Option<u64>,
    pub ring_bytes: u64,
    pub bytes_per_link: u64,
    /// `None` means without limit.
    pub links: Option<u64>,
}

/// A survey, with the ports and obstacles as values on which the caller decides.
#[derive(Debug)]
pub struct Findings {
    pub survey: Survey,
    /// Ports without an obstacle, as far as this host knows.
    pub ports: Vec<Port>,
    pub obstacles: Vec<Obstacle>,
}

impl Findings {
    /// Asks the kernel, the library and each device.
    pub fn of_this_host() -> Result<Self, FabricError> {
        let usable = verbs::usable();
        let contexts = device::names().into_iter().filter_map(|name| device::open(&name).ok());
        let devices = contexts.map(|context| describe(&context, &usable)).collect();
        let surroundings = Surroundings {
            library: verbs::library_version(),
            limit_bytes: verbs::memory_lock_limit(),
            firewall: Firewall::of_this_host(),
        };
        Self::of(devices, usable, surroundings)
    }

    fn of(devices: Vec<SurveyedDevice>, usable: Usable, around: Surroundings) -> Result<Self, FabricError> {
        let Usable { mut ports, mut obstacles } = usable;
        let windows = !devices.iter().any(|device| device.registers_twice);
        let locked_memory = locked_memory(around.limit_bytes, windows)?;
        if let (Some(0), Some(port), Some(limit_bytes)) =
            (locked_memory.links, ports.first(), around.limit_bytes)
        {
            let (device, needed_bytes) = (port.device.clone(), locked_memory.bytes_per_link);
            obstacles.push(Obstacle::MemoryLock { device, needed_bytes, limit_bytes });
            ports.clear();
        }
        let is_software =
            |port: &Port| devices.iter().any(|device| device.name == port.device && device.is_software);
        let filtered = |port: &Port| port.fabric == Fabric::Roce && is_software(port);
        if let (Firewall::Drops(obstacle), true) = (&around.firewall, ports.iter().any(filtered)) {
            obstacles.push(obstacle.clone());
            ports.retain(|port| !filtered(port));
        }
        // Without a device, the other obstacles are listed too: they would be the next ones.
        if let Err(obstacle) = &around.library {
            if !obstacles.contains(obstacle) {
                obstacles.push(obstacle.clone());
            }
        }
        let survey = Survey {
            host: line("/proc/sys/kernel/hostname"),
            caravan: env!("CARGO_PKG_VERSION").to_owned(),
            kernel: line("/proc/sys/kernel/osrelease"),
            rdma_core: around.library.ok(),
            devices,
            locked_memory,
            firewall: around.firewall.sentence(),
            usable: ports.iter().map(name).collect(),
            obstacles: obstacles.iter().map(Obstacle::to_string).collect(),
        };
        Ok(Self { survey, ports, obstacles })
    }
}

/// What decides on RDMA besides the devices.
#[derive(Debug)]
struct Surroundings {
    library: Result<String, Obstacle>,
    limit_bytes: Option<u64>,
    firewall: Firewall,
}

/// Returns the name of a port: "mlx5_0 port 1 (RoCE v2, 100 Gb/s) at 10.0.0.1".
pub fn name(port: &Port) -> String {
    format!("{} at {}", port.describe(), port.address())
}

fn describe(context: &Context, usable: &Usable) -> SurveyedDevice {
    let facts = context.facts();
    let ports = (1..=facts.ports).filter_map(|number| context.port(number).ok());
    SurveyedDevice {
        name: context.name().to_owned(),
        is_software: fs::metadata(format!("/sys/class/infiniband/{}/device", context.name())).is_err(),
        firmware: facts.firmware.clone(),
        vendor: format!("{:04x}:{:04x}", facts.vendor, facts.part),
        connections_max: facts.queue_pairs_max,
        queue_depth_max: facts.queue_depth_max,
        memory_windows: context.uses_windows(),
        compare_and_swap: facts.swaps.exist,
        atomic_with_processor: facts.swaps.atomic_with_processor,
        write_with_immediate: context.has_immediates(),
        registers_twice: !context.uses_windows(),
        ports: ports.map(|port| describe_port(context.name(), &port, usable)).collect(),
    }
}

fn describe_port(device: &str, facts: &PortFacts, usable: &Usable) -> DevicePort {
    let addresses = match facts.fabric {
        // The GIDs of an iWARP port do not tell its addresses.
        Some(Fabric::Iwarp) => {
            let here =
                usable.ports.iter().filter(|port| port.device == device && port.number == facts.number);
            let kind = Fabric::Iwarp.name().to_owned();
            here.map(|port| SurveyedAddress {
                gid_index: None,
                address: port.address(),
                kind: kind.clone(),
                interface: String::new(),
            })
            .collect()
        }
        _ => facts.gids.iter().map(describe_gid).collect(),
    };
    DevicePort {
        number: facts.number,
        kind: facts.fabric.map_or("unknown link layer", Fabric::name).to_owned(),
        state: facts.state.to_owned(),
        megabits: facts.megabits,
        mtu: facts.mtu,
        lid: facts.lid,
        addresses,
    }
}

fn describe_gid(gid: &Gid) -> SurveyedAddress {
    let kind = match gid.version {
        0 => "InfiniBand",
        1 => "RoCE v1, not used",
        2 => "RoCE v2",
        _ => "unknown",
    };
    SurveyedAddress {
        gid_index: Some(gid.index),
        address: gid.ip().to_string(),
        kind: kind.to_owned(),
        interface: gid.interface.clone(),
    }
}

fn locked_memory(limit_bytes: Option<u64>, windows: bool) -> Result<LockedMemory, FabricError> {
    let bytes_per_link = verbs::registered_bytes(&Link::exposure(RING_BYTES)?, windows);
    let links = limit_bytes.map(|limit| limit / bytes_per_link);
    Ok(LockedMemory { limit_bytes, ring_bytes: RING_BYTES, bytes_per_link, links })
}

impl LockedMemory {
    /// Describes the limit in one sentence.
    pub fn sentence(&self) -> String {
        let ring = number::binary(self.ring_bytes);
        let each = number::binary(self.bytes_per_link);
        match (self.limit_bytes, self.links) {
            (Some(limit), Some(links)) => format!(
                "{}, room for {links} links of {each} each, with the default ring of {ring}; {MEMORY_LOCK_REMEDY}",
                number::binary(limit)
            ),
            _ => format!("no limit; a link takes {each}, with the default ring of {ring}"),
        }
    }
}

fn line(path: &str) -> String {
    fs::read_to_string(path).map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}

/// The UDP port of RoCE v2 (InfiniBand Architecture Specification, annex A17).
const ROCE_PORT: u64 = 4791;
/// Where root's tools are, which may not be on the PATH.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// What is known of this host's firewall and RoCE v2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Firewall {
    /// No rule that could be read drops the packets.
    Open,
    /// A rule drops the packets.
    Drops(Obstacle),
    /// A policy may drop the packets; the sentence.
    Suspected(String),
    /// The rules cannot be read; the sentence.
    Unseen(String),
}

impl Firewall {
    /// Asks nft, and iptables, which may have rules of the old kind.
    pub fn of_this_host() -> Self {
        let ruleset = answer("nft", &["-j", "list", "ruleset"]);
        let lists = ["iptables-save", "ip6tables-save"].map(|program| answer(program, &[]));
        let found = ruleset.as_ref().ok().map(|text| in_ruleset(text));
        let old = lists.iter().flatten().find_map(|text| in_list(text));
        match (found, old) {
            (_, Some(rule)) | (Some(FirewallRules::Rule(rule)), _) => {
                Self::Drops(Obstacle::Firewall { rule })
            }
            (Some(FirewallRules::Policy(chain)), None) => Self::Suspected(format!(
                "the chain `{chain}` drops what no rule accepts, and none accepts UDP port {ROCE_PORT}, which RoCE v2 uses"
            )),
            (Some(FirewallRules::Nothing), None) => Self::Open,
            (None, None) if lists.iter().any(Result::is_ok) => Self::Open,
            (None, None) => Self::Unseen(unseen(ruleset.err().flatten())),
        }
    }

    /// Describes the firewall in one sentence.
    pub fn sentence(&self) -> String {
        match self {
            Self::Open => format!("no rule of this host drops UDP port {ROCE_PORT} (RoCE v2)"),
            Self::Drops(obstacle) => obstacle.to_string(),
            Self::Suspected(sentence) | Self::Unseen(sentence) => sentence.clone(),
        }
    }
}

/// Returns why the rules are unknown: `None` if there is no program to ask, otherwise its complaint.
fn unseen(said: Option<String>) -> String {
    match said {
        None => format!(
            "whether one drops UDP port {ROCE_PORT} (RoCE v2) is not known: there is neither nft nor iptables to ask"
        ),
        Some(said) => format!(
            "whether one drops UDP port {ROCE_PORT} (RoCE v2) only root may see: `sudo nft list ruleset` ({said})"
        ),
    }
}

/// Returns what a program prints. The error is its first complaint, or `None` if there is no such program.
fn answer(program: &str, words: &[&str]) -> Result<String, Option<String>> {
    let places = FOLDERS.map(|folder| format!("{folder}/{program}"));
    let candidates = std::iter::once(program).chain(places.iter().map(String::as_str));
    for candidate in candidates {
        let mut command = Command::new(candidate);
        let Ok(output) = command.args(words).stdin(Stdio::null()).output() else { continue };
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(Some(said.lines().next().unwrap_or("it failed").trim().to_owned()));
    }
    Err(None)
}

#[derive(Debug, PartialEq, Eq)]
enum FirewallRules {
    Nothing,
    Rule(String),
    Policy(String),
}

/// Returns what the output of `nft -j list ruleset` (libnftables-json(5)) says of RoCE v2's port.
fn in_ruleset(text: &str) -> FirewallRules {
    let ruleset: Value = serde_json::from_str(text).unwrap_or_default();
    let entries = ruleset["nftables"].as_array().map_or(&[][..], Vec::as_slice);
    let chains: Vec<_> = entries.iter().filter_map(|entry| entry.get("chain")).collect();
    let rules: Vec<_> = entries.iter().filter_map(|entry| entry.get("rule")).collect();
    let hook = |rule: &Value| {
        let same = |chain: &&&Value| place(chain, "name") == place(rule, "chain");
        chains.iter().find(same).and_then(|chain| chain["hook"].as_str())
    };
    let stops = |rule: &&&Value| {
        !matches!(hook(rule), Some("forward")) && names_port(rule) && verdict(rule, &["drop", "reject"])
    };
    if let Some(rule) = rules.iter().find(stops) {
        return FirewallRules::Rule(format!("{}, handle {}", place(rule, "chain"), rule["handle"]));
    }
    let closed = chains.iter().find(|chain| {
        let drops = chain["policy"] == "drop" && (chain["hook"] == "input" || chain["hook"] == "output");
        let table = |value: &Value| (value["family"].clone(), value["table"].clone());
        let accepts =
            |rule: &&Value| table(rule) == table(chain) && names_port(rule) && verdict(rule, &["accept"]);
        drops && !rules.iter().any(accepts)
    });
    closed.map_or(FirewallRules::Nothing, |chain| FirewallRules::Policy(place(chain, "name")))
}

/// Returns the place of a rule: "inet filter input".
fn place(value: &Value, chain: &str) -> String {
    ["family", "table", chain].map(|key| value[key].as_str().unwrap_or("?")).join(" ")
}

fn verdict(rule: &Value, names: &[&str]) -> bool {
    let parts = rule["expr"].as_array().map_or(&[][..], Vec::as_slice);
    parts.iter().any(|part| names.iter().any(|name| part.get(name).is_some()))
}

/// True if a rule is for destination port 4791 of UDP.
fn names_port(rule: &Value) -> bool {
    let parts = rule["expr"].as_array().map_or(&[][..], Vec::as_slice);
    parts.iter().filter_map(|part| part.get("match")).any(|found| {
        let (left, is_equal) = (&found["left"]["payload"], found["op"] == "==");
        let is_udp = left["protocol"] == "udp" || left["protocol"] == "th";
        is_equal && is_udp && left["field"] == "dport" && covers(&found["right"])
    })
}

fn covers(right: &Value) -> bool {
    let list = |value: &Value| value.as_array().map_or(Vec::new(), Clone::clone);
    match right {
        Value::Number(number) => number.as_u64() == Some(ROCE_PORT),
        Value::Object(object) => {
            let range = object.get("range").map(list).unwrap_or_default();
            let bounds: Vec<_> = range.iter().filter_map(Value::as_u64).collect();
            let inside = matches!(bounds[..], [low, high] if (low..=high).contains(&ROCE_PORT));
            inside || object.get("set").map(list).unwrap_or_default().iter().any(covers)
        }
        _ => false,
    }
}

/// Returns the rule in the output of iptables-save that drops the packets, if there is one.
fn in_list(text: &str) -> Option<String> {
    text.lines().find(|line| list_drops(line)).map(|line| line.trim().to_owned())
}

fn list_drops(line: &str) -> bool {
    let words: Vec<_> = line.split_whitespace().collect();
    let after = |names: &[&str]| words.windows(2).find(|pair| names.contains(&pair[0])).map(|pair| pair[1]);
    let covered = |ports: &str| {
        ports.split(',').any(|part| {
            let (low, high) = part.split_once(':').unwrap_or((part, part));
            matches!((low.parse(), high.parse()), (Ok(low), Ok(high)) if (low..=high).contains(&ROCE_PORT))
        })
    };
    words.first() == Some(&"-A")
        && words.get(1) != Some(&"FORWARD")
        && matches!(after(&["-j"]), Some("DROP" | "REJECT"))
        && after(&["-p"]) == Some("udp")
        && after(&["--dport", "--dports", "--destination-port"]).is_some_and(covered)
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub fn port(fabric: Fabric, device: &str, last: u8) -> Port {
        let mut gid = [0; 16];
        gid[10..].copy_from_slice(&[0xff, 0xff, 127, 0, 0, last]);
        Port {
            fabric,
            device: device.to_owned(),
            number: 1,
            gid,
            gid_index: 1,
            lid: 0,
            megabits: 100_000,
            mtu: 4096,
        }
    }

    pub fn device(name: &str, is_software: bool) -> SurveyedDevice {
        SurveyedDevice {
            name: name.to_owned(),
            is_software,
            firmware: "16.35".to_owned(),
            vendor: "15b3:1017".to_owned(),
            connections_max: 1000,
            queue_depth_max: 8192,
            memory_windows: true,
            compare_and_swap: true,
            atomic_with_processor: false,
            write_with_immediate: true,
            registers_twice: false,
            ports: Vec::new(),
        }
    }

    pub fn findings(ports: Vec<Port>, limit_bytes: Option<u64>, firewall: Firewall) -> Findings {
        let devices = vec![device("mlx5_0", false), device("rxe0", true)];
        let around = Surroundings { library: Ok("44.0".to_owned()), limit_bytes, firewall };
        Findings::of(devices, Usable { ports, obstacles: Vec::new() }, around).unwrap()
    }

    #[test]
    fn a_small_limit_is_an_obstacle_and_a_larger_one_is_counted() {
        let ports = || vec![port(Fabric::Roce, "mlx5_0", 1)];
        let small = findings(ports(), Some(64 << 10), Firewall::Open);
        assert_eq!((small.ports.len(), small.survey.locked_memory.links), (0, Some(0)));
        let [obstacle @ Obstacle::MemoryLock { limit_bytes: 65536, .. }] = &small.obstacles[..] else {
            panic!("{:?}", small.obstacles);
        };
        assert!(obstacle.to_string().contains("`* - memlock unlimited` in /etc/security/limits.conf"));
        let debian = findings(ports(), Some(8 << 20), Firewall::Open);
        assert_eq!((debian.ports.len(), debian.survey.locked_memory.links), (1, Some(7)));
        let said = debian.survey.locked_memory.sentence();
        assert!(
            said.starts_with("8 MiB, room for 7 links of ") && said.contains("ulimit -l unlimited"),
            "{said}"
        );
        assert!(
            findings(ports(), None, Firewall::Open).survey.locked_memory.sentence().starts_with("no limit")
        );
    }

    #[test]
    fn a_firewall_stops_software_devices_only() {
        let ports = vec![
            port(Fabric::Roce, "mlx5_0", 1),
            port(Fabric::Roce, "rxe0", 2),
            port(Fabric::Iwarp, "rxe0", 3),
        ];
        let drops = || Firewall::Drops(Obstacle::Firewall { rule: "inet wall in, handle 2".to_owned() });
        let found = findings(ports.clone(), None, drops());
        assert_eq!(found.ports, [ports[0].clone(), ports[2].clone()]);
        assert!(found.survey.obstacles[0].contains("drops UDP port 4791"), "{:?}", found.survey.obstacles);
        let card = findings(vec![ports[0].clone()], None, drops());
        assert_eq!((card.obstacles.len(), card.ports.len()), (0, 1));
        assert!(card.survey.firewall.contains("inet wall in, handle 2"));
    }

    #[test]
    fn a_missing_library_is_told_once() {
        let missing = || Obstacle::NoLibrary { why: "libibverbs.so.1: no such file".to_owned() };
        for known in [vec![Obstacle::NoDevice], vec![missing()]] {
            let count = known.iter().filter(|other| **other != missing()).count() + 1;
            let around =
                Surroundings { library: Err(missing()), limit_bytes: None, firewall: Firewall::Open };
            let usable = Usable { ports: Vec::new(), obstacles: known };
            let found = Findings::of(Vec::new(), usable, around).unwrap();
            assert_eq!((found.obstacles.len(), found.survey.rdma_core), (count, None));
        }
    }

    fn ruleset(policy: &str, right: &str, verdict: &str) -> String {
        format!(
            r#"{{"nftables": [{{"metainfo": {{"version": "1.0.6"}}}},
            {{"table": {{"family": "inet", "name": "wall", "handle": 1}}}},
            {{"chain": {{"family": "inet", "table": "wall", "name": "in", "handle": 1, "type": "filter",
                "hook": "input", "prio": 0, "policy": "{policy}"}}}},
            {{"rule": {{"family": "inet", "table": "wall", "chain": "in", "handle": 2, "expr": [
                {{"match": {{"op": "==", "left": {{"payload": {{"protocol": "udp", "field": "dport"}}}},
                    "right": {right}}}}}, {{"counter": {{"packets": 0, "bytes": 0}}}}, {{"{verdict}": null}}]}}}}]}}"#
        )
    }

    #[test]
    fn rules_of_nft_are_read() {
        let rule = || FirewallRules::Rule("inet wall in, handle 2".to_owned());
        let policy = || FirewallRules::Policy("inet wall in".to_owned());
        for (policy_word, right, verdict, expected) in [
            ("accept", "4791", "drop", rule()),
            ("accept", "4791", "reject", rule()),
            ("accept", "4792", "drop", FirewallRules::Nothing),
            ("accept", r#"{"range": [4000, 5000]}"#, "drop", rule()),
            ("accept", r#"{"set": [22, {"range": [4791, 4791]}]}"#, "drop", rule()),
            ("accept", r#"{"set": [22, 53]}"#, "drop", FirewallRules::Nothing),
            ("drop", "22", "accept", policy()),
            ("drop", "4791", "accept", FirewallRules::Nothing),
        ] {
            assert_eq!(
                in_ruleset(&ruleset(policy_word, right, verdict)),
                expected,
                "{policy_word} {right} {verdict}"
            );
        }
        assert_eq!(in_ruleset("not JSON"), FirewallRules::Nothing);
        let forwarded = ruleset("accept", "4791", "drop").replace("\"input\"", "\"forward\"");
        assert_eq!(in_ruleset(&forwarded), FirewallRules::Nothing);
    }

    #[test]
    fn rules_of_iptables_are_read() {
        let drops = "-A INPUT -p udp -m udp --dport 4791 -j DROP";
        assert_eq!(
            in_list(&format!("*filter\n:INPUT ACCEPT [0:0]\n{drops}\nCOMMIT\n")).as_deref(),
            Some(drops)
        );
        for (line, expected) in [
            ("-A INPUT -p udp -m multiport --dports 22,4000:5000 -j REJECT", true),
            ("-A INPUT -p tcp -m tcp --dport 4791 -j DROP", false),
            ("-A INPUT -p udp -m udp --dport 4791 -j ACCEPT", false),
            ("-A FORWARD -p udp -m udp --dport 4791 -j DROP", false),
            ("-A INPUT -p udp -m udp --dport 53 -j DROP", false),
        ] {
            assert_eq!(list_drops(line), expected, "{line}");
        }
    }

    #[test]
    fn what_cannot_be_seen_is_said() {
        let said = unseen(Some("Operation not permitted (you must be root)".to_owned()));
        assert!(said.contains("only root may see: `sudo nft list ruleset`"), "{said}");
        assert!(unseen(None).contains("neither nft nor iptables"));
        assert_eq!(answer("no-such-program-here", &[]), Err(None));
    }
}

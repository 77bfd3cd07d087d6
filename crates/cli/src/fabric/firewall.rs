//! Whether a packet filter of this host drops UDP port 4791, as far as this user may see.
//!
//! It stops software devices, whose packets are the kernel's own. A card's packets pass it by; what
//! drops those is a switch, of which only trying tells.

use std::process::{Command, Stdio};

use caravan_fabric::verbs::Obstacle;
use serde_json::Value;

/// RoCE v2's (InfiniBand Architecture Specification, annex A17).
const ROCE_PORT: u64 = 4791;
/// Beside the path, as these are root's tools.
const FOLDERS: [&str; 2] = ["/usr/sbin", "/sbin"];

/// What is known of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Firewall {
    /// No rule that could be read drops it.
    Open,
    /// A rule drops it.
    Drops(Obstacle),
    /// A policy may drop it; the sentence.
    Suspected(String),
    /// The rules cannot be read; the sentence.
    Unseen(String),
}

impl Firewall {
    /// Asks nft, and iptables where rules of the old kind may be.
    pub fn of_this_host() -> Self {
        let ruleset = answer("nft", &["-j", "list", "ruleset"]);
        let lists = ["iptables-save", "ip6tables-save"].map(|program| answer(program, &[]));
        let found = ruleset.as_ref().ok().map(|text| in_ruleset(text));
        let old = lists.iter().flatten().find_map(|text| in_list(text));
        match (found, old) {
            (_, Some(rule)) | (Some(Found::Rule(rule)), _) => Self::Drops(Obstacle::Firewall { rule }),
            (Some(Found::Policy(chain)), None) => Self::Suspected(format!(
                "the chain `{chain}` drops what no rule accepts, and none accepts UDP port {ROCE_PORT}, which RoCE v2 uses"
            )),
            (Some(Found::Nothing), None) => Self::Open,
            (None, None) if lists.iter().any(Result::is_ok) => Self::Open,
            (None, None) => Self::Unseen(unseen(ruleset.err().flatten())),
        }
    }

    /// One sentence.
    pub fn sentence(&self) -> String {
        match self {
            Self::Open => format!("no rule of this host drops UDP port {ROCE_PORT} (RoCE v2)"),
            Self::Drops(obstacle) => obstacle.to_string(),
            Self::Suspected(sentence) | Self::Unseen(sentence) => sentence.clone(),
        }
    }
}

/// `None` is no such program, otherwise what it said.
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

/// What a program prints; otherwise its first complaint, or `None` if there is no such program.
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
enum Found {
    Nothing,
    Rule(String),
    Policy(String),
}

/// In what `nft -j list ruleset` prints (libnftables-json(5)).
fn in_ruleset(text: &str) -> Found {
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
        return Found::Rule(format!("{}, handle {}", place(rule, "chain"), rule["handle"]));
    }
    let closed = chains.iter().find(|chain| {
        let drops = chain["policy"] == "drop" && (chain["hook"] == "input" || chain["hook"] == "output");
        let table = |value: &Value| (value["family"].clone(), value["table"].clone());
        let accepts =
            |rule: &&Value| table(rule) == table(chain) && names_port(rule) && verdict(rule, &["accept"]);
        drops && !rules.iter().any(accepts)
    });
    closed.map_or(Found::Nothing, |chain| Found::Policy(place(chain, "name")))
}

/// "inet filter input".
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

/// In what iptables-save prints: the rule.
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
mod tests {
    use super::*;

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
        let rule = || Found::Rule("inet wall in, handle 2".to_owned());
        let policy = || Found::Policy("inet wall in".to_owned());
        for (policy_word, right, verdict, expected) in [
            ("accept", "4791", "drop", rule()),
            ("accept", "4791", "reject", rule()),
            ("accept", "4792", "drop", Found::Nothing),
            ("accept", r#"{"range": [4000, 5000]}"#, "drop", rule()),
            ("accept", r#"{"set": [22, {"range": [4791, 4791]}]}"#, "drop", rule()),
            ("accept", r#"{"set": [22, 53]}"#, "drop", Found::Nothing),
            ("drop", "22", "accept", policy()),
            ("drop", "4791", "accept", Found::Nothing),
        ] {
            assert_eq!(
                in_ruleset(&ruleset(policy_word, right, verdict)),
                expected,
                "{policy_word} {right} {verdict}"
            );
        }
        assert_eq!(in_ruleset("not JSON"), Found::Nothing);
        let forwarded = ruleset("accept", "4791", "drop").replace("\"input\"", "\"forward\"");
        assert_eq!(in_ruleset(&forwarded), Found::Nothing);
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

//! The named benchmarks.

use crate::error::Error;

/// A named benchmark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    SameHost,
    Veth,
    Veth10g,
    Start,
}

impl Case {
    pub const ALL: [Self; 4] = [Self::SameHost, Self::Veth, Self::Veth10g, Self::Start];

    pub fn key(self) -> &'static str {
        match self {
            Self::SameHost => "same-host",
            Self::Veth => "veth",
            Self::Veth10g => "veth-10g",
            Self::Start => "start",
        }
    }

    /// What it measures.
    pub fn about(self) -> &'static str {
        match self {
            Self::SameHost => "two commands of this host, beside the same in a shell's pipe",
            Self::Veth => {
                "a file in memory from one host to another, no limit, beside nc, socat, mbuffer, ssh, iperf3"
            }
            Self::Veth10g => "the same through a queue of 10 Gbit/s (tbf)",
            Self::Start => "one line through two hosts, ssh sessions being there, beside ssh | ssh",
        }
    }

    /// Whether it takes two hosts.
    pub fn needs_hosts(self) -> bool {
        self != Self::SameHost
    }

    /// Those that are wanted; all, if none are named.
    pub fn chosen(names: &[String]) -> Result<Vec<Self>, Error> {
        if names.is_empty() {
            return Ok(Self::ALL.to_vec());
        }
        let case = |name: &String| {
            Self::ALL.into_iter().find(|case| case.key() == name).ok_or_else(|| Error::NoBenchmark {
                name: name.clone(),
                names: Self::ALL.map(Self::key).join(", "),
            })
        };
        let named: Result<Vec<_>, _> = names.iter().map(case).collect();
        named.map(|named| Self::ALL.into_iter().filter(|case| named.contains(case)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_chosen_in_order_and_others_refused() {
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        assert_eq!(Case::chosen(&[]).expect("all"), Case::ALL);
        let chosen = Case::chosen(&names(&["start", "veth", "veth"])).expect("two");
        assert_eq!(chosen, [Case::Veth, Case::Start]);
        let error = Case::chosen(&names(&["vet"])).expect_err("refused").to_string();
        assert!(error.contains("same-host, veth, veth-10g, start"), "{error}");
    }
}

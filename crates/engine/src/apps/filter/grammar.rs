//! The grammar of filters, a part of pcap-filter(7).
//!
//! ```text
//! expression = term { ("and" | "or") term }        both bind alike, from left to right
//! term       = "not" term | "(" expression ")" | primitive
//! primitive  = "less" N | "greater" N | "vlan" [N] | protocol
//!            | [protocol] [side] kind value | [protocol] side value
//!            | value                               as the primitive before it
//! protocol   = "ether" | "ip" | "ip6" | "arp" | "tcp" | "udp" | "icmp" | "icmp6"
//! side       = "src" | "dst" | "src or dst" | "src and dst"
//! kind       = "host" | "net" | "port" | "portrange" | "proto"
//! ```

use super::program::{EndSide, Expression, Test};
use super::words::{FilterWord, FilterWords};

mod values;

/// Tests in one expression at most.
pub const TESTS_MAX: usize = 512;
/// `not` and parentheses within each other at most.
pub const NESTING_MAX: usize = 64;

/// What is asked of an address or a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    Host,
    Net,
    Port,
    PortRange,
    Proto,
}

/// All that stands in front of a value.
#[derive(Clone, Copy, Debug)]
struct Qualifiers<'a> {
    protocol: Option<&'a str>,
    side: EndSide,
    kind: ValueKind,
}

struct FilterParser<'a> {
    words: FilterWords<'a>,
    /// What a value without words in front of it means.
    last: Option<Qualifiers<'a>>,
    tests: usize,
}

/// The expression, or a sentence that names the word that is wrong.
pub fn parse(text: &str) -> Result<Expression, String> {
    let mut parser = FilterParser { words: FilterWords::new(text)?, last: None, tests: 0 };
    let expression = parser.expression(0)?;
    match parser.words.next() {
        FilterWord { text: "", .. } => Ok(expression),
        word if word.text == ")" => Err(word.wrong("there is no `(` for it")),
        word => Err(word.wrong("expected `and`, `or` or the end")),
    }
}

impl<'a> FilterParser<'a> {
    fn expression(&mut self, depth: usize) -> Result<Expression, String> {
        let mut left = self.term(depth)?;
        loop {
            if self.words.take("and") {
                left = Expression::And(Box::new(left), Box::new(self.term(depth)?));
            } else if self.words.take("or") {
                left = Expression::Or(Box::new(left), Box::new(self.term(depth)?));
            } else {
                return Ok(left);
            }
        }
    }

    fn term(&mut self, depth: usize) -> Result<Expression, String> {
        let word = self.words.peek();
        if depth > NESTING_MAX {
            return Err(word.wrong(format!("more than {NESTING_MAX} within each other")));
        }
        if self.words.take("not") {
            return Ok(Expression::Not(Box::new(self.term(depth + 1)?)));
        }
        if !self.words.take("(") {
            return self.primitive();
        }
        let inner = self.expression(depth + 1)?;
        if self.words.take(")") {
            return Ok(inner);
        }
        let opened = format!("expected `)` for the `(` at character {}", word.at);
        Err(self.words.peek().wrong(opened))
    }

    fn primitive(&mut self) -> Result<Expression, String> {
        let word = self.words.peek();
        self.tests += 1;
        if self.tests > TESTS_MAX {
            return Err(word.wrong(format!("more than {TESTS_MAX} tests")));
        }
        let test = match word.text {
            "less" | "greater" => {
                self.words.next();
                let bytes = values::number(self.words.next(), u32::MAX, "a number of bytes")?;
                if word.text == "less" { Test::LengthMost(bytes) } else { Test::LengthLeast(bytes) }
            }
            "vlan" => {
                self.words.next();
                Test::Vlan(self.vlan()?)
            }
            _ => return self.qualified(),
        };
        Ok(Expression::Test(test))
    }

    fn vlan(&mut self) -> Result<Option<u16>, String> {
        let numbered = self.words.peek().text.starts_with(|first: char| first.is_ascii_digit());
        if !numbered {
            return Ok(None);
        }
        values::number(self.words.next(), 4095, "a VLAN").map(|number| Some(number as u16))
    }

    fn qualified(&mut self) -> Result<Expression, String> {
        let start = self.words.peek();
        let protocol = self.protocol();
        let side = self.side()?;
        let kind = self.kind();
        if let (Some(protocol), None, None) = (protocol, side, kind) {
            return alone(start, protocol);
        }
        let qualifiers = match (protocol, side, kind) {
            // A name of a protocol always stands alone here, so this is a bare value.
            (None, None, None) => self.last.filter(|_| values::is_value(start)).ok_or_else(|| {
                start.wrong(
                    "expected `host`, `net`, `port`, `portrange`, a protocol, `vlan`, `less` or `greater`",
                )
            })?,
            (_, side, kind) => {
                let net = self.words.peek().text.contains('/');
                let kind = kind.unwrap_or(if net { ValueKind::Net } else { ValueKind::Host });
                Qualifiers { protocol, side: side.unwrap_or(EndSide::Either), kind }
            }
        };
        self.last = Some(qualifiers);
        let value = self.words.next();
        qualifiers.test(start, value)
    }

    fn protocol(&mut self) -> Option<&'a str> {
        let word = self.words.peek().text;
        let known = ["ether", "ip", "ip6", "arp", "tcp", "udp", "icmp", "icmp6"].contains(&word);
        known.then(|| self.words.next().text)
    }

    fn side(&mut self) -> Result<Option<EndSide>, String> {
        let word = self.words.peek();
        let (side, other) = match word.text {
            "src" => (EndSide::Source, "dst"),
            "dst" => (EndSide::Destination, "src"),
            _ => return Ok(None),
        };
        self.words.next();
        let both = match self.words.peek().text {
            "or" => EndSide::Either,
            "and" => EndSide::Both,
            _ => return Ok(Some(side)),
        };
        self.words.next();
        match self.words.next() {
            word if word.text == other => Ok(Some(both)),
            word => Err(word.wrong(format!("expected `{other}`"))),
        }
    }

    fn kind(&mut self) -> Option<ValueKind> {
        let kind = match self.words.peek().text {
            "host" => ValueKind::Host,
            "net" => ValueKind::Net,
            "port" => ValueKind::Port,
            "portrange" => ValueKind::PortRange,
            "proto" => ValueKind::Proto,
            _ => return None,
        };
        self.words.next();
        Some(kind)
    }
}

const ARP: u16 = 0x0806;
const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const ICMP: u8 = 1;
const TCP: u8 = 6;
const UDP: u8 = 17;
const ICMPV6: u8 = 58;

/// A protocol's name as a whole primitive.
fn alone(word: FilterWord, protocol: &str) -> Result<Expression, String> {
    let over_ip = |four, six, number| Test::Protocol { four, six, number };
    Ok(Expression::Test(match protocol {
        "ip" => Test::EtherType(IPV4),
        "ip6" => Test::EtherType(IPV6),
        "arp" => Test::EtherType(ARP),
        "tcp" => over_ip(true, true, TCP),
        "udp" => over_ip(true, true, UDP),
        "icmp" => over_ip(true, false, ICMP),
        "icmp6" => over_ip(false, true, ICMPV6),
        _ => return Err(word.wrong("expected `src`, `dst`, `host` or `proto` behind it")),
    }))
}

impl Qualifiers<'_> {
    /// The test of a value behind these words, the first of which is `start`.
    fn test(&self, start: FilterWord, value: FilterWord) -> Result<Expression, String> {
        let side = self.side;
        let test = match (self.protocol, self.kind) {
            (Some("ether"), ValueKind::Host) => Test::Mac(side, values::mac(value)?),
            (Some("ether"), ValueKind::Proto) => {
                Test::EtherType(values::number(value, 0xffff, "a number")? as u16)
            }
            (Some(version @ ("ip" | "ip6")), ValueKind::Proto) => {
                let number = values::number(value, 0xff, "a number")? as u8;
                Test::Protocol { four: version == "ip", six: version == "ip6", number }
            }
            (None | Some("ip" | "ip6" | "arp"), ValueKind::Host | ValueKind::Net) => {
                return self.address(value);
            }
            (None | Some("tcp" | "udp"), ValueKind::Port | ValueKind::PortRange) => {
                let (first, last) = values::ports(value, self.kind == ValueKind::PortRange)?;
                let protocol = self.protocol.map(|name| if name == "tcp" { TCP } else { UDP });
                Test::Ports { side, protocol, first, last }
            }
            (Some(protocol), kind) => {
                return Err(start.wrong(format!("{protocol} has no `{}`", kind.name())));
            }
            (None, _) => return Err(start.wrong("say of what: `ether proto`, `ip proto` or `ip6 proto`")),
        };
        Ok(Expression::Test(test))
    }

    fn address(&self, value: FilterWord) -> Result<Expression, String> {
        let side = self.side;
        let network = values::network(value, self.kind == ValueKind::Net)?;
        let test = match (network, self.protocol) {
            (values::Prefix::Four { address, mask }, None | Some("ip" | "arp")) => {
                let (ip, arp) = (self.protocol != Some("arp"), self.protocol != Some("ip"));
                Test::Ipv4 { side, ip, arp, address, mask }
            }
            (values::Prefix::Six { address, mask }, None | Some("ip6")) => Test::Ipv6 { side, address, mask },
            (_, protocol) => {
                return Err(value.wrong(format!("{} has no such address", protocol.unwrap_or_default())));
            }
        };
        Ok(Expression::Test(test))
    }
}

impl ValueKind {
    fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Net => "net",
            Self::Port => "port",
            Self::PortRange => "portrange",
            Self::Proto => "proto",
        }
    }
}

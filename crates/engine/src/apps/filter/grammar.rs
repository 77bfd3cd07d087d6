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

use std::net::IpAddr;

use super::expression::{EndSide, Expression, Test};
use crate::apps::mac::Mac;

/// The number of tests in one expression at most.
pub const TESTS_MAX: usize = 512;
/// The nesting of `not` and parentheses at most.
pub const NESTING_MAX: usize = 64;

/// The kind of test of an address or a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueKind {
    Host,
    Net,
    Port,
    PortRange,
    Proto,
}

/// The kinds of values, and the words for them.
const KINDS: [(ValueKind, &str); 5] = [
    (ValueKind::Host, "host"),
    (ValueKind::Net, "net"),
    (ValueKind::Port, "port"),
    (ValueKind::PortRange, "portrange"),
    (ValueKind::Proto, "proto"),
];

/// The words in front of a value.
#[derive(Clone, Copy, Debug)]
struct Qualifiers<'a> {
    protocol: Option<&'a str>,
    side: EndSide,
    kind: ValueKind,
}

struct FilterParser<'a> {
    words: FilterWords<'a>,
    /// The words that a value without words in front of it takes over.
    last: Option<Qualifiers<'a>>,
    tests: usize,
}

/// Parses an expression. The error is a sentence that names the wrong word.
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
            let both = self.words.take("and");
            if !both && !self.words.take("or") {
                return Ok(left);
            }
            let right = self.term(depth)?;
            left = match (left, both) {
                (Expression::All(mut terms), true) => {
                    terms.push(right);
                    Expression::All(terms)
                }
                (Expression::Any(mut terms), false) => {
                    terms.push(right);
                    Expression::Any(terms)
                }
                (left, true) => Expression::All(vec![left, right]),
                (left, false) => Expression::Any(vec![left, right]),
            };
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
                let bytes = number(self.words.next(), u32::MAX, "a number of bytes")?;
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
        number(self.words.next(), 4095, "a VLAN").map(|number| Some(number as u16))
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
            // A protocol's name always stands alone here, so this is a bare value.
            (None, None, None) => self.last.filter(|_| is_value(start)).ok_or_else(|| {
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
        let word = self.words.peek().text;
        let (kind, _) = *KINDS.iter().find(|(_, name)| *name == word)?;
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

/// Parses a protocol's name as a whole primitive.
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
    /// Makes the test of a value behind these words, the first of which is `start`.
    fn test(&self, start: FilterWord, value: FilterWord) -> Result<Expression, String> {
        let side = self.side;
        let test = match (self.protocol, self.kind) {
            (Some("ether"), ValueKind::Host) => Test::Mac(side, mac(value)?),
            (Some("ether"), ValueKind::Proto) => Test::EtherType(number(value, 0xffff, "a number")? as u16),
            (Some(version @ ("ip" | "ip6")), ValueKind::Proto) => {
                let number = number(value, 0xff, "a number")? as u8;
                Test::Protocol { four: version == "ip", six: version == "ip6", number }
            }
            (None | Some("ip" | "ip6" | "arp"), ValueKind::Host | ValueKind::Net) => {
                return self.address(value);
            }
            (None | Some("tcp" | "udp"), ValueKind::Port | ValueKind::PortRange) => {
                let (first, last) = ports(value, self.kind == ValueKind::PortRange)?;
                let protocol = self.protocol.map(|name| if name == "tcp" { TCP } else { UDP });
                Test::Ports { side, protocol, first, last }
            }
            (Some(protocol), kind) => {
                let name = KINDS.iter().find(|known| known.0 == kind).map_or("", |known| known.1);
                return Err(start.wrong(format!("{protocol} has no `{name}`")));
            }
            (None, _) => return Err(start.wrong("say of what: `ether proto`, `ip proto` or `ip6 proto`")),
        };
        Ok(Expression::Test(test))
    }

    fn address(&self, value: FilterWord) -> Result<Expression, String> {
        let side = self.side;
        let network = network(value, self.kind == ValueKind::Net)?;
        let test = match (network, self.protocol) {
            (Prefix::Four { address, mask }, None | Some("ip" | "arp")) => {
                let (ip, arp) = (self.protocol != Some("arp"), self.protocol != Some("ip"));
                Test::Ipv4 { side, ip, arp, address, mask }
            }
            (Prefix::Six { address, mask }, None | Some("ip6")) => Test::Ipv6 { side, address, mask },
            (_, protocol) => {
                return Err(value.wrong(format!("{} has no such address", protocol.unwrap_or_default())));
            }
        };
        Ok(Expression::Test(test))
    }
}

/// The length of an expression in bytes at most.
pub const EXPRESSION_BYTES_MAX: usize = 16 << 10;

/// A word, and its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterWord<'a> {
    pub text: &'a str,
    /// The place in characters, from 1.
    pub at: usize,
}

impl FilterWord<'_> {
    /// Returns a sentence about this word.
    pub fn wrong(&self, what: impl std::fmt::Display) -> String {
        match self.text {
            "" => format!("it ends at character {}, {what}", self.at),
            text => format!("`{text}` at character {}: {what}", self.at),
        }
    }
}

/// The words of an expression, from the first to the last; empty words follow.
#[derive(Clone, Debug)]
pub struct FilterWords<'a> {
    rest: &'a str,
    at: usize,
}

impl<'a> FilterWords<'a> {
    /// Refuses an expression that is too long.
    pub fn new(expression: &'a str) -> Result<Self, String> {
        match expression.len() {
            0..=EXPRESSION_BYTES_MAX => Ok(Self { rest: expression, at: 1 }),
            bytes => Err(format!("{bytes} bytes: {EXPRESSION_BYTES_MAX} are the most")),
        }
    }

    /// Returns the next word without taking it.
    pub fn peek(&self) -> FilterWord<'a> {
        self.clone().next()
    }

    /// Takes the next word; behind the last one, an empty word. Symbols become the words that they stand for.
    pub fn next(&mut self) -> FilterWord<'a> {
        let start = self.rest.trim_start();
        self.skip(self.rest.len() - start.len());
        let symbols = [("(", "("), (")", ")"), ("!", "not"), ("&&", "and"), ("||", "or")];
        if let Some((symbol, text)) = symbols.into_iter().find(|(symbol, _)| start.starts_with(symbol)) {
            let word = FilterWord { text, at: self.at };
            self.skip(symbol.len());
            return word;
        }
        let end = start.find(|c: char| c.is_whitespace() || "()!&|".contains(c)).unwrap_or(start.len());
        // A lone `&` or `|` is an unknown word.
        let end = if end == 0 { start.chars().next().map_or(0, char::len_utf8) } else { end };
        let word = FilterWord { text: &start[..end], at: self.at };
        self.skip(end);
        word
    }

    /// Takes the next word if it is `text`.
    pub fn take(&mut self, text: &str) -> bool {
        let found = self.peek().text == text;
        if found {
            self.next();
        }
        found
    }

    fn skip(&mut self, bytes: usize) {
        self.at += self.rest[..bytes].chars().count();
        self.rest = &self.rest[bytes..];
    }
}

/// The addresses whose bits under the mask are those of `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    Four { address: u32, mask: u32 },
    Six { address: u128, mask: u128 },
}

/// True if a word looks like a value: names are never looked up.
pub fn is_value(word: FilterWord) -> bool {
    word.text.contains(':') || word.text.starts_with(|first: char| first.is_ascii_digit())
}

/// Parses a number from 0 to `most`, decimal or, behind `0x`, hexadecimal.
pub fn number(word: FilterWord, most: u32, what: &str) -> Result<u32, String> {
    let number = match word.text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16).ok(),
        None if !word.text.starts_with('+') => word.text.parse().ok(),
        _ => None,
    };
    number.filter(|number| *number <= most).ok_or_else(|| word.wrong(format!("expected {what}, 0 to {most}")))
}

/// Parses one port, or the first and the last of a range.
pub fn ports(word: FilterWord, range: bool) -> Result<(u16, u16), String> {
    let port = |text| number(FilterWord { text, ..word }, 0xffff, "a port").map(|port| port as u16);
    if !range {
        return number(word, 0xffff, "a port").map(|port| (port as u16, port as u16));
    }
    let (first, last) =
        word.text.split_once('-').ok_or_else(|| word.wrong("expected two ports, as 80-90"))?;
    match (port(first), port(last)) {
        (Ok(first), Ok(last)) if first <= last => Ok((first, last)),
        (Ok(_), Ok(_)) => Err(word.wrong("the first port is above the last")),
        _ => Err(word.wrong("expected two ports, 0 to 65535, as 80-90")),
    }
}

/// Parses an Ethernet address.
pub fn mac(word: FilterWord) -> Result<[u8; 6], String> {
    Mac::parse(word.text)
        .map(|mac| mac.0)
        .ok_or_else(|| word.wrong("expected an Ethernet address, as 02:00:00:00:00:01"))
}

/// Parses an address, or a network with the length of its prefix.
pub fn network(word: FilterWord, net: bool) -> Result<Prefix, String> {
    let wrong = match net {
        true => "expected a network and the length of its prefix, as 192.0.2.0/24 or 2001:db8::/32",
        false => "expected an IP address, as 192.0.2.1 or 2001:db8::1: names are not looked up",
    };
    let (address, prefix) = match word.text.split_once('/') {
        Some((address, prefix)) if net => (address, Some(prefix)),
        None if !net => (word.text, None),
        _ => return Err(word.wrong(wrong)),
    };
    let address: IpAddr = address.parse().map_err(|_| word.wrong(wrong))?;
    let bits = if address.is_ipv4() { 32 } else { 128 };
    let prefix = match prefix {
        None => bits,
        Some(text) => number(FilterWord { text, ..word }, bits, "a prefix")
            .map_err(|_| word.wrong(format!("the prefix of such an address has 0 to {bits} bits")))?,
    };
    let network = match address {
        IpAddr::V4(address) => {
            let mask = u32::MAX.checked_shl(32 - prefix).unwrap_or(0);
            (Prefix::Four { address: u32::from(address), mask }, u32::from(address) & !mask == 0)
        }
        IpAddr::V6(address) => {
            let mask = u128::MAX.checked_shl(128 - prefix).unwrap_or(0);
            (Prefix::Six { address: u128::from(address), mask }, u128::from(address) & !mask == 0)
        }
    };
    match network {
        (network, true) => Ok(network),
        (_, false) => Err(word.wrong(format!("there are bits set behind the first {prefix}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_know_where_they_stand() {
        let mut words = FilterWords::new("  tcp&&!(é port\t80)| ").expect("words");
        let mut all = Vec::new();
        while !words.peek().text.is_empty() {
            let word = words.next();
            all.push((word.text, word.at));
        }
        let expected =
            [("tcp", 3), ("and", 6), ("not", 8), ("(", 9), ("é", 10), ("port", 12), ("80", 17), (")", 19)];
        assert_eq!(all[..8], expected);
        assert_eq!(all[8..], [("|", 20)]);
        assert_eq!(words.next(), FilterWord { text: "", at: 22 });
    }

    #[test]
    fn one_that_is_too_long_is_refused() {
        let long = " ".repeat(EXPRESSION_BYTES_MAX + 1);
        assert_eq!(FilterWords::new(&long).expect_err("too long"), "16385 bytes: 16384 are the most");
    }
}

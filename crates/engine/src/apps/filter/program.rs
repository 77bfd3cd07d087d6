//! An expression as a list of tests, each of which says where to go on: as BPF has it (McCanne and
//! Jacobson, 1993). Nothing is allocated for a packet, and no more is tested than decides.
//!
//! Every step goes to a step of a lower number, or to a verdict: it ends.

use super::headers::{FrameHeaders, NetworkAddresses};

/// What is asked of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// At most so many bytes.
    LengthMost(u32),
    /// At least so many bytes.
    LengthLeast(u32),
    /// What is behind the Ethernet header and all tags.
    EtherType(u16),
    /// An Ethernet address.
    Mac(EndSide, [u8; 6]),
    /// A tag, of this VLAN if one is named.
    Vlan(Option<u16>),
    /// An IPv4 address, in IPv4 packets, ARP packets or both.
    Ipv4 { side: EndSide, ip: bool, arp: bool, address: u32, mask: u32 },
    /// An IPv6 address.
    Ipv6 { side: EndSide, address: u128, mask: u128 },
    /// What is behind the IP header, in IPv4, in IPv6 or in both.
    Protocol { four: bool, six: bool, number: u8 },
    /// Ports, of one protocol or of any that has some.
    Ports { side: EndSide, protocol: Option<u8>, first: u16, last: u16 },
}

/// Which of a sender's and a receiver's address or port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndSide {
    /// The sender's.
    Source,
    /// The receiver's.
    Destination,
    /// One of them.
    Either,
    /// Both of them.
    Both,
}

impl EndSide {
    #[inline]
    fn holds<T: Copy>(self, (source, destination): (T, T), test: impl Fn(T) -> bool) -> bool {
        match self {
            Self::Source => test(source),
            Self::Destination => test(destination),
            Self::Either => test(source) || test(destination),
            Self::Both => test(source) && test(destination),
        }
    }
}

/// Tests, and how they hang together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expression {
    /// A test.
    Test(Test),
    /// Not that one.
    Not(Box<Expression>),
    /// Both.
    And(Box<Expression>, Box<Expression>),
    /// One of them.
    Or(Box<Expression>, Box<Expression>),
}

/// Where to go on: a step, or one of the two verdicts.
type Target = usize;

const REJECT: Target = 0;
const ACCEPT: Target = 1;
const STEPS_FROM: Target = 2;

#[derive(Clone, Copy, Debug)]
struct Step {
    test: Test,
    holds: Target,
    fails: Target,
}

/// A filter, ready to be used.
#[derive(Clone, Debug)]
pub struct Program {
    steps: Vec<Step>,
    first: Target,
}

impl Program {
    pub fn new(expression: &Expression) -> Self {
        let mut steps = Vec::new();
        let first = emit(&mut steps, expression, ACCEPT, REJECT);
        Self { steps, first }
    }

    /// Whether a packet, an Ethernet frame, matches.
    #[inline]
    pub fn matches(&self, frame: &[u8]) -> bool {
        let headers = FrameHeaders::of(frame);
        let mut next = self.first;
        while let Some(step) = next.checked_sub(STEPS_FROM).and_then(|place| self.steps.get(place)) {
            next = if step.test.holds(&headers) { step.holds } else { step.fails };
        }
        next == ACCEPT
    }
}

/// Adds the steps of an expression, the last ones first. Returns the first one.
fn emit(steps: &mut Vec<Step>, expression: &Expression, holds: Target, fails: Target) -> Target {
    match expression {
        Expression::Test(test) => {
            steps.push(Step { test: *test, holds, fails });
            steps.len() - 1 + STEPS_FROM
        }
        Expression::Not(inner) => emit(steps, inner, fails, holds),
        Expression::And(left, right) => {
            let right = emit(steps, right, holds, fails);
            emit(steps, left, right, fails)
        }
        Expression::Or(left, right) => {
            let right = emit(steps, right, holds, fails);
            emit(steps, left, holds, right)
        }
    }
}

impl Test {
    #[inline]
    fn holds(&self, headers: &FrameHeaders) -> bool {
        match *self {
            Self::LengthMost(bytes) => headers.length <= bytes as usize,
            Self::LengthLeast(bytes) => headers.length >= bytes as usize,
            Self::EtherType(number) => headers.ether_type == Some(number),
            Self::Mac(side, mac) => headers.macs.is_some_and(|macs| side.holds(macs, |of| of == mac)),
            Self::Vlan(None) => !headers.vlans().is_empty(),
            Self::Vlan(Some(number)) => headers.vlans().contains(&number),
            Self::Ipv4 { side, ip, arp, address, mask } => match headers.network {
                NetworkAddresses::Ipv4(source, to) if ip => {
                    side.holds((source, to), |of| of & mask == address)
                }
                NetworkAddresses::Arp(source, to) if arp => {
                    side.holds((source, to), |of| of & mask == address)
                }
                _ => false,
            },
            Self::Ipv6 { side, address, mask } => match headers.network {
                NetworkAddresses::Ipv6(source, to) => side.holds((source, to), |of| of & mask == address),
                _ => false,
            },
            Self::Protocol { four, six, number } => {
                let version = match headers.network {
                    NetworkAddresses::Ipv4(..) => four,
                    NetworkAddresses::Ipv6(..) => six,
                    _ => false,
                };
                version && headers.protocol == Some(number)
            }
            Self::Ports { side, protocol, first, last } => {
                (protocol.is_none() || protocol == headers.protocol)
                    && headers.ports.is_some_and(|ports| side.holds(ports, |of| (first..=last).contains(&of)))
            }
        }
    }
}

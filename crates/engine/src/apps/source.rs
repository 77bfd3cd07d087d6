//! An app that makes packets.

use std::net::IpAddr;

use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6FlowLabel, Ipv6Header,
    PacketBuilder, SingleVlanHeader, VlanHeader, VlanId,
};
use serde::{Deserialize, Serialize};

use crate::app::{App, AppError, Named};
use crate::apps::mac::Mac;
use crate::io::Io;
use crate::limits::{PACKET_BYTES_MAX, PULL_PACKETS};
use crate::packet::Packet;

/// Bytes in each packet, unless the configuration says otherwise.
const SIZE_DEFAULT: usize = 60;

/// Sends packets to every output, as many as they take.
#[derive(Debug)]
pub struct Source {
    /// The packets that are sent in turn, at least one.
    shapes: Vec<SourcePacket>,
    next: usize,
    /// The output that the next pull serves first. Each has its turn, so that none goes without when packets are few.
    first_output: usize,
    left: u64,
    sent: u64,
    /// True if there is a count.
    ends: bool,
}

/// One of the packets that a source sends.
#[derive(Debug)]
struct SourcePacket {
    size: usize,
    /// Its bytes. If empty, a packet keeps the bytes that an earlier one has left.
    bytes: Vec<u8>,
}

/// The configuration of a source.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SourceConfig {
    /// Bytes in each packet.
    pub size: Option<usize>,
    /// The sizes of packets, sent in turn, instead of `size`.
    pub sizes: Vec<usize>,
    /// The number of packets to send. A source that is moved or changed goes on counting.
    pub count: Option<u64>,
    /// The packets' bytes, as hexadecimal digits, repeated until a packet is full.
    pub hex: Option<String>,
    /// An Ethernet frame with an IP packet and UDP in it, instead of `hex`.
    pub frame: Option<FrameConfig>,
}

/// The state that a source leaves to its successor.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SourceState {
    source_sent: u64,
}

impl App for Source {
    type Config = SourceConfig;
    const INPUTS: Named = Named::Only(&[]);
    const OUTPUTS: Named = Named::Any;

    fn check(config: &SourceConfig) -> Result<(), AppError> {
        shapes(config).map(drop)
    }

    fn start(config: SourceConfig, state: Option<Vec<u8>>) -> Result<Self, AppError> {
        let state = state.and_then(|state| serde_json::from_slice::<SourceState>(&state).ok());
        let sent = state.map_or(0, |state| state.source_sent);
        let left = config.count.unwrap_or(u64::MAX).saturating_sub(sent);
        let ends = config.count.is_some();
        Ok(Self { shapes: shapes(&config)?, next: 0, first_output: 0, left, sent, ends })
    }

    fn pull(&mut self, io: &mut Io) {
        let Self { shapes, next, .. } = self;
        let outputs = io.outputs();
        let first = if self.first_output < outputs { self.first_output } else { 0 };
        self.first_output = first + 1;
        for output in (first..outputs).chain(0..first) {
            let count = usize::try_from(self.left).unwrap_or(PULL_PACKETS).min(PULL_PACKETS);
            let sent = match shapes.as_slice() {
                [SourcePacket { size, bytes }] if bytes.is_empty() => {
                    io.generate(output, count, |packet| resize(packet, *size))
                }
                _ => io.generate(output, count, |packet| {
                    *next = if *next < shapes.len() { *next } else { 0 };
                    shapes[*next].fill(packet);
                    *next += 1;
                }),
            };
            self.sent += sent as u64;
            self.left -= sent as u64;
        }
    }

    fn stop(&mut self, _: &mut Io) -> Option<Vec<u8>> {
        serde_json::to_vec(&SourceState { source_sent: self.sent }).ok()
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        let ended = self.ends.then_some(("ended", u64::from(self.left == 0)));
        [("packets", self.sent)].into_iter().chain(ended).collect()
    }
}

impl SourcePacket {
    fn fill(&self, packet: &mut Packet) {
        resize(packet, self.size);
        if !self.bytes.is_empty() {
            packet.data_mut().copy_from_slice(&self.bytes);
        }
    }
}

/// Sets the length of a packet without touching its bytes, which is all that a plain source does.
#[inline]
fn resize(packet: &mut Packet, size: usize) {
    if packet.resize(size).is_none() {
        make_room(packet, size);
    }
}

/// Takes room in front of the data for bytes that do not fit behind: together there is enough room for any size
/// that passes the check.
#[cold]
fn make_room(packet: &mut Packet, size: usize) {
    let missing = size.saturating_sub(packet.tailroom() + packet.length());
    packet.prepend(missing);
    packet.resize(size);
}

/// Returns the packets that a configuration asks for.
fn shapes(config: &SourceConfig) -> Result<Vec<SourcePacket>, AppError> {
    if config.hex.is_some() && config.frame.is_some() {
        return Err(AppError::new("`hex` and `frame` both say what is in the packets: leave one out"));
    }
    let pattern = config.hex.as_deref().map(bytes_of_hex).transpose()?;
    let sizes = match (config.size, config.sizes.as_slice()) {
        (Some(_), [_, ..]) => return Err(AppError::new("`size` and `sizes` are both given: leave one out")),
        (Some(size), []) => vec![size],
        (None, []) => vec![pattern.as_ref().map_or(SIZE_DEFAULT, Vec::len)],
        (None, sizes) => sizes.to_vec(),
    };
    let shape = |size: usize| {
        if size == 0 || size > PACKET_BYTES_MAX {
            return Err(AppError(format!(
                "size = {size}: a source makes packets of 1 to {PACKET_BYTES_MAX} bytes"
            )));
        }
        let bytes = match (&pattern, &config.frame) {
            (Some(pattern), _) => pattern.iter().copied().cycle().take(size).collect(),
            (None, Some(frame)) => frame.bytes(size)?,
            (None, None) => Vec::new(),
        };
        Ok(SourcePacket { size, bytes })
    };
    sizes.into_iter().map(shape).collect()
}

fn bytes_of_hex(text: &str) -> Result<Vec<u8>, AppError> {
    let digits: Vec<char> = text.chars().filter(|digit| !digit.is_whitespace() && *digit != ':').collect();
    let wrong = |what: String| AppError(format!("hex = \"{text}\": {what}"));
    if let Some(other) = digits.iter().find(|digit| !digit.is_ascii_hexdigit()) {
        return Err(wrong(format!("`{other}` is not a hexadecimal digit")));
    }
    if digits.is_empty() || digits.len() % 2 != 0 {
        return Err(wrong(format!("{} digits: two make a byte", digits.len())));
    }
    let value = |digit: char| digit.to_digit(16).unwrap_or(0) as u8;
    Ok(digits.chunks_exact(2).map(|pair| value(pair[0]) << 4 | value(pair[1])).collect())
}

/// The hop limit of a frame, as Linux sets it.
const HOPS: u8 = 64;

/// The headers of a frame. The defaults are addresses for documentation (RFC 5737) and locally
/// administered ones.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FrameConfig {
    /// Ethernet address of the sender.
    pub source_mac: Mac,
    /// Ethernet address of the receiver.
    pub destination_mac: Mac,
    /// The VLAN, 0 to 4095; without it, the frame has no tag.
    pub vlan: Option<u16>,
    /// IP address of the sender.
    pub source: IpAddr,
    /// IP address of the receiver, of the same version.
    pub destination: IpAddr,
    /// UDP port of the sender.
    pub source_port: u16,
    /// UDP port of the receiver.
    pub destination_port: u16,
}

impl Default for FrameConfig {
    fn default() -> Self {
        Self {
            source_mac: Mac([2, 0, 0, 0, 0, 1]),
            destination_mac: Mac([2, 0, 0, 0, 0, 2]),
            vlan: None,
            source: IpAddr::from([192, 0, 2, 1]),
            destination: IpAddr::from([192, 0, 2, 2]),
            source_port: 1024,
            destination_port: 9,
        }
    }
}

impl FrameConfig {
    /// Returns the whole frame, `size` bytes, with its lengths and checksums.
    pub fn bytes(&self, size: usize) -> Result<Vec<u8>, AppError> {
        let ethernet = PacketBuilder::ethernet2(self.source_mac.0, self.destination_mac.0);
        let ip = self.ip()?;
        let builder = match self.vlan {
            Some(vlan) => {
                let vlan_id = VlanId::try_new(vlan)
                    .map_err(|_| AppError(format!("vlan = {vlan}: 4095 is the highest")))?;
                ethernet.vlan(VlanHeader::Single(SingleVlanHeader { vlan_id, ..Default::default() })).ip(ip)
            }
            None => ethernet.ip(ip),
        };
        let builder = builder.udp(self.source_port, self.destination_port);
        let headers = builder.size(0);
        let payload = size.checked_sub(headers).ok_or_else(|| {
            AppError(format!("size = {size}: the headers of this frame alone take {headers} bytes"))
        })?;
        let mut bytes = Vec::with_capacity(size);
        builder.write(&mut bytes, &vec![0; payload]).map_err(AppError::new)?;
        Ok(bytes)
    }

    /// Makes the IP headers. The builder fills in lengths, checksums and the next header.
    fn ip(&self) -> Result<IpHeaders, AppError> {
        match (self.source, self.destination) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => {
                let header = Ipv4Header::new(0, HOPS, IpNumber::UDP, source.octets(), destination.octets());
                Ok(IpHeaders::Ipv4(header.map_err(AppError::new)?, Ipv4Extensions::default()))
            }
            (IpAddr::V6(source), IpAddr::V6(destination)) => {
                let header = Ipv6Header {
                    traffic_class: 0,
                    flow_label: Ipv6FlowLabel::ZERO,
                    payload_length: 0,
                    next_header: IpNumber::UDP,
                    hop_limit: HOPS,
                    source: source.octets(),
                    destination: destination.octets(),
                };
                Ok(IpHeaders::Ipv6(header, Ipv6Extensions::default()))
            }
            (source, destination) => Err(AppError(format!(
                "source = {source}, destination = {destination}: one is IPv4, the other IPv6"
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

    use super::*;
    use crate::layout::DropReason;
    use crate::limits::QUEUE_PACKETS;
    use crate::testing::AppBench;

    const PACKETS: usize = 2000;

    fn bench(config: SourceConfig) -> AppBench<Source> {
        AppBench::new(config, &[], &["output"], PACKETS as u32).expect("a source")
    }

    fn trouble(config: SourceConfig) -> String {
        Source::check(&config).expect_err("trouble").0
    }

    #[test]
    fn it_sends_packets_of_the_size_to_every_output() {
        let mut bench =
            AppBench::<Source>::new(SourceConfig::default(), &[], &["a", "b"], 2000).expect("a source");
        bench.pull();
        for output in ["a", "b"] {
            let sent = bench.sent(output);
            assert_eq!((sent.len(), sent[0].len()), (PULL_PACKETS, SIZE_DEFAULT));
        }
        assert_eq!(bench.free(), PACKETS);
    }

    #[test]
    fn it_drops_nothing_where_outputs_are_full_or_packets_are_short() {
        let mut bench = bench(SourceConfig::default());
        bench.fill("output");
        bench.pull();
        assert_eq!(bench.sent("output").len(), QUEUE_PACKETS);
        assert_eq!(bench.drops(DropReason::Full), 0);
        let mut short =
            AppBench::<Source>::new(SourceConfig::default(), &[], &["output"], 10).expect("a source");
        short.pull();
        assert_eq!(short.sent("output").len(), 10);
        assert_eq!(short.app.report(), [("packets", 10)]);
        assert_eq!((bench.free(), short.free()), (PACKETS, 10));
    }

    #[test]
    fn every_output_has_its_turn_when_packets_are_short() {
        let outputs = ["a", "b", "c"];
        let mut bench =
            AppBench::<Source>::new(SourceConfig::default(), &[], &outputs, 10).expect("a source");
        let served = outputs.map(|output| {
            bench.pull();
            bench.sent(output).len()
        });
        assert_eq!(served, [10; 3]);
    }

    #[test]
    fn it_ends_at_its_count_and_keeps_it_when_it_moves() {
        let config = SourceConfig { count: Some(PULL_PACKETS as u64 + 10), ..Default::default() };
        let mut first = bench(config.clone());
        first.pull();
        assert_eq!(first.sent("output").len(), PULL_PACKETS);
        let state = first.stop();
        let mut second = bench(config.clone());
        second.app = Source::start(config, state).expect("a source");
        second.pull();
        second.pull();
        assert_eq!(second.sent("output").len(), 10);
        assert_eq!(second.app.report(), [("packets", PULL_PACKETS as u64 + 10), ("ended", 1)]);
        assert_eq!((first.free(), second.free()), (PACKETS, PACKETS));
    }

    #[test]
    fn sizes_take_turns_up_to_the_largest_packet() {
        let sizes = vec![1, 594, PACKET_BYTES_MAX];
        let mut bench = bench(SourceConfig { sizes: sizes.clone(), ..Default::default() });
        bench.pull();
        bench.pull();
        let sent: Vec<_> = bench.sent("output").iter().map(Vec::len).collect();
        let expected: Vec<_> = sizes.into_iter().cycle().take(2 * PULL_PACKETS).collect();
        assert_eq!(sent, expected);
        assert_eq!(bench.free(), PACKETS);
    }

    #[test]
    fn a_plain_packet_can_be_as_long_as_packets_are() {
        let mut bench = bench(SourceConfig { size: Some(PACKET_BYTES_MAX), ..Default::default() });
        bench.pull();
        assert!(bench.sent("output").iter().all(|packet| packet.len() == PACKET_BYTES_MAX));
        assert_eq!((bench.drops(DropReason::Oversize), bench.free()), (0, PACKETS));
    }

    #[test]
    fn hexadecimal_bytes_are_repeated_to_the_size() {
        let hex = Some("de:ad be EF".to_owned());
        let mut whole = bench(SourceConfig { hex: hex.clone(), ..Default::default() });
        whole.pull();
        assert_eq!(whole.sent("output")[0], [0xde, 0xad, 0xbe, 0xef]);
        let mut repeated = bench(SourceConfig { hex, size: Some(6), ..Default::default() });
        repeated.pull();
        assert_eq!(repeated.sent("output")[7], [0xde, 0xad, 0xbe, 0xef, 0xde, 0xad]);
    }

    #[test]
    fn what_is_wrong_is_named() {
        let hex = |text: &str| trouble(SourceConfig { hex: Some(text.to_owned()), ..Default::default() });
        assert_eq!(hex("0g"), "hex = \"0g\": `g` is not a hexadecimal digit");
        assert_eq!(hex("123"), "hex = \"123\": 3 digits: two make a byte");
        assert_eq!(
            trouble(SourceConfig { size: Some(0), ..Default::default() }),
            format!("size = 0: a source makes packets of 1 to {PACKET_BYTES_MAX} bytes")
        );
        let both = SourceConfig { size: Some(60), sizes: vec![60], ..Default::default() };
        assert_eq!(trouble(both), "`size` and `sizes` are both given: leave one out");
        let both = SourceConfig {
            hex: Some("00".to_owned()),
            frame: Some(FrameConfig::default()),
            ..Default::default()
        };
        assert_eq!(trouble(both), "`hex` and `frame` both say what is in the packets: leave one out");
    }

    fn udp_checksum_holds(packet: &SlicedPacket) -> bool {
        let Some(TransportSlice::Udp(udp)) = &packet.transport else { return false };
        let header = udp.to_header();
        let computed = match &packet.net {
            Some(NetSlice::Ipv4(ip)) => header.calc_checksum_ipv4(&ip.header().to_header(), udp.payload()),
            Some(NetSlice::Ipv6(ip)) => header.calc_checksum_ipv6(&ip.header().to_header(), udp.payload()),
            _ => return false,
        };
        computed == Ok(header.checksum)
    }

    #[test]
    fn it_is_a_frame_of_the_size_with_its_checksums() {
        let six = |end| IpAddr::from([0x2001, 0xdb8, 0, 0, 0, 0, 0, end]);
        let tagged = FrameConfig { vlan: Some(7), ..Default::default() };
        let long = FrameConfig { source: six(1), destination: six(2), ..Default::default() };
        for (config, size) in
            [(FrameConfig::default(), 60), (FrameConfig::default(), 42), (tagged, 1518), (long, 120)]
        {
            let bytes = config.bytes(size).expect("a frame");
            assert_eq!(bytes.len(), size);
            let packet = SlicedPacket::from_ethernet(&bytes).expect("a frame");
            assert!(udp_checksum_holds(&packet), "{config:?}");
            assert_eq!(packet.vlan_ids().first().map(|vlan| vlan.value()), config.vlan);
        }
    }

    #[test]
    fn a_frame_that_cannot_be_is_named() {
        let trouble = |config: FrameConfig, size| config.bytes(size).expect_err("trouble").0;
        assert_eq!(
            trouble(FrameConfig::default(), 41),
            "size = 41: the headers of this frame alone take 42 bytes"
        );
        let vlan = FrameConfig { vlan: Some(4096), ..Default::default() };
        assert_eq!(trouble(vlan, 60), "vlan = 4096: 4095 is the highest");
        let mixed = FrameConfig { source: IpAddr::from([0; 16]), ..Default::default() };
        assert_eq!(trouble(mixed, 90), "source = ::, destination = 192.0.2.2: one is IPv4, the other IPv6");
        let mac = serde_json::from_str::<FrameConfig>(r#"{"source_mac": "02:00"}"#).expect_err("trouble");
        assert!(mac.to_string().starts_with("`02:00` is not an Ethernet address: write it as"), "{mac}");
    }
}

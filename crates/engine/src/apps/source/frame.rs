//! A frame for sources: Ethernet, perhaps a VLAN tag, IPv4 or IPv6, UDP, and zeros up to the size.

use std::net::IpAddr;

use etherparse::{
    IpHeaders, IpNumber, Ipv4Extensions, Ipv4Header, Ipv6Extensions, Ipv6FlowLabel, Ipv6Header,
    PacketBuilder, SingleVlanHeader, VlanHeader, VlanId,
};
use serde::Deserialize;

use crate::app::AppError;
use crate::apps::mac::Mac;

/// Routers that a frame may pass: what Linux gives its packets.
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
    /// VLAN, 0 to 4095; no tag if there is none.
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
    /// The whole frame, `size` bytes, with its lengths and checksums.
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

    /// Lengths, checksums and what follows are the builder's to fill in.
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
    use super::*;
    use etherparse::{NetSlice, SlicedPacket, TransportSlice};

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
    fn what_is_wrong_is_named() {
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

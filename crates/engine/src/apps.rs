//! The apps that come with the engine.

mod af_packet;
mod af_xdp;
mod arp;
mod bridge;
mod filter;
mod join;
mod mac;
mod ndp;
mod neighbour;
mod pcap_reader;
mod pcap_writer;
mod rate_limit;
mod repeater;
mod sink;
mod source;
mod tap;
mod tee;
mod tunnel;

use crate::app::Registry;

pub use af_packet::{AfPacket, AfPacketConfig};
pub use af_xdp::{AfXdp, AfXdpConfig, XdpMode};
pub use arp::{Arp, ArpConfig};
pub use bridge::Bridge;
pub use filter::{Filter, FilterConfig};
pub use join::Join;
pub use mac::Mac;
pub use ndp::{Ndp, NdpConfig};
pub use pcap_reader::{PcapReader, PcapReaderConfig, ReplayTiming};
pub use pcap_writer::PcapWriter;
pub use rate_limit::RateLimit;
pub use repeater::Repeater;
pub use sink::Sink;
pub use source::Source;
pub use tap::{Tap, TapConfig};
pub use tee::Tee;
pub use tunnel::{Decapsulate, Encapsulate, Tunnel};

/// Adds all apps of this crate to a registry.
pub fn register(registry: &mut Registry) {
    registry.add::<Source>("source").add::<Sink>("sink");
    registry.add::<Tunnel>("tunnel").add::<Encapsulate>("encapsulate").add::<Decapsulate>("decapsulate");
    registry.add::<AfPacket>("af_packet").add::<AfXdp>("af_xdp").add::<Tap>("tap");
    registry.add::<Bridge>("bridge").add::<Arp>("arp").add::<Ndp>("ndp");
    registry.add::<Tee>("tee").add::<Join>("join").add::<RateLimit>("rate_limit");
    registry.add::<Repeater>("repeater").add::<Filter>("filter");
    registry.add::<PcapReader>("pcap_reader").add::<PcapWriter>("pcap_writer");
}

//! What an app that answers for addresses is configured with.

use std::fmt::{Debug, Display};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::app::AppError;
use crate::apps::Mac;

/// Addresses that one app answers for.
pub const ADDRESSES_MAX: usize = 64;

/// What it answers, and what it asks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AnswerConfig<A> {
    /// The Ethernet address that has the addresses.
    pub mac: Mac,
    /// The addresses that are answered for. The first one asks.
    pub addresses: Vec<A>,
    /// Whose Ethernet address packets from the north get; left out, they keep what they have.
    pub next_hop: Option<A>,
}

/// An IP address.
pub trait HostAddress:
    Copy + PartialEq + Debug + Display + Into<IpAddr> + DeserializeOwned + 'static
{
    /// Whether it can be that of one host.
    fn is_host(self) -> bool;
}

impl HostAddress for Ipv4Addr {
    fn is_host(self) -> bool {
        !(self.is_unspecified() || self.is_multicast() || self.is_broadcast() || self.is_loopback())
    }
}

impl HostAddress for Ipv6Addr {
    fn is_host(self) -> bool {
        !(self.is_unspecified() || self.is_multicast() || self.is_loopback())
    }
}

impl<A: HostAddress> AnswerConfig<A> {
    /// Whether one can answer and ask by it.
    pub fn check(&self) -> Result<(), AppError> {
        let Self { mac, addresses, next_hop } = self;
        let count = addresses.len();
        if !mac.is_station() {
            return Err(AppError(format!("mac = {mac}: it has to be the address of one station")));
        }
        if !(1..=ADDRESSES_MAX).contains(&count) {
            return Err(AppError(format!(
                "addresses: there are {count}, where 1 to {ADDRESSES_MAX} are possible"
            )));
        }
        if let Some(address) = addresses.iter().chain(next_hop).find(|address| !address.is_host()) {
            return Err(AppError(format!("{address} cannot be the address of one host")));
        }
        match next_hop.filter(|next_hop| addresses.contains(next_hop)) {
            Some(own) => {
                Err(AppError(format!("next_hop = {own}: it is one of `addresses`; it must be another's")))
            }
            None => Ok(()),
        }
    }
}

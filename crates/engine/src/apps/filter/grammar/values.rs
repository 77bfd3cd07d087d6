//! Numbers and addresses in filters.

use std::net::IpAddr;

use super::super::words::FilterWord;
use crate::apps::mac::Mac;

/// Addresses whose bits under the mask are those of `address`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Prefix {
    Four { address: u32, mask: u32 },
    Six { address: u128, mask: u128 },
}

/// Whether a word looks like one: names are never looked up.
pub fn is_value(word: FilterWord) -> bool {
    word.text.contains(':') || word.text.starts_with(|first: char| first.is_ascii_digit())
}

/// A number from 0 to `most`, decimal or, behind `0x`, hexadecimal.
pub fn number(word: FilterWord, most: u32, what: &str) -> Result<u32, String> {
    let number = match word.text.strip_prefix("0x") {
        Some(digits) if !digits.starts_with('+') => u32::from_str_radix(digits, 16).ok(),
        None if !word.text.starts_with('+') => word.text.parse().ok(),
        _ => None,
    };
    number.filter(|number| *number <= most).ok_or_else(|| word.wrong(format!("expected {what}, 0 to {most}")))
}

/// One port, or the first and the last of a range.
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

/// An Ethernet address.
pub fn mac(word: FilterWord) -> Result<[u8; 6], String> {
    Mac::parse(word.text)
        .map(|mac| mac.0)
        .ok_or_else(|| word.wrong("expected an Ethernet address, as 02:00:00:00:00:01"))
}

/// An address, or a network with the length of its prefix.
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

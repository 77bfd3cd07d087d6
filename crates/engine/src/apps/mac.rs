//! Ethernet addresses, in the notation of configurations and filters.

use serde::Deserialize;

/// An Ethernet address, written `02:00:00:00:00:01`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Returns `None` if the text is not six bytes of one or two hexadecimal digits between colons.
    pub fn parse(text: &str) -> Option<Self> {
        let mut bytes = [0; 6];
        let mut parts = text.split(':');
        for byte in &mut bytes {
            let part = parts.next()?;
            let digits = (1..=2).contains(&part.len()) && part.bytes().all(|digit| digit.is_ascii_hexdigit());
            *byte = digits.then(|| u8::from_str_radix(part, 16).ok())??;
        }
        parts.next().is_none().then_some(Self(bytes))
    }

    /// True for an address of many stations: frames may go to it, but none comes from it.
    #[inline]
    pub fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// True for an address of one station.
    #[inline]
    pub fn is_station(self) -> bool {
        !self.is_group() && self != Self::default()
    }
}

impl std::fmt::Display for Mac {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let [first, rest @ ..] = self.0;
        write!(f, "{first:02x}")?;
        rest.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl TryFrom<String> for Mac {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
            .ok_or_else(|| format!("`{text}` is not an Ethernet address: write it as 02:00:00:00:00:01"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bytes_between_colons_are_an_address() {
        assert_eq!(Mac::parse("02:0:aB:ff:00:1"), Some(Mac([2, 0, 0xab, 0xff, 0, 1])));
        for wrong in
            ["", "02:00:00:00:00", "02:00:00:00:00:01:02", "02:00:00:00:00:", "2:0:0:0:0:+1", "020:0:0:0:0:0"]
        {
            assert_eq!(Mac::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn stations_and_groups_are_told_apart() {
        let station = Mac([2, 0, 0xab, 0xff, 0, 1]);
        assert_eq!(Mac::parse(&station.to_string()), Some(station));
        assert!(station.is_station() && !station.is_group());
        assert!(Mac([0xff; 6]).is_group() && !Mac([0xff; 6]).is_station());
        assert!(!Mac::default().is_station());
    }
}

//! Ranges of hash slots.

use std::fmt;
use std::str::FromStr;

use caravan_store::SLOTS;
use serde::{Deserialize, Serialize};

/// Slots that follow each other: `first..=last`. As text, `0-5460`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct SlotRange {
    /// The first slot.
    pub first: u16,
    /// The last slot, which belongs to the range.
    pub last: u16,
}

impl SlotRange {
    /// Says whether the slot is in the range.
    pub fn contains(&self, slot: u16) -> bool {
        (self.first..=self.last).contains(&slot)
    }

    /// Divides all slots into `count` ranges of equal length, give or take one slot.
    pub fn divide(count: u16) -> Vec<Self> {
        let bound = |index: u16| (u32::from(SLOTS) * u32::from(index) / u32::from(count)) as u16;
        (0..count.min(SLOTS)).map(|index| Self { first: bound(index), last: bound(index + 1) - 1 }).collect()
    }
}

impl fmt::Display for SlotRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

impl FromStr for SlotRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let range = text.split_once('-').and_then(|(first, last)| {
            let range = Self { first: first.parse().ok()?, last: last.parse().ok()? };
            (range.first <= range.last && range.last < SLOTS && range.to_string() == text).then_some(range)
        });
        range.ok_or_else(|| format!("{text:?} is no range of hash slots, such as 0-5460"))
    }
}

impl TryFrom<String> for SlotRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<SlotRange> for String {
    fn from(range: SlotRange) -> Self {
        range.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_division_covers_every_slot_once() {
        for count in [1, 2, 3, 7, 100, SLOTS] {
            let ranges = SlotRange::divide(count);
            assert_eq!(ranges.len(), usize::from(count));
            let mut next = 0;
            for range in &ranges {
                assert_eq!(range.first, next);
                next = range.last + 1;
                let length = u32::from(range.last - range.first) + 1;
                assert!(length.abs_diff(u32::from(SLOTS) / u32::from(count)) <= 1);
            }
            assert_eq!(next, SLOTS);
        }
    }

    #[test]
    fn a_range_is_read_as_it_is_written() {
        assert_eq!("0-5460".parse(), Ok(SlotRange { first: 0, last: 5460 }));
        for wrong in ["", "5", "7-6", "0-16384", "-1-4", "0-05", "+0-4", "0 - 4", "a-b"] {
            assert!(wrong.parse::<SlotRange>().is_err(), "{wrong}");
        }
    }
}

//! The distribution header at the beginning of each message: the atoms that it refers to, by slots of the
//! atom cache, and the slots that it fills.
//!
//! Source: "Distribution Header" and "Distribution Header for fragmented messages" in the External
//! Term Format chapter of the ERTS reference manual.
//!
//! `131 68 N Flags.. Refs..` is a whole message; `131 69 Sequence:8 Fragment:8 N Flags.. Refs..`
//! begins a fragmented one, of which `131 70 Sequence:8 Fragment:8` continues each further
//! fragment, counting down to 1. Flags are half a byte for each reference: three high bits of its
//! slot, and whether it fills the slot; one more half byte says whether lengths have two bytes.

use caravan_fabric::byte_reader::ByteReader;

use crate::error::Error;

/// The version of the external term format.
const VERSION: u8 = 131;
const WHOLE: u8 = 68;
const FIRST: u8 = 69;
const NEXT: u8 = 70;
/// The number of bytes of `131 70 Sequence Fragment`.
pub const FRAGMENT_BYTES: usize = 18;
/// The number of slots of an atom cache.
pub const SLOTS: usize = 2048;

/// The beginning of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeaderKind {
    /// A whole message with a header: references begin at byte 2.
    Whole,
    /// The first of several fragments: references begin at byte 18.
    First {
        /// The sequence number of the message.
        sequence: u64,
        /// The number of its fragments.
        fragments: u64,
    },
    /// A further fragment: its bytes begin at byte 18.
    Next {
        /// The sequence number of the message.
        sequence: u64,
        /// The number of the fragment, which counts down to 1.
        fragment: u64,
    },
    /// Any other beginning, which the emulator judges.
    Other,
}

impl HeaderKind {
    /// Looks at the first bytes of a message: [`FRAGMENT_BYTES`] of them, or all if it is shorter.
    #[inline]
    pub fn of(head: &[u8]) -> Self {
        let (tag, numbers) = match head {
            [VERSION, tag, rest @ ..] => (*tag, rest),
            _ => return Self::Other,
        };
        if tag == WHOLE {
            return Self::Whole;
        }
        let Some((numbers, _)) = numbers.split_first_chunk::<16>() else { return Self::Other };
        let number = |at: usize| {
            let mut bytes = [0; 8];
            bytes.copy_from_slice(&numbers[at..at + 8]);
            u64::from_be_bytes(bytes)
        };
        match tag {
            FIRST => Self::First { sequence: number(0), fragments: number(8) },
            NEXT => Self::Next { sequence: number(0), fragment: number(8) },
            _ => Self::Other,
        }
    }
}

/// One reference to an atom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// The slot of the cache.
    pub slot: u16,
    /// The atom's text, if the slot is filled with it.
    pub text: Option<Box<[u8]>>,
}

/// True if the references (from the count on) fill no slot. `None` if they are cut off.
#[inline]
pub fn fills_nothing(references: &[u8]) -> Option<bool> {
    let (&count, rest) = references.split_first()?;
    if count == 0 {
        return Some(true);
    }
    let count = usize::from(count);
    let flags = rest.get(..count / 2 + 1)?;
    let half = |i: usize| flags[i / 2] >> (4 * (i % 2));
    let mut all = 0;
    for byte in &flags[..count / 2] {
        all |= byte;
    }
    if count % 2 == 1 {
        all |= half(count - 1) & 0x0f;
    }
    Some(all & 0x88 == 0)
}

/// Returns the slots that the references name, without their texts; only valid if [`fills_nothing`].
#[inline]
pub fn cached_slots(references: &[u8]) -> Option<impl Iterator<Item = u16> + '_> {
    let (&count, rest) = references.split_first()?;
    let count = usize::from(count);
    let flag_bytes = if count == 0 { 0 } else { count / 2 + 1 };
    let flags = rest.get(..flag_bytes)?;
    let low = rest.get(flag_bytes..flag_bytes + count)?;
    Some(low.iter().enumerate().map(move |(i, low)| {
        let high = (flags[i / 2] >> (4 * (i % 2))) & 7;
        (u16::from(high) << 8) | u16::from(*low)
    }))
}

/// The references of one header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParsedReferences {
    /// The references, in order.
    pub references: Vec<Reference>,
    /// The number of bytes of the references in the header.
    pub bytes: usize,
}

/// Parses the references, from the count on.
pub fn parse(references: &[u8]) -> Result<ParsedReferences, Error> {
    let mut reader = ByteReader::new(references);
    let parsed = read(&mut reader).ok_or(Error::Header)?;
    Ok(ParsedReferences { references: parsed, bytes: references.len() - reader.remaining() })
}

fn read(reader: &mut ByteReader<'_>) -> Option<Vec<Reference>> {
    let count = usize::from(reader.u8()?);
    if count == 0 {
        return Some(Vec::new());
    }
    let flags = reader.bytes(count / 2 + 1)?;
    let half = |i: usize| (flags[i / 2] >> (4 * (i % 2))) & 0x0f;
    let long = half(count) & 1 != 0;
    let mut parsed = Vec::with_capacity(count);
    for i in 0..count {
        let slot = (u16::from(half(i) & 7) << 8) | u16::from(reader.u8()?);
        let text = if half(i) & 8 == 0 {
            None
        } else {
            let length = if long { usize::from(reader.u16()?) } else { usize::from(reader.u8()?) };
            Some(reader.bytes(length)?.into())
        };
        parsed.push(Reference { slot, text });
    }
    Some(parsed)
}

/// Writes references, from the count on: the reverse of [`parse`].
pub fn write(references: &[Reference], out: &mut Vec<u8>) {
    out.push(references.len() as u8);
    if references.is_empty() {
        return;
    }
    let long = references.iter().any(|r| r.text.as_ref().is_some_and(|text| text.len() > 255));
    let flags_at = out.len();
    out.resize(flags_at + references.len() / 2 + 1, 0);
    let mut set = |i: usize, half: u8| out[flags_at + i / 2] |= half << (4 * (i % 2));
    for (i, reference) in references.iter().enumerate() {
        set(i, (reference.slot >> 8) as u8 & 7 | if reference.text.is_some() { 8 } else { 0 });
    }
    set(references.len(), u8::from(long));
    for reference in references {
        out.push(reference.slot as u8);
        if let Some(text) = &reference.text {
            if long {
                out.push((text.len() >> 8) as u8);
            }
            out.push(text.len() as u8);
            out.extend_from_slice(text);
        }
    }
}

/// The two bytes in front of the references of a whole message.
pub const WHOLE_PREFIX: [u8; 2] = [VERSION, WHOLE];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn reference() -> impl Strategy<Value = Reference> {
        let text = proptest::option::of(proptest::collection::vec(any::<u8>(), 0..300));
        (0u16..2048, text).prop_map(|(slot, text)| Reference { slot, text: text.map(Into::into) })
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            references in proptest::collection::vec(reference(), 0..=255),
            cut in any::<proptest::sample::Index>(),
        ) {
            let mut bytes = Vec::new();
            write(&references, &mut bytes);
            let length = bytes.len();
            bytes.extend_from_slice(b"the control message");
            let parsed = ParsedReferences { references: references.clone(), bytes: length };
            prop_assert_eq!(parse(&bytes).unwrap(), parsed);
            let fills = references.iter().any(|r| r.text.is_some());
            prop_assert_eq!(fills_nothing(&bytes), Some(!fills));
            if !fills {
                let slots: Vec<u16> = cached_slots(&bytes).unwrap().collect();
                prop_assert_eq!(slots, references.iter().map(|r| r.slot).collect::<Vec<_>>());
            }
            prop_assert!(parse(&bytes[..cut.index(length)]).is_err());
        }

        #[test]
        fn nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&bytes);
            let _ = fills_nothing(&bytes);
            let _ = cached_slots(&bytes).map(Iterator::count);
            let _ = HeaderKind::of(&bytes);
        }
    }

    #[test]
    fn the_manuals_example() {
        // A header with three references: slot 0x105 cached, slot 7 filled with "ok", 0x7ff cached.
        let bytes = [3, 0x81, 0x07, 5, 7, 2, b'o', b'k', 0xff];
        let parsed = parse(&bytes).unwrap();
        assert_eq!(parsed.bytes, bytes.len());
        let references = parsed.references;
        let slots: Vec<u16> = references.iter().map(|r| r.slot).collect();
        assert_eq!(slots, [0x105, 7, 0x7ff]);
        assert_eq!(references[1].text.as_deref(), Some(&b"ok"[..]));
        assert_eq!(HeaderKind::of(&[131, 68, 0]), HeaderKind::Whole);
        let mut head = [0; 18];
        (head[0], head[1], head[9], head[17]) = (131, 70, 3, 2);
        assert_eq!(HeaderKind::of(&head), HeaderKind::Next { sequence: 3, fragment: 2 });
    }
}

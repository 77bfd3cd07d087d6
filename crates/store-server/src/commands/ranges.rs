//! APPEND, STRLEN, GETRANGE and SETRANGE.

use std::ops::Range;

use caravan_store::limits::VALUE_BYTES_MAX;

use crate::command::KeyCommand;
use crate::error::{CommandError, NOT_AN_INTEGER, TOO_LONG};
use crate::number::integer;

pub(crate) fn append(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let (key, more) = (command.words.word(1), command.words.word(2));
    let old = command.entry(key)?;
    let (mut value, at_ms) = old.map_or((Vec::new(), None), |old| (old.value, old.head.expires_at_ms));
    if value.len() + more.len() > VALUE_BYTES_MAX {
        return Err(TOO_LONG);
    }
    command.tx.require_room(value.len() + more.len())?;
    value.extend_from_slice(more);
    command.tx.put_until(key, &value, at_ms)?;
    command.reply.count(value.len());
    Ok(())
}

pub(crate) fn strlen(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let key = command.words.word(1);
    let bytes = if command.head(key)?.is_some() { command.tx.value_bytes(key)? } else { None };
    command.reply.count(bytes.unwrap_or(0));
    Ok(())
}

pub(crate) fn getrange(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let start = integer(command.words.word(2)).ok_or(NOT_AN_INTEGER)?;
    let end = integer(command.words.word(3)).ok_or(NOT_AN_INTEGER)?;
    let key = command.words.word(1);
    let value = match command.head(key)? {
        Some(_) => command.tx.part(key, |bytes| part(bytes, start, end))?,
        None => None,
    };
    command.reply.bulk(&value.unwrap_or_default());
    Ok(())
}

/// Returns which of so many bytes lie from `start` to `end`, both included; negative numbers count from the end.
fn part(bytes: usize, start: i64, end: i64) -> Range<usize> {
    if start < 0 && end < 0 && start > end {
        return 0..0;
    }
    let length = bytes as i64;
    let place = |index: i64| if index < 0 { index.saturating_add(length).max(0) } else { index };
    let (start, end) = (place(start), place(end).min(length - 1));
    if start > end { 0..0 } else { start as usize..end as usize + 1 }
}

pub(crate) fn setrange(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let (key, part) = (command.words.word(1), command.words.word(3));
    let offset = integer(command.words.word(2)).ok_or(NOT_AN_INTEGER)?;
    let offset = usize::try_from(offset).map_err(|_| CommandError::Said("ERR offset is out of range"))?;
    let old = command.entry(key)?;
    let (mut value, at_ms) = old.map_or((Vec::new(), None), |old| (old.value, old.head.expires_at_ms));
    if !part.is_empty() {
        let end = offset.saturating_add(part.len());
        if end > VALUE_BYTES_MAX {
            return Err(TOO_LONG);
        }
        command.tx.require_room(end)?;
        if value.len() < end {
            value.resize(end, 0);
        }
        value[offset..end].copy_from_slice(part);
        command.tx.put_until(key, &value, at_ms)?;
    }
    command.reply.count(value.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn a_part_is_cut_at_both_ends() {
        for (start, end, expected) in [
            (0, 3, "Hell"),
            (0, -1, "Hello"),
            (-4, -1, "ello"),
            (5, 3, ""),
            (2, 5000, "llo"),
            (-5000, 10000, "Hello"),
            (-1, -5, ""),
            (i64::MIN, i64::MAX, "Hello"),
            (0, i64::MIN, "H"),
        ] {
            assert_eq!(&"Hello"[part(5, start, end)], expected, "{start} {end}");
        }
        assert_eq!(part(0, 0, -1), 0..0);
    }
}

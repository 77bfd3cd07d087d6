//! INCR, DECR and their variants. A number keeps its expiry.

use crate::command::KeyCommand;
use crate::error::{CommandError, NOT_AN_INTEGER};
use crate::number::{SumError, integer, sum};

pub(crate) fn incr(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    add(command, 1)
}

pub(crate) fn decr(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    add(command, -1)
}

pub(crate) fn incrby(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let more = integer(command.words.word(2)).ok_or(NOT_AN_INTEGER)?;
    add(command, more)
}

pub(crate) fn decrby(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let less = integer(command.words.word(2)).ok_or(NOT_AN_INTEGER)?;
    let more = less.checked_neg().ok_or(CommandError::Said("ERR decrement would overflow"))?;
    add(command, more)
}

fn add(command: &mut KeyCommand<'_, '_>, more: i64) -> Result<(), CommandError> {
    let key = command.words.word(1);
    let old = command.entry(key)?;
    let at_ms = old.as_ref().and_then(|old| old.head.expires_at_ms);
    let number = old.map_or(Some(0), |old| integer(&old.value)).ok_or(NOT_AN_INTEGER)?;
    let number =
        number.checked_add(more).ok_or(CommandError::Said("ERR increment or decrement would overflow"))?;
    command.tx.put_until(key, number.to_string().as_bytes(), at_ms)?;
    command.reply.integer(number);
    Ok(())
}

pub(crate) fn incrbyfloat(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let (key, more) = (command.words.word(1), command.words.word(2));
    let old = command.entry(key)?;
    let at_ms = old.as_ref().and_then(|old| old.head.expires_at_ms);
    let old = old.map_or_else(|| b"0".to_vec(), |old| old.value);
    let number = sum(&old, more).map_err(|error| {
        CommandError::Said(match error {
            SumError::NoNumber => "ERR value is not a valid float",
            SumError::NotFinite => "ERR increment would produce NaN or Infinity",
        })
    })?;
    command.tx.put_until(key, number.as_bytes(), at_ms)?;
    command.reply.bulk(number.as_bytes());
    Ok(())
}

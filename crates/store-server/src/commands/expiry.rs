//! EXPIRE, TTL and their variants.

use crate::command::KeyCommand;
use crate::error::{CommandError, NOT_AN_INTEGER};
use crate::number::integer;

/// How a command tells a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimeUnit {
    is_seconds: bool,
    /// Since 1970, instead of from now.
    is_absolute: bool,
}

impl TimeUnit {
    pub(crate) const SECONDS: Self = Self { is_seconds: true, is_absolute: false };
    pub(crate) const MILLISECONDS: Self = Self { is_seconds: false, is_absolute: false };
    pub(crate) const SECONDS_AT: Self = Self { is_seconds: true, is_absolute: true };
    pub(crate) const MILLISECONDS_AT: Self = Self { is_seconds: false, is_absolute: true };

    /// Returns the time in milliseconds since 1970, unless it is too far away.
    fn to_ms(self, number: i64, now_ms: u64) -> Option<i64> {
        let ms = if self.is_seconds { number.checked_mul(1000)? } else { number };
        if self.is_absolute { Some(ms) } else { ms.checked_add(i64::try_from(now_ms).ok()?) }
    }
}

fn invalid(command: &KeyCommand<'_, '_>) -> CommandError {
    CommandError::Told(format!("ERR invalid expire time in '{}' command", command.name))
}

/// Returns the time of an option of SET or GETEX, which must be positive.
pub(crate) fn absolute_ms(
    command: &KeyCommand<'_, '_>,
    unit: TimeUnit,
    index: usize,
) -> Result<u64, CommandError> {
    let number = integer(command.words.word(index)).ok_or(NOT_AN_INTEGER)?;
    let at_ms = if number <= 0 { None } else { unit.to_ms(number, command.now_ms) };
    at_ms.and_then(|at_ms| u64::try_from(at_ms).ok()).ok_or_else(|| invalid(command))
}

pub(crate) fn expire(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    set_expiry(command, TimeUnit::SECONDS)
}

pub(crate) fn pexpire(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    set_expiry(command, TimeUnit::MILLISECONDS)
}

pub(crate) fn expireat(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    set_expiry(command, TimeUnit::SECONDS_AT)
}

pub(crate) fn pexpireat(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    set_expiry(command, TimeUnit::MILLISECONDS_AT)
}

/// On which keys EXPIRE works.
#[derive(Debug, Default)]
struct ExpireOptions {
    if_without: bool,
    if_with: bool,
    if_later: bool,
    if_sooner: bool,
}

impl ExpireOptions {
    fn of(command: &KeyCommand<'_, '_>) -> Result<Self, CommandError> {
        let mut options = Self::default();
        for (index, word) in command.words.from(3).enumerate() {
            match index + 3 {
                at if command.words.is(at, "NX") => options.if_without = true,
                at if command.words.is(at, "XX") => options.if_with = true,
                at if command.words.is(at, "GT") => options.if_later = true,
                at if command.words.is(at, "LT") => options.if_sooner = true,
                _ => return Err(CommandError::Quoted([b"ERR Unsupported option ", word].concat())),
            }
        }
        if options.if_without && (options.if_with || options.if_later || options.if_sooner) {
            let text = "ERR NX and XX, GT or LT options at the same time are not compatible";
            return Err(CommandError::Said(text));
        }
        if options.if_later && options.if_sooner {
            return Err(CommandError::Said("ERR GT and LT options at the same time are not compatible"));
        }
        Ok(options)
    }

    /// Returns whether a key that expires at `old` may expire at `new`. A key that never expires counts as the latest.
    fn allow(&self, old: Option<u64>, new: i64) -> bool {
        let is_later = old.is_some_and(|old| i128::from(new) > i128::from(old));
        let is_sooner = old.is_none_or(|old| i128::from(new) < i128::from(old));
        (!self.if_without || old.is_none())
            && (!self.if_with || old.is_some())
            && (!self.if_later || is_later)
            && (!self.if_sooner || is_sooner)
    }
}

fn set_expiry(command: &mut KeyCommand<'_, '_>, unit: TimeUnit) -> Result<(), CommandError> {
    let options = ExpireOptions::of(command)?;
    let number = integer(command.words.word(2)).ok_or(NOT_AN_INTEGER)?;
    let at_ms = unit.to_ms(number, command.now_ms).ok_or_else(|| invalid(command))?;
    let key = command.words.word(1);
    let entry = command.entry(key)?.filter(|entry| options.allow(entry.head.expires_at_ms, at_ms));
    if let Some(entry) = &entry {
        match u64::try_from(at_ms) {
            Ok(at_ms) if at_ms > command.now_ms => {
                command.tx.put_until(key, &entry.value, Some(at_ms))?;
            }
            // A time in the past deletes the key at once.
            _ => _ = command.tx.delete(key)?,
        }
    }
    command.reply.integer(i64::from(entry.is_some()));
    Ok(())
}

pub(crate) fn persist(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let key = command.words.word(1);
    let entry = command.entry(key)?.filter(|entry| entry.head.expires_at_ms.is_some());
    if let Some(entry) = &entry {
        command.tx.put(key, &entry.value)?;
    }
    command.reply.integer(i64::from(entry.is_some()));
    Ok(())
}

pub(crate) fn ttl(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    tell(command, |at_ms, now_ms| (at_ms.saturating_sub(now_ms) + 500) / 1000)
}

pub(crate) fn pttl(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    tell(command, |at_ms, now_ms| at_ms.saturating_sub(now_ms))
}

pub(crate) fn expiretime(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    tell(command, |at_ms, _| at_ms.saturating_add(500) / 1000)
}

pub(crate) fn pexpiretime(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    tell(command, |at_ms, _| at_ms)
}

/// Replies -2 for a key that does not exist, and -1 for one that never expires.
fn tell(command: &mut KeyCommand<'_, '_>, value: fn(u64, u64) -> u64) -> Result<(), CommandError> {
    let at_ms = command.head(command.words.word(1))?.map(|head| head.expires_at_ms);
    command.reply.integer(match at_ms {
        None => -2,
        Some(None) => -1,
        Some(Some(at_ms)) => i64::try_from(value(at_ms, command.now_ms)).unwrap_or(i64::MAX),
    });
    Ok(())
}

//! DEL, EXISTS, TYPE, RENAME, and what concerns all keys: KEYS, SCAN, RANDOMKEY, DBSIZE, FLUSHALL.

use caravan_store::ScanCursor;

use crate::command::KeyCommand;
use crate::error::{CommandError, NOT_AN_INTEGER, SYNTAX};
use crate::glob::matches;
use crate::limits;
use crate::number::integer;
use crate::resp::words::CommandWords;
use crate::session::Session;

pub(crate) fn del(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let mut deleted = 0;
    for key in command.words.from(1) {
        deleted += i64::from(command.delete(key)?);
    }
    command.reply.integer(deleted);
    Ok(())
}

pub(crate) fn exists(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let mut found = 0;
    for key in command.words.from(1) {
        found += i64::from(command.head(key)?.is_some());
    }
    command.reply.integer(found);
    Ok(())
}

/// TYPE: all values are strings.
pub(crate) fn kind(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let exists = command.head(command.words.word(1))?.is_some();
    command.reply.simple(if exists { "string" } else { "none" });
    Ok(())
}

pub(crate) fn rename(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    move_value(command, false)?;
    command.reply.ok();
    Ok(())
}

pub(crate) fn renamenx(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let is_moved = move_value(command, true)?;
    command.reply.integer(i64::from(is_moved));
    Ok(())
}

fn move_value(command: &mut KeyCommand<'_, '_>, if_free: bool) -> Result<bool, CommandError> {
    let (from, to) = (command.words.word(1), command.words.word(2));
    let entry = command.entry(from)?.ok_or(CommandError::Said("ERR no such key"))?;
    if from == to {
        return Ok(false);
    }
    if if_free && command.head(to)?.is_some() {
        return Ok(false);
    }
    command.tx.delete(from)?;
    command.tx.put_until(to, &entry.value, entry.head.expires_at_ms)?;
    Ok(true)
}

pub(crate) fn dbsize(session: &mut Session, _: CommandWords<'_>) -> Result<(), CommandError> {
    let keys = session.store().counts().keys;
    session.reply.integer(i64::try_from(keys).unwrap_or(i64::MAX));
    Ok(())
}

pub(crate) fn flush(session: &mut Session, words: CommandWords<'_>) -> Result<(), CommandError> {
    let is_plain = words.len() == 1 || (words.len() == 2 && (words.is(1, "SYNC") || words.is(1, "ASYNC")));
    if !is_plain {
        return Err(SYNTAX);
    }
    session.store().clear()?;
    session.reply.ok();
    Ok(())
}

pub(crate) fn randomkey(session: &mut Session, _: CommandWords<'_>) -> Result<(), CommandError> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|_| CommandError::Said("ERR the system has no random numbers"))?;
    let key = session.store().random_key(u64::from_ne_bytes(random))?;
    session.reply.bulk_or_null(key.as_deref());
    Ok(())
}

/// Keys of one step of KEYS.
const STEP_KEYS: usize = 1000;

pub(crate) fn keys(session: &mut Session, words: CommandWords<'_>) -> Result<(), CommandError> {
    let (store, pattern) = (session.store(), words.word(1));
    let mut found: Vec<Vec<u8>> = Vec::new();
    let mut bytes = 0;
    let mut cursor = ScanCursor::START;
    loop {
        cursor = store.scan(cursor, STEP_KEYS, |key| {
            if matches(pattern, key) {
                bytes += key.len() + size_of::<Vec<u8>>();
                found.push(key.to_vec());
            }
        })?;
        if bytes > limits::REPLY_BYTES_MAX {
            return Err(CommandError::LongReply);
        }
        if cursor == ScanCursor::START {
            break;
        }
    }
    // A scan may return a key twice, KEYS may not.
    found.sort_unstable();
    found.dedup();
    session.reply.array(found.len());
    found.iter().for_each(|key| session.reply.bulk(key));
    Ok(())
}

/// The options of SCAN.
#[derive(Debug)]
struct ScanOptions<'a> {
    pattern: Option<&'a [u8]>,
    count: usize,
    kind: Option<&'a [u8]>,
}

/// Keys that SCAN looks at without COUNT, and at most.
const SCAN_KEYS: (usize, usize) = (10, 1 << 20);

fn scan_options(words: CommandWords<'_>) -> Result<ScanOptions<'_>, CommandError> {
    let mut options = ScanOptions { pattern: None, count: SCAN_KEYS.0, kind: None };
    for at in (2..words.len()).step_by(2) {
        let value = words.get(at + 1).ok_or(SYNTAX)?;
        if words.is(at, "COUNT") {
            let count = integer(value).ok_or(NOT_AN_INTEGER)?;
            let count = usize::try_from(count).ok().filter(|count| *count > 0).ok_or(SYNTAX)?;
            options.count = count.min(SCAN_KEYS.1);
        } else if words.is(at, "MATCH") {
            options.pattern = Some(value);
        } else if words.is(at, "TYPE") {
            options.kind = Some(value);
        } else {
            return Err(SYNTAX);
        }
    }
    Ok(options)
}

/// Reads a cursor as Redis does, by strtoul(3): nothing is 0, and a sign is allowed.
fn scan_cursor(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    let (digits, is_negative) = match text.split_first() {
        Some((b'-', digits)) => (digits, true),
        Some((b'+', digits)) => (digits, false),
        _ => (text, false),
    };
    let is_number = digits.first().is_some_and(u8::is_ascii_digit);
    let cursor: u64 = std::str::from_utf8(digits).ok().filter(|_| is_number)?.parse().ok()?;
    Some(if is_negative { cursor.wrapping_neg() } else { cursor })
}

pub(crate) fn scan(session: &mut Session, words: CommandWords<'_>) -> Result<(), CommandError> {
    let cursor = scan_cursor(words.word(1)).ok_or(CommandError::Said("ERR invalid cursor"))?;
    let options = scan_options(words)?;
    let is_kind = options.kind.is_none_or(|kind| kind.eq_ignore_ascii_case(b"string"));
    let mut found: Vec<Vec<u8>> = Vec::new();
    let next = session.store().scan(ScanCursor::from_u64(cursor), options.count, |key| {
        if is_kind && options.pattern.is_none_or(|pattern| matches(pattern, key)) {
            found.push(key.to_vec());
        }
    })?;
    session.reply.array(2);
    session.reply.bulk(next.to_u64().to_string().as_bytes());
    session.reply.array(found.len());
    found.iter().for_each(|key| session.reply.bulk(key));
    Ok(())
}

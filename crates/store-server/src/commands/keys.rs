//! DEL, EXISTS, TYPE, RENAME, and what concerns all keys: KEYS, SCAN, RANDOMKEY, DBSIZE, FLUSHALL.

use caravan_store::{ScanCursor, Store};

use crate::command::KeyCommand;
use crate::dialogue::Dialogue;
use crate::error::{CommandError, NOT_AN_INTEGER, SYNTAX};
use crate::glob::matches;
use crate::limits;
use crate::number::integer;
use crate::resp::words::CommandWords;

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

pub(crate) fn dbsize(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let keys = dialogue.parts.counts().keys;
    dialogue.reply.integer(i64::try_from(keys).unwrap_or(i64::MAX));
    Ok(())
}

pub(crate) fn flush(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let is_plain = words.len() == 1 || (words.len() == 2 && (words.is(1, "SYNC") || words.is(1, "ASYNC")));
    if !is_plain {
        return Err(SYNTAX);
    }
    dialogue.parts.stores().try_for_each(|store| store.clear())?;
    dialogue.reply.ok();
    Ok(())
}

pub(crate) fn randomkey(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|_| CommandError::Said("ERR the system has no random numbers"))?;
    let random = u64::from_ne_bytes(random);
    // A part by its share of the keys, and another one if it has none left.
    let keys: u64 = dialogue.parts.counts().keys;
    let mut before = random % keys.max(1);
    let first = dialogue.parts.stores().position(|store| {
        let keys = store.counts().keys;
        let is_here = before < keys;
        before = before.saturating_sub(keys);
        is_here
    });
    let stores: Vec<_> = dialogue.parts.stores().collect();
    let (early, late) = stores.split_at(first.unwrap_or(0));
    let mut key = None;
    for store in late.iter().chain(early) {
        key = store.random_key(random)?;
        if key.is_some() {
            break;
        }
    }
    dialogue.reply.bulk_or_null(key.as_deref());
    Ok(())
}

/// Keys of one step of KEYS.
const STEP_KEYS: usize = 1000;

pub(crate) fn keys(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let pattern = words.word(1);
    let mut found = FoundKeys::default();
    for store in dialogue.parts.stores() {
        found.scan(store, |key| matches(pattern, key))?;
    }
    let found = found.once();
    dialogue.reply.array(found.len());
    found.iter().for_each(|key| dialogue.reply.bulk(key));
    Ok(())
}

/// The keys that a walk through a store has found.
#[derive(Debug, Default)]
pub(crate) struct FoundKeys {
    keys: Vec<Vec<u8>>,
    bytes: usize,
}

impl FoundKeys {
    /// Adds the keys of a store that are wanted.
    pub(crate) fn scan(
        &mut self,
        store: &Store,
        is_wanted: impl Fn(&[u8]) -> bool,
    ) -> Result<(), CommandError> {
        let mut cursor = ScanCursor::START;
        loop {
            cursor = store.scan(cursor, STEP_KEYS, |key| {
                if is_wanted(key) {
                    self.bytes += key.len() + size_of::<Vec<u8>>();
                    self.keys.push(key.to_vec());
                }
            })?;
            if self.bytes > limits::REPLY_BYTES_MAX {
                return Err(CommandError::LongReply);
            }
            if cursor == ScanCursor::START {
                return Ok(());
            }
        }
    }

    /// Returns the keys in order, each once: a scan may return a key twice.
    pub(crate) fn once(mut self) -> Vec<Vec<u8>> {
        self.keys.sort_unstable();
        self.keys.dedup();
        self.keys
    }
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

/// The bits of a cursor of SCAN before the number of the part; a store's own cursor has fewer.
const PART_SHIFT: u32 = 48;

pub(crate) fn scan(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let cursor = scan_cursor(words.word(1)).ok_or(CommandError::Said("ERR invalid cursor"))?;
    let options = scan_options(words)?;
    let is_kind = options.kind.is_none_or(|kind| kind.eq_ignore_ascii_case(b"string"));
    let mut found: Vec<Vec<u8>> = Vec::new();
    // The parts come one after the other. One that was removed since is passed over.
    let (part, cursor) = (cursor >> PART_SHIFT, cursor & ((1 << PART_SHIFT) - 1));
    let mut left = dialogue.parts.served.iter().filter(|served| u64::from(served.id.0) >= part);
    let mut next = 0;
    if let Some(served) = left.next() {
        let is_same = u64::from(served.id.0) == part;
        let cursor = if is_same { ScanCursor::from_u64(cursor) } else { ScanCursor::START };
        let after = served.store.scan(cursor, options.count, |key| {
            if is_kind && options.pattern.is_none_or(|pattern| matches(pattern, key)) {
                found.push(key.to_vec());
            }
        })?;
        next = match left.next() {
            Some(other) if after == ScanCursor::START => u64::from(other.id.0) << PART_SHIFT,
            _ if after == ScanCursor::START => 0,
            _ => u64::from(served.id.0) << PART_SHIFT | after.to_u64(),
        };
    }
    dialogue.reply.array(2);
    dialogue.reply.bulk(next.to_string().as_bytes());
    dialogue.reply.array(found.len());
    found.iter().for_each(|key| dialogue.reply.bulk(key));
    Ok(())
}

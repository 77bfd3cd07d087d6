//! GET, SET and their variants.

use caravan_store::Store;

use crate::command::{KeyCommand, wrong_number};
use crate::commands::expiry::{TimeUnit, absolute_ms};
use crate::error::{CommandError, SYNTAX};
use crate::resp::reply::ReplyWriter;
use crate::resp::words::CommandWords;

/// GET outside of MULTI: one read is a transaction by itself.
pub(crate) fn get_alone(
    store: &Store,
    words: CommandWords<'_>,
    reply: &mut ReplyWriter,
) -> Result<(), CommandError> {
    reply.bulk_with(|buffer| Ok(store.get_into(words.word(1), buffer)?.is_some()))
}

pub(crate) fn get(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let value = command.value()?;
    command.reply.bulk_or_null(value.as_deref());
    Ok(())
}

/// When the key is to expire, as the options of SET and GETEX say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ExpiryOption {
    /// No option: SET lets the key not expire, GETEX leaves it as it is.
    Absent,
    /// KEEPTTL.
    Keep,
    /// PERSIST.
    Never,
    /// EX, PX, EXAT or PXAT, and the number of the word behind it.
    At(TimeUnit, usize),
}

/// The options of SET.
#[derive(Debug)]
struct SetOptions {
    if_absent: bool,
    if_present: bool,
    returns_old: bool,
    expiry: ExpiryOption,
}

fn time_unit(words: CommandWords<'_>, index: usize) -> Option<TimeUnit> {
    let units = [
        ("EX", TimeUnit::SECONDS),
        ("PX", TimeUnit::MILLISECONDS),
        ("EXAT", TimeUnit::SECONDS_AT),
        ("PXAT", TimeUnit::MILLISECONDS_AT),
    ];
    units.into_iter().find_map(|(name, unit)| words.is(index, name).then_some(unit))
}

/// Takes an option of expiry, if there is one at this word, and returns the number of its words. Redis allows an option again, but
/// no two different ones.
fn take_expiry(
    words: CommandWords<'_>,
    index: usize,
    single: (&str, ExpiryOption),
    expiry: &mut ExpiryOption,
) -> Result<usize, CommandError> {
    let found = match time_unit(words, index) {
        Some(unit) if index + 1 < words.len() => ExpiryOption::At(unit, index + 1),
        None if words.is(index, single.0) => single.1,
        _ => return Err(SYNTAX),
    };
    let is_same = match (*expiry, found) {
        (ExpiryOption::Absent, _) => true,
        (ExpiryOption::At(before, _), ExpiryOption::At(now, _)) => before == now,
        (before, now) => before == now,
    };
    if !is_same {
        return Err(SYNTAX);
    }
    *expiry = found;
    Ok(if matches!(found, ExpiryOption::At(..)) { 2 } else { 1 })
}

fn set_options(words: CommandWords<'_>) -> Result<SetOptions, CommandError> {
    let (if_absent, if_present, returns_old) = (false, false, false);
    let mut options = SetOptions { if_absent, if_present, returns_old, expiry: ExpiryOption::Absent };
    let mut index = 3;
    while index < words.len() {
        index += 1;
        match index - 1 {
            at if words.is(at, "NX") && !options.if_present => options.if_absent = true,
            at if words.is(at, "XX") && !options.if_absent => options.if_present = true,
            at if words.is(at, "GET") => options.returns_old = true,
            at => index = at + take_expiry(words, at, ("KEEPTTL", ExpiryOption::Keep), &mut options.expiry)?,
        }
    }
    Ok(options)
}

pub(crate) fn set(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let options = set_options(command.words)?;
    let (key, value) = (command.words.word(1), command.words.word(2));
    let at_ms = match options.expiry {
        ExpiryOption::At(unit, index) => Some(absolute_ms(command, unit, index)?),
        _ => None,
    };
    // A SET without options does not read, so it conflicts with nobody.
    let is_plain = !options.if_absent
        && !options.if_present
        && !options.returns_old
        && options.expiry != ExpiryOption::Keep;
    let old = if is_plain { None } else { command.entry(key)? };
    let is_refused = (options.if_absent && old.is_some()) || (options.if_present && old.is_none());
    if !is_refused {
        let kept_ms = old.as_ref().and_then(|old| old.head.expires_at_ms);
        let at_ms = if options.expiry == ExpiryOption::Keep { kept_ms } else { at_ms };
        command.tx.put_until(key, value, at_ms)?;
    }
    match (options.returns_old, is_refused) {
        (true, _) => command.reply.bulk_or_null(old.as_ref().map(|old| &old.value[..])),
        (false, true) => command.reply.null(),
        (false, false) => command.reply.ok(),
    }
    Ok(())
}

pub(crate) fn setnx(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let (key, value) = (command.words.word(1), command.words.word(2));
    let is_free = command.head(key)?.is_none();
    if is_free {
        command.tx.put(key, value)?;
    }
    command.reply.integer(i64::from(is_free));
    Ok(())
}

pub(crate) fn setex(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    set_with_expiry(command, TimeUnit::SECONDS)
}

pub(crate) fn psetex(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    set_with_expiry(command, TimeUnit::MILLISECONDS)
}

fn set_with_expiry(command: &mut KeyCommand<'_, '_>, unit: TimeUnit) -> Result<(), CommandError> {
    let at_ms = absolute_ms(command, unit, 2)?;
    command.tx.put_until(command.words.word(1), command.words.word(3), Some(at_ms))?;
    command.reply.ok();
    Ok(())
}

pub(crate) fn getset(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let old = command.value()?;
    command.tx.put(command.words.word(1), command.words.word(2))?;
    command.reply.bulk_or_null(old.as_deref());
    Ok(())
}

pub(crate) fn getdel(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let old = command.value()?;
    if old.is_some() {
        command.tx.delete(command.words.word(1))?;
    }
    command.reply.bulk_or_null(old.as_deref());
    Ok(())
}

pub(crate) fn getex(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    let words = command.words;
    let mut expiry = ExpiryOption::Absent;
    let mut index = 2;
    while index < words.len() {
        index += take_expiry(words, index, ("PERSIST", ExpiryOption::Never), &mut expiry)?;
    }
    let key = words.word(1);
    let Some(entry) = command.entry(key)? else {
        command.reply.null();
        return Ok(());
    };
    let at_ms = match expiry {
        ExpiryOption::At(unit, index) => Some(absolute_ms(command, unit, index)?),
        _ => None,
    };
    let is_past = at_ms.is_some_and(|at_ms| at_ms <= command.now_ms);
    let has_expiry = entry.head.expires_at_ms.is_some();
    match expiry {
        ExpiryOption::At(..) if is_past => _ = command.tx.delete(key)?,
        ExpiryOption::At(..) => command.tx.put_until(key, &entry.value, at_ms)?,
        ExpiryOption::Never if has_expiry => command.tx.put(key, &entry.value)?,
        _ => {}
    }
    command.reply.bulk(&entry.value);
    Ok(())
}

pub(crate) fn mget(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    command.reply.array(command.words.len() - 1);
    for key in command.words.from(1) {
        let entry = command.entry(key)?;
        command.reply.bulk_or_null(entry.as_ref().map(|entry| &entry.value[..]));
        command.reply.check(command.mark)?;
    }
    Ok(())
}

/// Returns the keys and values of MSET.
fn pairs<'a>(
    command: &KeyCommand<'a, '_>,
) -> Result<impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a>, CommandError> {
    let words = command.words;
    if words.len() % 2 == 0 {
        return Err(wrong_number(command.name));
    }
    let pairs = move || (1..words.len()).step_by(2).map(move |at| (words.word(at), words.word(at + 1)));
    Ok(pairs())
}

pub(crate) fn mset(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    for (key, value) in pairs(command)? {
        command.tx.put(key, value)?;
    }
    command.reply.ok();
    Ok(())
}

pub(crate) fn msetnx(command: &mut KeyCommand<'_, '_>) -> Result<(), CommandError> {
    for (key, _) in pairs(command)? {
        if command.head(key)?.is_some() {
            command.reply.integer(0);
            return Ok(());
        }
    }
    for (key, value) in pairs(command)? {
        command.tx.put(key, value)?;
    }
    command.reply.integer(1);
    Ok(())
}

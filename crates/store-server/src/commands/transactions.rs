//! MULTI, EXEC, DISCARD, WATCH and UNWATCH.

use crate::error::CommandError;
use crate::limits;
use crate::resp::words::CommandWords;
use crate::session::{CommandQueue, Session};

pub(crate) fn multi(session: &mut Session, _: CommandWords<'_>) -> Result<(), CommandError> {
    if session.queue.is_some() {
        return Err(CommandError::Said("ERR MULTI calls can not be nested"));
    }
    session.queue = Some(CommandQueue::default());
    session.entry.card.notes().queued = Some((0, 0));
    session.reply.ok();
    Ok(())
}

pub(crate) fn exec(session: &mut Session, _: CommandWords<'_>) -> Result<(), CommandError> {
    session.exec()
}

pub(crate) fn discard(session: &mut Session, _: CommandWords<'_>) -> Result<(), CommandError> {
    if session.queue.take().is_none() {
        return Err(CommandError::Said("ERR DISCARD without MULTI"));
    }
    session.forget_watched();
    session.reply.ok();
    Ok(())
}

pub(crate) fn watch(session: &mut Session, words: CommandWords<'_>) -> Result<(), CommandError> {
    if session.queue.is_some() {
        return Err(CommandError::Said("ERR WATCH inside MULTI is not allowed"));
    }
    if session.watched.len() + words.len() > limits::WATCHED_KEYS_MAX {
        return Err(CommandError::Said("ERR a connection can watch 65535 keys"));
    }
    let store = session.store();
    for key in words.from(1) {
        // The first one counts: a change between two WATCH of one key is a change.
        if !session.watched.iter().any(|(watched, _)| watched == key) {
            let watch = store.watch(key)?;
            session.watched.push((key.to_vec(), watch));
        }
    }
    session.reply.ok();
    Ok(())
}

pub(crate) fn unwatch(session: &mut Session, _: CommandWords<'_>) -> Result<(), CommandError> {
    session.forget_watched();
    session.reply.ok();
    Ok(())
}

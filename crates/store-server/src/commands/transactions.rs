//! MULTI, EXEC, DISCARD, WATCH and UNWATCH.

use crate::dialogue::apart::apart_error;
use crate::dialogue::{CommandQueue, Dialogue, WatchedKey};
use crate::error::CommandError;
use crate::limits;
use crate::resp::words::CommandWords;

pub(crate) fn multi(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    if dialogue.queue.is_some() {
        return Err(CommandError::Said("ERR MULTI calls can not be nested"));
    }
    dialogue.queue = Some(CommandQueue::default());
    dialogue.entry.card.notes().queued = Some((0, 0));
    dialogue.reply.ok();
    Ok(())
}

pub(crate) fn exec(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    dialogue.exec()
}

pub(crate) fn discard(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    if dialogue.queue.take().is_none() {
        return Err(CommandError::Said("ERR DISCARD without MULTI"));
    }
    dialogue.forget_watched();
    dialogue.reply.ok();
    Ok(())
}

pub(crate) fn watch(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    if dialogue.queue.is_some() {
        return Err(CommandError::Said("ERR WATCH inside MULTI is not allowed"));
    }
    if dialogue.watched.len() + words.len() > limits::WATCHED_KEYS_MAX {
        return Err(CommandError::Said("ERR a connection can watch 65535 keys"));
    }
    let part = dialogue.parts.index_of(words.from(1));
    for key in words.from(1) {
        // The first one counts: a change between two WATCH of one key is a change.
        if !dialogue.watched.iter().any(|watched| watched.key == key) {
            let (watch, tenure) = match &dialogue.apart {
                Some(store) => (store.of(key).and_then(|part| part.watch(key)).map_err(apart_error)?, None),
                None => {
                    let part = &dialogue.parts.served[part.clone()?];
                    (part.store.watch(key)?, Some(part.tenure))
                }
            };
            dialogue.watched.push(WatchedKey { key: key.to_vec(), watch, tenure });
        }
    }
    dialogue.reply.ok();
    Ok(())
}

pub(crate) fn unwatch(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    dialogue.forget_watched();
    dialogue.reply.ok();
    Ok(())
}

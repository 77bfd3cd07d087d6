//! CLIENT and DEBUG SLEEP.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::dialogue::Dialogue;
use crate::error::{CommandError, SYNTAX};
use crate::limits;
use crate::number::integer;
use crate::resp::words::CommandWords;
use crate::state::ClientCard;

pub(crate) fn id(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    dialogue.reply.integer(dialogue.entry.card.id as i64);
    Ok(())
}

pub(crate) fn getname(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let name = dialogue.entry.card.notes().name.clone();
    dialogue.reply.bulk_or_null((!name.is_empty()).then_some(&name[..]));
    Ok(())
}

pub(crate) fn setname(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    set_name(dialogue, words.word(2))?;
    dialogue.reply.ok();
    Ok(())
}

pub(crate) fn set_name(dialogue: &mut Dialogue, name: &[u8]) -> Result<(), CommandError> {
    if !name.iter().all(|byte| (b'!'..=b'~').contains(byte)) {
        let text = "ERR Client names cannot contain spaces, newlines or special characters.";
        return Err(CommandError::Said(text));
    }
    dialogue.entry.card.notes().name = name.to_vec();
    Ok(())
}

pub(crate) fn info(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let line = line(&dialogue.entry.card, dialogue.now_ms);
    dialogue.reply.verbatim(&line);
    Ok(())
}

pub(crate) fn list(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let mut ids = None;
    let mut is_shown = true;
    if words.len() > 3 && words.is(2, "ID") {
        let wanted: Option<Vec<_>> =
            words.from(3).map(|id| integer(id).filter(|id| *id > 0).map(|id| id as u64)).collect();
        ids = Some(wanted.ok_or(CommandError::Said("ERR Invalid client ID"))?);
    } else if words.len() == 4 && words.is(2, "TYPE") {
        let kinds = ["normal", "master", "replica", "slave", "pubsub"];
        if !kinds.iter().any(|kind| words.is(3, kind)) {
            let text = [b"ERR Unknown client type '", words.word(3), b"'"];
            return Err(CommandError::Quoted(text.concat()));
        }
        is_shown = words.is(3, "normal");
    } else if words.len() != 2 {
        return Err(SYNTAX);
    }
    let now_ms = dialogue.now_ms;
    let clients = dialogue.state.clients();
    let wanted = |card: &&std::sync::Arc<ClientCard>| {
        is_shown && ids.as_ref().is_none_or(|ids| ids.contains(&card.id))
    };
    let text: String = clients.values().filter(wanted).map(|card| line(card, now_ms)).collect();
    drop(clients);
    dialogue.reply.verbatim(&text);
    Ok(())
}

/// Writes what Redis 7.0 tells of a client. Clients insist on these fields and know no others. What a store does not have is 0.
fn line(card: &ClientCard, now_ms: u64) -> String {
    let notes = card.notes().clone();
    let seconds = |since_ms: u64| now_ms.saturating_sub(since_ms) / 1000;
    let multi = notes.queued.map_or(-1, |(commands, _)| commands as i64);
    let queued_bytes = notes.queued.map_or(0, |(_, bytes)| bytes as u64);
    // The connection's own thread stores these; another one may read a value of just before.
    let busy_ms = card.busy_ms.load(Ordering::Relaxed);
    let unsent_bytes = card.unsent_bytes.load(Ordering::Relaxed);
    let memory_bytes = queued_bytes + unsent_bytes;
    format!(
        "id={} addr={} name={} age={} idle={} flags={} db=0 sub=0 psub=0 ssub=0 multi={multi} qbuf=0 qbuf-free=0 argv-mem=0 multi-mem={queued_bytes} rbs=0 rbp=0 obl=0 oll=0 omem={unsent_bytes} tot-mem={memory_bytes} events={} cmd={} user=default redir=-1 resp={}\n",
        card.id,
        card.address,
        String::from_utf8_lossy(&notes.name),
        seconds(card.entered_ms),
        seconds(busy_ms),
        if notes.queued.is_some() { "x" } else { "N" },
        if unsent_bytes == 0 { "r" } else { "w" },
        notes.command,
        if notes.is_resp3 { 3 } else { 2 },
    )
}

/// DEBUG SLEEP: only this connection waits, and the caller of the dialogue does the waiting.
pub(crate) fn sleep(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let seconds = std::str::from_utf8(words.word(2)).ok().and_then(|seconds| seconds.parse::<f64>().ok());
    let pause = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let pause = pause.filter(|pause| *pause <= limits::SLEEP_MAX);
    dialogue.pause += pause.ok_or(CommandError::Said("ERR value is not a valid float"))?;
    dialogue.reply.ok();
    Ok(())
}

//! CONFIG GET and CONFIG SET of what exists.

use caravan_store::Eviction;

use crate::dialogue::Dialogue;
use crate::error::CommandError;
use crate::glob::matches;
use crate::limits;
use crate::number::integer;
use crate::resp::words::CommandWords;
use crate::state::ServerState;

/// A setting: its name, its value, and how to change it, if it can be changed. A change is only checked if the last
/// argument is false.
type Setting = (&'static str, fn(&ServerState) -> Vec<u8>, Option<SettingChange>);
type SettingChange = fn(&ServerState, &[u8], bool) -> Result<(), &'static str>;

static SETTINGS: &[Setting] = &[
    ("appendonly", |_| b"no".to_vec(), None),
    ("cluster-enabled", |state| yes_or_no(state.parts.table().cluster.is_some()), None),
    ("databases", |_| b"1".to_vec(), None),
    ("latency-tracking", |state| yes_or_no(state.tallies.is_timing()), Some(set_timing)),
    ("latency-tracking-info-percentiles", percentiles, Some(set_percentiles)),
    ("maxclients", |state| text(state.clients_max()), Some(set_clients_max)),
    ("maxmemory", |state| text(state.parts.table().counts().memory_bytes), None),
    ("maxmemory-policy", policy, None),
    ("port", |state| text(state.facts.port), None),
    ("proto-max-bulk-len", |_| text(limits::BULK_BYTES_MAX), None),
    ("requirepass", ServerState::password, Some(set_password)),
    ("save", |_| Vec::new(), None),
    ("unixsocket", |state| state.facts.socket.clone().into_bytes(), None),
];

fn text(value: impl ToString) -> Vec<u8> {
    value.to_string().into_bytes()
}

pub(crate) fn policy(state: &ServerState) -> Vec<u8> {
    match state.facts.eviction {
        Eviction::Refuse => b"noeviction".to_vec(),
        Eviction::LeastRecentlyUsed => b"allkeys-lru".to_vec(),
        other => format!("{other:?}").into_bytes(),
    }
}

fn set_clients_max(state: &ServerState, value: &[u8], is_done: bool) -> Result<(), &'static str> {
    let clients = integer(value).ok_or("argument couldn't be parsed into an integer")?;
    let clients = usize::try_from(clients).ok().filter(|clients| (1..=limits::CLIENTS_MAX).contains(clients));
    let clients = clients.ok_or("argument must be between 1 and 1048576 inclusive")?;
    if is_done {
        state.set_clients_max(clients);
    }
    Ok(())
}

fn set_password(state: &ServerState, value: &[u8], is_done: bool) -> Result<(), &'static str> {
    if value.is_empty() && state.facts.is_exposed {
        return Err("other hosts can reach this server, so it needs a password");
    }
    if is_done {
        state.set_password(value);
    }
    Ok(())
}

fn yes_or_no(is_yes: bool) -> Vec<u8> {
    if is_yes { b"yes".to_vec() } else { b"no".to_vec() }
}

fn set_timing(state: &ServerState, value: &[u8], is_done: bool) -> Result<(), &'static str> {
    let is_yes = value.eq_ignore_ascii_case(b"yes");
    if !is_yes && !value.eq_ignore_ascii_case(b"no") {
        return Err("argument must be 'yes' or 'no'");
    }
    if is_done {
        state.tallies.set_timing(is_yes);
    }
    Ok(())
}

fn percentiles(state: &ServerState) -> Vec<u8> {
    let texts: Vec<String> = state.tallies.percentiles().iter().map(f64::to_string).collect();
    texts.join(" ").into_bytes()
}

fn set_percentiles(state: &ServerState, value: &[u8], is_done: bool) -> Result<(), &'static str> {
    let text = std::str::from_utf8(value).unwrap_or("?");
    let numbers: Result<Vec<f64>, _> = text.split_ascii_whitespace().map(str::parse).collect();
    let fits = |numbers: &Vec<f64>| {
        numbers.len() <= limits::PERCENTILES_MAX
            && numbers.iter().all(|number| (0.0..=100.0).contains(number))
    };
    let numbers =
        numbers.ok().filter(fits).ok_or("argument must be at most 16 percentages between 0 and 100")?;
    if is_done {
        state.tallies.set_percentiles(numbers);
    }
    Ok(())
}

/// CONFIG RESETSTAT.
pub(crate) fn reset_counters(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    dialogue.state.clear_counters();
    dialogue.reply.ok();
    Ok(())
}

pub(crate) fn get(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let is_asked =
        |name: &str| words.from(2).any(|pattern| matches(&pattern.to_ascii_lowercase(), name.as_bytes()));
    let found: Vec<_> = SETTINGS.iter().filter(|(name, ..)| is_asked(name)).collect();
    dialogue.reply.map(found.len());
    for (name, value, _) in found {
        dialogue.reply.bulk(name.as_bytes());
        dialogue.reply.bulk(&value(&dialogue.state));
    }
    Ok(())
}

/// Checks all settings before it changes the first one.
pub(crate) fn set(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    if words.len() % 2 != 0 {
        return Err(crate::command::wrong_number("config|set"));
    }
    for is_done in [false, true] {
        for at in (2..words.len()).step_by(2) {
            let (_, _, change) = SETTINGS.iter().find(|(name, ..)| words.is(at, name)).ok_or_else(|| {
                let text = b"ERR Unknown option or number of arguments for CONFIG SET - '";
                CommandError::Quoted([text, words.word(at), b"'"].concat())
            })?;
            let refused = match change {
                _ if (2..at)
                    .step_by(2)
                    .any(|before| words.word(before).eq_ignore_ascii_case(words.word(at))) =>
                {
                    Some("duplicate parameter")
                }
                Some(change) => change(&dialogue.state, words.word(at + 1), is_done).err(),
                None => Some("can't set immutable config"),
            };
            if let Some(reason) = refused {
                let name = String::from_utf8_lossy(words.word(at)).to_ascii_lowercase();
                return Err(CommandError::Told(format!(
                    "ERR CONFIG SET failed (possibly related to argument '{name}') - {reason}"
                )));
            }
        }
    }
    dialogue.reply.ok();
    Ok(())
}

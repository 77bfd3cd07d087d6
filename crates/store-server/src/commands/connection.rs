//! PING, ECHO, AUTH, HELLO, SELECT, QUIT and RESET.

use crate::command::wrong_number;
use crate::commands::clients::set_name;
use crate::dialogue::Dialogue;
use crate::error::{CommandError, NOT_AN_INTEGER, SYNTAX};
use crate::number::integer;
use crate::resp::reply::RespVersion;
use crate::resp::words::CommandWords;

/// The version of Redis whose protocol and commands the server speaks; clients ask for it.
pub(crate) const REDIS_VERSION: &str = "7.0.15";

pub(crate) fn ping(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    match words.len() {
        1 => dialogue.reply.simple("PONG"),
        2 => dialogue.reply.bulk(words.word(1)),
        _ => return Err(wrong_number("ping")),
    }
    Ok(())
}

pub(crate) fn echo(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    dialogue.reply.bulk(words.word(1));
    Ok(())
}

/// There is one user, `default`.
fn authenticate(dialogue: &mut Dialogue, user: &[u8], password: &[u8]) -> Result<(), CommandError> {
    let is_right =
        user == b"default" && (!dialogue.state.has_password() || dialogue.state.is_password(password));
    if !is_right {
        let text = "WRONGPASS invalid username-password pair or user is disabled.";
        return Err(CommandError::Said(text));
    }
    dialogue.is_authenticated = true;
    Ok(())
}

pub(crate) fn auth(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let (user, password) = match words.len() {
        2 if !dialogue.state.has_password() => {
            return Err(CommandError::Said(
                "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            ));
        }
        2 => (&b"default"[..], words.word(1)),
        3 => (words.word(1), words.word(2)),
        _ => return Err(SYNTAX),
    };
    authenticate(dialogue, user, password)?;
    dialogue.reply.ok();
    Ok(())
}

fn version(words: CommandWords<'_>) -> Result<Option<RespVersion>, CommandError> {
    let Some(word) = words.get(1) else { return Ok(None) };
    match integer(word) {
        Some(2) => Ok(Some(RespVersion::Two)),
        Some(3) => Ok(Some(RespVersion::Three)),
        Some(_) => Err(CommandError::Said("NOPROTO unsupported protocol version")),
        None => Err(CommandError::Said("ERR Protocol version is not an integer or out of range")),
    }
}

pub(crate) fn hello(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let version = version(words)?;
    let mut name = None;
    let mut at = 2;
    while at < words.len() {
        if words.is(at, "AUTH") && at + 2 < words.len() {
            authenticate(dialogue, words.word(at + 1), words.word(at + 2))?;
            at += 3;
        } else if words.is(at, "SETNAME") && at + 1 < words.len() {
            name = words.get(at + 1);
            at += 2;
        } else {
            let text = [b"ERR Syntax error in HELLO option '", words.word(at), b"'"];
            return Err(CommandError::Quoted(text.concat()));
        }
    }
    if !dialogue.is_authenticated {
        return Err(CommandError::Said(
            "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO AUTH <user> <pass> option can be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        set_name(dialogue, name)?;
    }
    if let Some(version) = version {
        dialogue.set_version(version);
    }
    greet(dialogue);
    Ok(())
}

fn greet(dialogue: &mut Dialogue) {
    let version = if dialogue.reply.version() == RespVersion::Two { 2 } else { 3 };
    let id = dialogue.entry.card.id as i64;
    let mode = dialogue.parts.mode();
    let reply = &mut dialogue.reply;
    reply.map(7);
    for (key, value) in [("server", "redis"), ("version", REDIS_VERSION)] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    for (key, value) in [("proto", version), ("id", id)] {
        reply.bulk(key.as_bytes());
        reply.integer(value);
    }
    for (key, value) in [("mode", mode), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"modules");
    reply.array(0);
}

pub(crate) fn select(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    match integer(words.word(1)) {
        Some(0) => dialogue.reply.ok(),
        Some(_) if dialogue.parts.cluster.is_some() => {
            return Err(CommandError::Said("ERR SELECT is not allowed in cluster mode"));
        }
        Some(_) => return Err(CommandError::Said("ERR DB index is out of range")),
        None => return Err(NOT_AN_INTEGER),
    }
    Ok(())
}

pub(crate) fn quit(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    dialogue.reply.ok();
    dialogue.close();
    Ok(())
}

pub(crate) fn reset(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    dialogue.reset();
    dialogue.reply.simple("RESET");
    Ok(())
}

//! COMMAND: the table of commands as clients see it.

use crate::command::{COMMANDS, CommandCall, CommandSpec, all_specs, command, short_name};
use crate::dialogue::Dialogue;
use crate::error::{CommandError, SYNTAX};
use crate::glob::matches;
use crate::resp::reply::ReplyWriter;
use crate::resp::words::CommandWords;

/// COMMAND without another word.
pub(crate) fn all(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    dialogue.reply.array(COMMANDS.len());
    COMMANDS.iter().for_each(|spec| describe(spec, &mut dialogue.reply));
    Ok(())
}

pub(crate) fn count(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    dialogue.reply.count(COMMANDS.len());
    Ok(())
}

pub(crate) fn info(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    if words.len() == 2 {
        return all(dialogue, words);
    }
    dialogue.reply.array(words.len() - 2);
    for name in words.from(2) {
        match named(name) {
            Some(spec) => describe(spec, &mut dialogue.reply),
            None => dialogue.reply.null(),
        }
    }
    Ok(())
}

/// COMMAND LIST, with the commands of containers as in `client|list`.
pub(crate) fn list(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let names = COMMANDS.iter().flat_map(|spec| std::iter::once(spec).chain(inner(spec)));
    let names: Vec<&[u8]> = names.map(|spec| spec.name.as_bytes()).collect();
    let pattern = words.get(4).unwrap_or(b"*").to_ascii_lowercase();
    let is_listed = match words.len() {
        2 => true,
        5 if words.is(2, "FILTERBY") && words.is(3, "PATTERN") => true,
        // There are no modules, and no categories of access control lists.
        5 if words.is(2, "FILTERBY") && (words.is(3, "MODULE") || words.is(3, "ACLCAT")) => false,
        _ => return Err(SYNTAX),
    };
    let listed: Vec<_> = names.into_iter().filter(|name| is_listed && matches(&pattern, name)).collect();
    dialogue.reply.array(listed.len());
    listed.iter().for_each(|name| dialogue.reply.bulk(name));
    Ok(())
}

pub(crate) fn docs(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let named: Vec<&CommandSpec> = match words.len() {
        2 => COMMANDS.iter().collect(),
        _ => words.from(2).filter_map(named).collect(),
    };
    dialogue.reply.map(named.len());
    named.iter().for_each(|spec| document(spec, &mut dialogue.reply));
    Ok(())
}

/// HELP of the container that the first word names.
pub(crate) fn help(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let commands = command(words.word(0)).map_or(&[][..], inner);
    dialogue.reply.array(1 + 2 * commands.len());
    let name = String::from_utf8_lossy(words.word(0)).to_ascii_uppercase();
    dialogue.reply.simple(&format!("{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"));
    for spec in commands {
        dialogue.reply.simple(&short_name(spec).to_ascii_uppercase());
        dialogue.reply.simple(&format!("    {}.", spec.summary));
    }
    Ok(())
}

/// Returns the command with this name, which is as `client|list` for one in a container.
fn named(name: &[u8]) -> Option<&'static CommandSpec> {
    all_specs().find(|spec| spec.name.as_bytes().eq_ignore_ascii_case(name))
}

fn inner(spec: &CommandSpec) -> &'static [CommandSpec] {
    match spec.call {
        CommandCall::Container(inner) => inner,
        _ => &[],
    }
}

/// Writes the ten parts of an element of COMMAND.
fn describe(spec: &CommandSpec, reply: &mut ReplyWriter) {
    let flags: Vec<&str> = spec.flags.split(' ').filter(|flag| !flag.is_empty()).collect();
    reply.array(10);
    reply.bulk(spec.name.as_bytes());
    reply.integer(spec.arity.into());
    reply.set(flags.len());
    flags.iter().for_each(|flag| reply.simple(flag));
    let (first, last, step) = spec.places;
    [first, last, step].iter().for_each(|place| reply.integer((*place).into()));
    // Categories of access control lists, tips, and key specifications: there are none.
    reply.set(0);
    reply.array(0);
    reply.array(0);
    reply.array(inner(spec).len());
    inner(spec).iter().for_each(|spec| describe(spec, reply));
}

fn document(spec: &CommandSpec, reply: &mut ReplyWriter) {
    let inner = inner(spec);
    reply.bulk(spec.name.as_bytes());
    reply.map(if inner.is_empty() { 3 } else { 4 });
    for (key, value) in [("summary", spec.summary), ("since", spec.since), ("group", spec.group)] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    if !inner.is_empty() {
        reply.bulk(b"subcommands");
        reply.map(inner.len());
        inner.iter().for_each(|spec| document(spec, reply));
    }
}

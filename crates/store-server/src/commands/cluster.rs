//! CLUSTER, READONLY, READWRITE, ASKING, ROLE and WAIT: what clients of Redis Cluster ask about the servers of a store.
//!
//! A server is a node, and always a master: copies answer no clients, so they are no nodes of their own. ROLE and INFO name the
//! servers that have one.

use std::collections::BTreeSet;
use std::fmt::Write;

use caravan_cluster::{Member, Part, SLOTS, SlotRange, slot_of};

use crate::commands::keys::FoundKeys;
use crate::commands::table;
use crate::dialogue::Dialogue;
use crate::error::{CommandError, NOT_AN_INTEGER};
use crate::number::integer;
use crate::parts::PartTable;
use crate::resp::reply::ReplyWriter;
use crate::resp::words::CommandWords;
use crate::slots::{ClusterPlace, host_and_port};

const DISABLED: CommandError = CommandError::Said("ERR This instance has cluster support disabled");
const INVALID_SLOT: CommandError = CommandError::Said("ERR Invalid slot");
const INVALID_SLOT_OR_COUNT: CommandError = CommandError::Said("ERR Invalid slot or number of keys");

fn cluster(parts: &PartTable) -> Result<&ClusterPlace, CommandError> {
    parts.cluster.as_deref().ok_or(DISABLED)
}

/// READONLY, READWRITE and ASKING: all that is read and written is of the primary, wherever the client found it.
pub(crate) fn accept(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    cluster(&dialogue.parts)?;
    dialogue.reply.ok();
    Ok(())
}

pub(crate) fn help(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    cluster(&dialogue.parts)?;
    table::help(dialogue, words)
}

pub(crate) fn myid(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let cluster = cluster(&dialogue.parts)?;
    let own = cluster.configuration.member(cluster.own).map(|own| cluster.node_id(own));
    dialogue.reply.bulk(own.unwrap_or_default().as_bytes());
    Ok(())
}

pub(crate) fn keyslot(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    cluster(&dialogue.parts)?;
    dialogue.reply.integer(slot_of(words.word(2)).into());
    Ok(())
}

/// Returns the keys of a hash slot. There is no list of them, so this walks through all keys of the slot's part.
fn keys_in_slot(parts: &PartTable, slot: u16) -> Result<Vec<Vec<u8>>, CommandError> {
    let mut found = FoundKeys::default();
    let part = cluster(parts)?.part_of_slot(slot);
    if let Some(index) = parts.index(part) {
        found.scan(&parts.served[index].store, |key| slot_of(key) == slot)?;
    }
    Ok(found.once())
}

fn slot(number: i64) -> Option<u16> {
    u16::try_from(number).ok().filter(|slot| *slot < SLOTS)
}

pub(crate) fn countkeysinslot(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    cluster(&dialogue.parts)?;
    let slot = slot(integer(words.word(2)).ok_or(NOT_AN_INTEGER)?).ok_or(INVALID_SLOT)?;
    let keys = keys_in_slot(&dialogue.parts, slot)?;
    dialogue.reply.count(keys.len());
    Ok(())
}

pub(crate) fn getkeysinslot(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    cluster(&dialogue.parts)?;
    let number = |at| integer(words.word(at)).ok_or(NOT_AN_INTEGER);
    let (number, most) = (number(2)?, number(3)?);
    let most = usize::try_from(most).map_err(|_| INVALID_SLOT_OR_COUNT)?;
    let mut keys = keys_in_slot(&dialogue.parts, slot(number).ok_or(INVALID_SLOT_OR_COUNT)?)?;
    keys.truncate(most);
    dialogue.reply.array(keys.len());
    keys.iter().for_each(|key| dialogue.reply.bulk(key));
    Ok(())
}

/// Returns the hash slots of parts, in order. Ranges that touch are one.
fn slots_of<'p>(parts: impl Iterator<Item = &'p Part>) -> Vec<SlotRange> {
    let mut ranges: Vec<SlotRange> = parts.flat_map(|part| part.slots.iter().copied()).collect();
    ranges.sort_by_key(|range| range.first);
    ranges.dedup_by(|next, range| {
        let touches = range.last + 1 == next.first;
        if touches {
            range.last = next.last;
        }
        touches
    });
    ranges
}

/// CLUSTER SLOTS: hash slots in order, each range with its node.
pub(crate) fn slots(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let cluster = cluster(&dialogue.parts)?;
    let mut ranges: Vec<(SlotRange, &Member)> = Vec::new();
    for member in &cluster.configuration.members {
        ranges.extend(slots_of(cluster.parts_of(member.id)).into_iter().map(|range| (range, member)));
    }
    ranges.sort_by_key(|(range, _)| range.first);
    dialogue.reply.array(ranges.len());
    for (range, member) in ranges {
        let (host, port) = host_and_port(&member.client_address);
        let reply = &mut dialogue.reply;
        reply.array(3);
        reply.integer(range.first.into());
        reply.integer(range.last.into());
        reply.array(4);
        reply.bulk(host.as_bytes());
        reply.integer(port.into());
        reply.bulk(cluster.node_id(member).as_bytes());
        // No further names of the node.
        reply.map(0);
    }
    Ok(())
}

/// CLUSTER SHARDS: a shard for each node.
pub(crate) fn shards(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let cluster = cluster(&dialogue.parts)?;
    let reply = &mut dialogue.reply;
    reply.array(cluster.configuration.members.len());
    for member in &cluster.configuration.members {
        let ranges = slots_of(cluster.parts_of(member.id));
        reply.map(2);
        reply.bulk(b"slots");
        reply.array(2 * ranges.len());
        let bounds = ranges.iter().flat_map(|range| [range.first, range.last]);
        bounds.for_each(|bound| reply.integer(bound.into()));
        reply.bulk(b"nodes");
        reply.array(1);
        shard_node(cluster, member, reply);
    }
    Ok(())
}

fn shard_node(cluster: &ClusterPlace, member: &Member, reply: &mut ReplyWriter) {
    let (host, port) = host_and_port(&member.client_address);
    reply.map(7);
    reply.bulk(b"id");
    reply.bulk(cluster.node_id(member).as_bytes());
    reply.bulk(b"port");
    reply.integer(port.into());
    for (key, value) in [("ip", host), ("endpoint", host), ("role", "master")] {
        reply.bulk(key.as_bytes());
        reply.bulk(value.as_bytes());
    }
    reply.bulk(b"replication-offset");
    reply.integer(0);
    reply.bulk(b"health");
    reply.bulk(b"online");
}

/// CLUSTER NODES: a line for each node.
pub(crate) fn nodes(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let cluster = cluster(&dialogue.parts)?;
    let mut text = String::new();
    for member in &cluster.configuration.members {
        let id = cluster.node_id(member);
        let (host, port) = host_and_port(&member.client_address);
        let flags = if member.id == cluster.own { "myself,master" } else { "master" };
        let epoch = node_epoch(cluster, member);
        // Members speak with each other by other means than Redis's, so there is no port of the bus. Writing to a String
        // cannot fail.
        let _ = write!(text, "{id} {host}:{port}@0 {flags} - 0 0 {epoch} connected");
        for SlotRange { first, last } in slots_of(cluster.parts_of(member.id)) {
            let _ = if first == last { write!(text, " {first}") } else { write!(text, " {first}-{last}") };
        }
        text.push('\n');
    }
    dialogue.reply.verbatim(&text);
    Ok(())
}

/// Returns the epoch in which a node last got a part.
fn node_epoch(cluster: &ClusterPlace, member: &Member) -> u64 {
    cluster.parts_of(member.id).map(|part| part.primary_since).max().unwrap_or(0)
}

/// CLUSTER INFO.
pub(crate) fn info(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let cluster = cluster(&dialogue.parts)?;
    let configuration = &cluster.configuration;
    let lost = configuration.parts.iter().filter(|part| part.primary.is_none());
    let lost: u16 = slots_of(lost).iter().map(|range| range.last - range.first + 1).sum();
    let masters: BTreeSet<_> = configuration.parts.iter().filter_map(|part| part.primary).collect();
    let own_epoch = configuration.member(cluster.own).map_or(0, |own| node_epoch(cluster, own));
    let lines = [
        ("cluster_state", (if lost == 0 { "ok" } else { "fail" }).to_owned()),
        ("cluster_slots_assigned", SLOTS.to_string()),
        ("cluster_slots_ok", (SLOTS - lost).to_string()),
        ("cluster_slots_pfail", 0.to_string()),
        ("cluster_slots_fail", lost.to_string()),
        ("cluster_known_nodes", configuration.members.len().to_string()),
        ("cluster_size", masters.len().to_string()),
        ("cluster_current_epoch", configuration.epoch.to_string()),
        ("cluster_my_epoch", own_epoch.to_string()),
        ("cluster_stats_messages_sent", 0.to_string()),
        ("cluster_stats_messages_received", 0.to_string()),
        ("total_cluster_links_buffer_limit_exceeded", 0.to_string()),
    ];
    let text: String = lines.into_iter().map(|(name, value)| format!("{name}:{value}\r\n")).collect();
    dialogue.reply.verbatim(&text);
    Ok(())
}

/// `CARAVAN.PARTS [HERE]`: a line `PART FIRST LAST` for each range of hash slots, and lines `SERVER ADDRESS` for each server. HERE says that
/// the client is of this host.
pub(crate) fn parts(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    let mut text = String::new();
    // Writing into a string does not fail.
    match dialogue.parts.cluster.as_deref() {
        None => _ = writeln!(text, "0 0 {}", SLOTS - 1),
        Some(cluster) => {
            for part in &cluster.configuration.parts {
                for range in &part.slots {
                    let _ = writeln!(text, "{} {} {}", part.id, range.first, range.last);
                }
            }
            for member in &cluster.configuration.members {
                let sockets = if words.len() > 1 { cluster.sockets_here(member) } else { Vec::new() };
                for address in sockets.iter().chain([&member.client_address]) {
                    let _ = writeln!(text, "SERVER {address}");
                }
            }
        }
    }
    dialogue.reply.bulk(text.as_bytes());
    Ok(())
}

/// CARAVAN.STATUS: what `caravan store status` shows.
pub(crate) fn status(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let cluster = cluster(&dialogue.parts)?;
    let door = dialogue.state.parts.door().ok_or(DISABLED)?;
    let status = serde_json::to_vec(&door.status(&cluster.configuration));
    dialogue.reply.bulk(&status.unwrap_or_default());
    Ok(())
}

/// ROLE: a master, and who has copies of what it serves.
pub(crate) fn role(dialogue: &mut Dialogue, _: CommandWords<'_>) -> Result<(), CommandError> {
    let holders = dialogue.parts.cluster.as_deref().map_or_else(Vec::new, ClusterPlace::copy_holders);
    let reply = &mut dialogue.reply;
    reply.array(3);
    reply.bulk(b"master");
    reply.integer(0);
    reply.array(holders.len());
    for member in holders {
        let (host, port) = host_and_port(&member.client_address);
        reply.array(3);
        reply.bulk(host.as_bytes());
        reply.bulk(port.to_string().as_bytes());
        reply.bulk(b"0");
    }
    Ok(())
}

/// WAIT: a write is answered once all copies of its part have it, so there is nothing to wait for. Returns the number of copies
/// that each part of this server has, beside the part itself.
pub(crate) fn wait(dialogue: &mut Dialogue, words: CommandWords<'_>) -> Result<(), CommandError> {
    integer(words.word(1)).ok_or(NOT_AN_INTEGER)?;
    let timeout = integer(words.word(2));
    if timeout.ok_or(CommandError::Said("ERR timeout is not an integer or out of range"))? < 0 {
        return Err(CommandError::Said("ERR timeout is negative"));
    }
    let copies =
        dialogue.parts.cluster.as_deref().map_or(0, |cluster| {
            cluster.parts_of(cluster.own).map(|part| part.backups.len()).min().unwrap_or(0)
        });
    dialogue.reply.count(copies);
    Ok(())
}

//! The check of a configuration: nothing of what a file or etcd holds is believed.

use std::collections::BTreeSet;

use super::{Configuration, FORM, Member, MemberId, Part, PartId};
use crate::error::ClusterError;
use crate::limits;
use caravan_store::SLOTS;

pub(super) fn from_json(text: &str) -> Result<Configuration, ClusterError> {
    if text.len() > limits::CONFIGURATION_BYTES_MAX {
        return Err(damaged(format!("it has more than {} bytes", limits::CONFIGURATION_BYTES_MAX)));
    }
    // The form first: the fields of a newer one may differ.
    #[derive(serde::Deserialize)]
    struct Form {
        form: u32,
    }
    let form: Form = serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    if form.form != FORM {
        return Err(ClusterError::Form { found: form.form, known: FORM });
    }
    let configuration: Configuration =
        serde_json::from_str(text).map_err(|error| damaged(error.to_string()))?;
    configuration.check().map(|()| configuration)
}

pub(super) fn check(it: &Configuration) -> Result<(), ClusterError> {
    name(&it.store).map_err(|reason| damaged(format!("the name of the store {reason}")))?;
    require(it.epoch > 0, || "the epoch is 0".into())?;
    require((1..=limits::COPIES_MAX).contains(&it.copies), || {
        format!("{} copies are wanted; it takes 1 to {}", it.copies, limits::COPIES_MAX)
    })?;
    let lease = it.times().lease();
    require((limits::LEASE_MIN..=limits::LEASE_MAX).contains(&lease), || {
        let (least, most) = (limits::LEASE_MIN.as_millis(), limits::LEASE_MAX.as_millis());
        format!("the lease is {} ms; it takes {least} to {most} ms", it.lease_ms)
    })?;
    require(it.unblocked <= it.epoch, || "a later epoch than its own is unblocked".into())?;
    members(it)?;
    slots(it)?;
    it.parts.iter().try_for_each(|one| part(it, one))
}

fn members(it: &Configuration) -> Result<(), ClusterError> {
    require(!it.members.is_empty(), || "it has no members".into())?;
    require(it.members.len() <= limits::MEMBERS_MAX, || {
        format!("it has more than {} members", limits::MEMBERS_MAX)
    })?;
    require(it.members.is_sorted_by(|a, b| a.id < b.id), || "the members are not in order".into())?;
    require(it.member(it.manager).is_some(), || format!("the manager, {}, is no member", it.manager))?;
    it.members.iter().try_for_each(|member| each_member(it, member))?;
    type Word = fn(&Member) -> &str;
    let words: [(&str, Word); 3] = [
        ("name", |member| &member.name),
        ("client_address", |member| &member.client_address),
        ("member_address", |member| &member.member_address),
    ];
    for (what, word) in words {
        let mut known = BTreeSet::new();
        let twice = it.members.iter().find(|member| !known.insert(word(member)));
        require(twice.is_none(), || format!("two members have the {what} {:?}", twice.map_or("", word)))?;
    }
    require(it.former.len() <= 2 * limits::MEMBERS_MAX, || "it has too many former members".into())?;
    let back = it.former.iter().find(|former| it.has(former.identity) || former.identity.since > it.epoch);
    require(back.is_none(), || "a former member is a member still".into())
}

fn each_member(it: &Configuration, member: &Member) -> Result<(), ClusterError> {
    let of = |what: &str, reason: String| damaged(format!("the {what} of member {} {reason}", member.id));
    name(&member.name).map_err(|reason| of("name", reason))?;
    address(&member.client_address).map_err(|reason| of("client_address", reason))?;
    address(&member.member_address).map_err(|reason| of("member_address", reason))?;
    require((1..=it.epoch).contains(&member.since), || {
        format!("member {} joined in epoch {}, after the configuration's", member.id, member.since)
    })
}

/// Each slot belongs to exactly one part.
fn slots(it: &Configuration) -> Result<(), ClusterError> {
    require((1..=limits::PARTS_MAX).contains(&it.parts.len()), || {
        format!("it has {} parts; it takes 1 to {}", it.parts.len(), limits::PARTS_MAX)
    })?;
    require(it.parts.is_sorted_by(|a, b| a.id < b.id), || "the parts are not in order".into())?;
    let mut ranges: Vec<_> =
        it.parts.iter().flat_map(|part| part.slots.iter().map(move |range| (*range, part.id))).collect();
    ranges.sort_unstable();
    let mut next = 0;
    for (range, part) in ranges {
        require(range.first >= next, || {
            format!("slot {} belongs to part {part} and to another one", range.first)
        })?;
        require(range.first == next, || format!("slot {next} belongs to no part"))?;
        next = range.last + 1;
    }
    require(next == SLOTS, || format!("slot {next} belongs to no part"))?;
    let empty = it.parts.iter().find(|part| part.slots.is_empty());
    require(empty.is_none(), || format!("part {} has no slots", empty.map_or(PartId(0), |part| part.id)))
}

fn part(it: &Configuration, part: &Part) -> Result<(), ClusterError> {
    let of = |reason: String| format!("part {} {reason}", part.id);
    require(part.primary.is_some() != part.lost.is_some(), || {
        of("has neither a primary nor been lost, or both".into())
    })?;
    let holders: Vec<MemberId> = part.holders().collect();
    require(part.primary.is_some() || holders.is_empty(), || of("is lost, but has copies".into()))?;
    let stranger = holders.iter().find(|holder| it.member(**holder).is_none());
    require(stranger.is_none(), || {
        of(format!("has a copy at {}, which is no member", stranger.map_or(0, |stranger| stranger.0)))
    })?;
    let distinct: BTreeSet<_> = holders.iter().collect();
    require(distinct.len() == holders.len(), || of("has two copies at one member".into()))?;
    require(part.complete().count() <= usize::from(it.copies), || of("has more copies than wanted".into()))?;
    require(part.made || (part.backups.is_empty() && part.lost.is_none()), || {
        of("was never made, but has backups or was lost".into())
    })?;
    let since = part.lost.as_ref().map_or(0, |lost| lost.since).max(part.primary_since);
    require((1..=it.epoch).contains(&since), || of("changed in an epoch after the configuration's".into()))?;
    require(
        part.lost.as_ref().is_none_or(|lost| !lost.holders.is_empty()),
        || of("was lost by nobody".into()),
    )
}

/// A name: letters, digits, `-`, `_` and `.`.
fn name(text: &str) -> Result<(), String> {
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    if !(1..=limits::NAME_BYTES_MAX).contains(&text.len()) || !text.bytes().all(is_name) {
        return Err(format!(
            "is {text:?}; it takes 1 to {} letters, digits, dashes, dots and underscores",
            limits::NAME_BYTES_MAX
        ));
    }
    Ok(())
}

fn address(text: &str) -> Result<(), String> {
    if !(1..=limits::ADDRESS_BYTES_MAX).contains(&text.len())
        || !text.bytes().all(|byte| byte.is_ascii_graphic())
    {
        return Err(format!(
            "is {text:?}; it takes 1 to {} characters without spaces",
            limits::ADDRESS_BYTES_MAX
        ));
    }
    Ok(())
}

fn require(holds: bool, reason: impl FnOnce() -> String) -> Result<(), ClusterError> {
    if holds { Ok(()) } else { Err(damaged(reason())) }
}

fn damaged(reason: String) -> ClusterError {
    ClusterError::Damaged(reason)
}

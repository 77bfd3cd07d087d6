//! The configuration of a store of several servers: who is a member, and who has which part, in which epoch.
//!
//! A configuration is a value. Its epoch grows by one with each change, and only a compare-and-swap of the register that
//! holds it makes a change ([`ConfigurationRegister`](crate::ConfigurationRegister)). Reading one checks all that is
//! listed at [`Configuration`].

mod check;

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use caravan_store::SLOTS;
use serde::{Deserialize, Serialize};

use crate::error::ClusterError;
use crate::limits;
use crate::slots::SlotRange;
use crate::times::LeaseTimes;

/// The form of the JSON. A program refuses a form that it does not know.
const FORM: u32 = 1;

/// A store of several servers at one epoch.
///
/// Invariants, which [`from_json`](Self::from_json) checks:
/// - members and parts are in the order of their numbers, and no number, name or address of a member is there twice;
/// - the manager is a member;
/// - the lease is between [`LEASE_MIN`](limits::LEASE_MIN) and [`LEASE_MAX`](limits::LEASE_MAX);
/// - each slot belongs to exactly one part;
/// - a part either has a primary or is lost, and no member has two copies of it;
/// - every holder of a copy is a member, and a part has at most `copies` complete ones;
/// - no part got its primary, and no member joined, after the epoch; former members are not members.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// The form of the JSON.
    form: u32,
    /// The name of the store.
    pub store: String,
    /// Which store of this name it is.
    pub instance: StoreInstance,
    /// Grows by one with each change.
    pub epoch: u64,
    /// How many complete copies each part should have, that of its primary included.
    pub copies: u8,
    /// How long a lease lasts, in milliseconds.
    pub lease_ms: u64,
    /// The member that grants leases to all others.
    pub manager: MemberId,
    /// The servers of the store.
    pub members: Vec<Member>,
    /// What the store consists of.
    pub parts: Vec<Part>,
    /// The newest epoch that was known to be unblocked when this configuration was made. Members that joined later had no
    /// part in it.
    pub unblocked: u64,
    /// Who has left the store since that epoch: their leases may not have ended yet.
    pub former: Vec<FormerMember>,
}

/// Which store of a name it is: a random number, in JSON 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct StoreInstance(pub u128);

/// The number of a member. It may belong to another server in a later epoch: see [`MemberIdentity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct MemberId(pub u16);

/// The number of a part, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PartId(pub u16);

/// One membership of a server: a server that was expelled and comes back has another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberIdentity {
    /// The member's number.
    pub id: MemberId,
    /// The epoch in which it joined.
    pub since: u64,
}

/// A server of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its number.
    pub id: MemberId,
    /// The epoch in which it joined.
    pub since: u64,
    /// Its name, which people use.
    pub name: String,
    /// Where clients reach it.
    pub client_address: String,
    /// Where other members reach it.
    pub member_address: String,
    /// Whether it stays.
    pub state: MemberState,
}

/// Whether a member stays.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum MemberState {
    /// It has its share of the parts, or gets it.
    Joined,
    /// It hands its parts over, and is no member any more when it has none left.
    Leaving,
}

/// A part of the store: one memory with the keys of its slots, and copies of that memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// Its number.
    pub id: PartId,
    /// The hash slots of its keys.
    pub slots: Vec<SlotRange>,
    /// The owner of the memory; none if the part is lost.
    pub primary: Option<MemberId>,
    /// The epoch from which on the primary is it. It serves once that epoch is unblocked.
    pub primary_since: u64,
    /// Whether the memory was made once. Only while it was not may a primary make it: later, an empty memory would be a
    /// loss that nobody is told of.
    pub made: bool,
    /// Who has a complete copy. Each has every commit that was acknowledged, and may become the primary. A new primary
    /// brings them to the end of its own stream before it acknowledges a commit, or proposes to refill them.
    pub backups: Vec<MemberId>,
    /// Whose copy is being filled.
    pub filling: Vec<FillingCopy>,
    /// Set if no complete copy is left at a member.
    pub lost: Option<LostPart>,
}

/// A copy that is being filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FillingCopy {
    /// Who has it.
    pub member: MemberId,
    /// The epoch in which this filling began. A copy that has to be filled anew has another one.
    pub since: u64,
}

/// What became of a part without a complete copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostPart {
    /// The epoch in which its last complete copy was lost.
    pub since: u64,
    /// Who had the last complete copies. The part is whole again when one of them comes back with its memory.
    pub holders: Vec<FormerHolder>,
}

/// A former member with a complete copy of a lost part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormerHolder {
    /// What its name was.
    pub name: String,
    /// Which membership that was.
    pub identity: MemberIdentity,
}

/// A server that is no member any more, and whose lease may not have ended yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FormerMember {
    /// Which membership that was.
    pub identity: MemberIdentity,
    /// Whether its keeper has testified to its end, or it has said itself that it serves nothing: no lease is left then.
    pub testified: bool,
    /// Whether it was the manager of the last unblocked epoch: it has its lease from the other members.
    pub was_manager: bool,
}

/// A server that wants to be a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewMember {
    /// Its name.
    pub name: String,
    /// Where clients reach it.
    pub client_address: String,
    /// Where other members reach it.
    pub member_address: String,
    /// Parts of which it had a complete copy as a former member, and has the memory still.
    pub kept: Vec<(PartId, MemberIdentity)>,
}

impl Configuration {
    /// Makes the first configuration of a new store: `parts` parts, whose primaries are spread evenly. Their memories are
    /// to be made, and their backups to be filled, by [`placement`](crate::placement).
    pub fn create(
        store: &str,
        instance: StoreInstance,
        copies: u8,
        parts: u16,
        members: &[NewMember],
    ) -> Result<Self, ClusterError> {
        let member = |(id, new): (usize, &NewMember)| new.as_member(MemberId(id as u16), 1);
        let part = |(id, slots): (usize, SlotRange)| Part {
            id: PartId(id as u16),
            slots: vec![slots],
            primary: Some(MemberId((id % members.len().max(1)) as u16)),
            primary_since: 1,
            made: false,
            backups: Vec::new(),
            filling: Vec::new(),
            lost: None,
        };
        let configuration = Self {
            form: FORM,
            store: store.to_owned(),
            instance,
            epoch: 1,
            copies,
            lease_ms: limits::LEASE_DEFAULT.as_millis() as u64,
            manager: MemberId(0),
            members: members.iter().take(limits::MEMBERS_MAX + 1).enumerate().map(member).collect(),
            parts: SlotRange::divide(parts).into_iter().enumerate().map(part).collect(),
            unblocked: 1,
            former: Vec::new(),
        };
        configuration.check().map(|()| configuration)
    }

    /// Sets the lease, in whole milliseconds. Only before the store is made: members that count with different leases would
    /// serve a part twice.
    pub fn with_lease(mut self, lease: Duration) -> Result<Self, ClusterError> {
        self.lease_ms = lease.as_millis() as u64;
        self.check().map(|()| self)
    }

    /// Returns how long members wait for each other.
    pub fn times(&self) -> LeaseTimes {
        LeaseTimes::of(Duration::from_millis(self.lease_ms))
    }

    /// Reads a configuration and checks it completely.
    pub fn from_json(text: &str) -> Result<Self, ClusterError> {
        check::from_json(text)
    }

    /// Returns the configuration as JSON, in lines.
    pub fn to_json(&self) -> String {
        serde_json::to_string_pretty(self).unwrap_or_default()
    }

    /// Checks the invariants.
    pub fn check(&self) -> Result<(), ClusterError> {
        check::check(self)
    }

    /// Returns the member of a number.
    pub fn member(&self, id: MemberId) -> Option<&Member> {
        self.members.binary_search_by_key(&id, |member| member.id).ok().map(|index| &self.members[index])
    }

    /// Returns the member of a name.
    pub fn member_by_name(&self, name: &str) -> Option<&Member> {
        self.members.iter().find(|member| member.name == name)
    }

    /// Says whether this membership lasts.
    pub fn has(&self, identity: MemberIdentity) -> bool {
        self.member(identity.id).is_some_and(|member| member.since == identity.since)
    }

    /// Returns the part of a number.
    pub fn part(&self, id: PartId) -> Option<&Part> {
        self.parts.binary_search_by_key(&id, |part| part.id).ok().map(|index| &self.parts[index])
    }

    /// Returns which part each slot belongs to, to look keys up by [`slot_of`](crate::slot_of).
    pub fn slot_map(&self) -> SlotMap {
        let mut parts = vec![PartId(0); usize::from(SLOTS)].into_boxed_slice();
        for part in &self.parts {
            for range in &part.slots {
                parts[usize::from(range.first)..=usize::from(range.last)].fill(part.id);
            }
        }
        SlotMap(parts)
    }

    /// Returns the members in the order in which they take over from a silent manager: those that stay before those that
    /// leave, each in a circle that begins behind the manager.
    pub fn successors(&self) -> Vec<MemberId> {
        let mut others: Vec<_> = self.members.iter().filter(|member| member.id != self.manager).collect();
        others.sort_by_key(|member| {
            (member.state == MemberState::Leaving, member.id.0.wrapping_sub(self.manager.0))
        });
        others.iter().map(|member| member.id).collect()
    }

    /// Returns the numbers of the members.
    pub fn member_ids(&self) -> BTreeSet<MemberId> {
        self.members.iter().map(|member| member.id).collect()
    }
}

impl Part {
    /// Returns who has a complete copy, the primary first.
    pub fn complete(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.primary.into_iter().chain(self.backups.iter().copied())
    }

    /// Returns who has a copy, complete or not, the primary first.
    pub fn holders(&self) -> impl Iterator<Item = MemberId> + '_ {
        self.complete().chain(self.filling.iter().map(|copy| copy.member))
    }
}

impl Member {
    /// Returns which membership this is.
    pub fn identity(&self) -> MemberIdentity {
        MemberIdentity { id: self.id, since: self.since }
    }
}

impl NewMember {
    pub(crate) fn as_member(&self, id: MemberId, since: u64) -> Member {
        Member {
            id,
            since,
            name: self.name.clone(),
            client_address: self.client_address.clone(),
            member_address: self.member_address.clone(),
            state: MemberState::Joined,
        }
    }
}

/// Which part each hash slot belongs to.
#[derive(Clone, PartialEq, Eq)]
pub struct SlotMap(Box<[PartId]>);

impl SlotMap {
    /// Returns the part of a slot; slots are numbers below [`SLOTS`].
    pub fn part(&self, slot: u16) -> PartId {
        self.0[usize::from(slot % SLOTS)]
    }
}

impl fmt::Debug for SlotMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlotMap").finish_non_exhaustive()
    }
}

impl fmt::Display for MemberId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for PartId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl StoreInstance {
    /// Returns a random number for a new store.
    pub fn random() -> Result<Self, ClusterError> {
        crate::register::random_bytes().map(|bytes| Self(u128::from_le_bytes(bytes)))
    }
}

impl fmt::Display for StoreInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StoreInstance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl TryFrom<String> for StoreInstance {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        let number = u128::from_str_radix(&text, 16).ok().map(Self);
        let number = number.filter(|number| number.to_string() == text);
        number
            .ok_or_else(|| format!("{text:?} is not the number of a store's instance, 32 hexadecimal digits"))
    }
}

impl From<StoreInstance> for String {
    fn from(instance: StoreInstance) -> Self {
        instance.to_string()
    }
}

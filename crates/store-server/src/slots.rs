//! Where the keys of a cluster are: hash slots, and what a server says of keys that it does not serve, in Redis's words.

use crate::member::address;
use caravan_cluster::{Configuration, Member, MemberId, Part, PartId, SlotMap, slot_of};

/// A configuration as a member of the cluster uses it.
#[derive(Debug)]
pub(crate) struct ClusterPlace {
    pub(crate) configuration: Configuration,
    /// The member that this server is.
    pub(crate) own: MemberId,
    slots: SlotMap,
}

/// Why a request is not served here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NotServed {
    /// The keys are of several parts.
    Apart,
    /// Another server has the part of this hash slot.
    Moved { slot: u16, address: String },
    /// The part of the hash slot has no primary.
    Lost,
    /// The part is this server's, which does not have it yet, or not any more.
    OnTheWay,
    /// Another server has the part; for a client of this host, its sockets here come before its address.
    PartMoved { part: PartId, address: String },
    /// The part is this server's, which does not have it yet, or not any more.
    PartOnTheWay(PartId),
    /// The part has no primary.
    PartLost(PartId),
    /// There is no such part.
    NoPart(PartId),
    /// The store has several parts, and the request names none.
    WhichPart,
}

impl NotServed {
    /// Returns the error as a client gets it.
    pub(crate) fn words(&self) -> String {
        match self {
            Self::Apart => "CROSSSLOT Keys in request don't hash to the same slot".to_owned(),
            Self::Moved { slot, address } => format!("MOVED {slot} {address}"),
            Self::Lost => "CLUSTERDOWN Hash slot not served".to_owned(),
            Self::OnTheWay => "TRYAGAIN the part of this key is being taken over: try again".to_owned(),
            Self::PartOnTheWay(part) => format!("TRYAGAIN the part {part} is being taken over: try again"),
            Self::PartMoved { part, address } => format!("MOVED PART {part} {address}"),
            Self::PartLost(part) => {
                format!("CLUSTERDOWN part {part} of this store is lost: no server has a complete copy of it")
            }
            Self::NoPart(part) => format!("ERR this store has no part {part}"),
            Self::WhichPart => {
                "ERR this store has several parts: say which one with PART and its number".to_owned()
            }
        }
    }
}

impl ClusterPlace {
    pub(crate) fn new(configuration: Configuration, own: MemberId) -> Self {
        let slots = configuration.slot_map();
        Self { configuration, own, slots }
    }

    /// Returns the part of all these keys, and the hash slot of the first one; `None` without a key.
    pub(crate) fn part_of<'k>(
        &self,
        keys: impl Iterator<Item = &'k [u8]>,
    ) -> Result<Option<(u16, PartId)>, NotServed> {
        let mut found: Option<(u16, PartId)> = None;
        for key in keys {
            let slot = slot_of(key);
            let part = self.slots.part(slot);
            match found {
                None => found = Some((slot, part)),
                Some((_, first)) if first == part => {}
                Some(_) => return Err(NotServed::Apart),
            }
        }
        Ok(found)
    }

    /// Returns whether the part of one of these keys has no primary.
    pub(crate) fn has_lost<'k>(&self, mut keys: impl Iterator<Item = &'k [u8]>) -> bool {
        let primary = |key| self.configuration.part(self.slots.part(slot_of(key)))?.primary;
        keys.any(|key| primary(key).is_none())
    }

    /// Returns the part of a hash slot.
    pub(crate) fn part_of_slot(&self, slot: u16) -> PartId {
        self.slots.part(slot)
    }

    /// Says of a hash slot where its part is, which this server does not serve.
    pub(crate) fn elsewhere(&self, slot: u16, part: PartId) -> NotServed {
        match self.part_elsewhere(part) {
            NotServed::PartMoved { address, .. } => {
                let (host, port) = host_and_port(&address);
                NotServed::Moved { slot, address: format!("{host}:{port}") }
            }
            NotServed::PartOnTheWay(_) => NotServed::OnTheWay,
            _ => NotServed::Lost,
        }
    }

    /// Says the same to a client of this host.
    pub(crate) fn part_elsewhere_here(&self, part: PartId) -> NotServed {
        match self.part_elsewhere(part) {
            NotServed::PartMoved { part, address } => {
                let primary = self.configuration.part(part).and_then(|part| part.primary);
                let member = primary.and_then(|primary| self.configuration.member(primary));
                let mut addresses = member.map_or_else(Vec::new, |member| self.sockets_here(member));
                addresses.push(address);
                NotServed::PartMoved { part, address: addresses.join(" ") }
            }
            other => other,
        }
    }

    /// Says where a part is, which this server does not serve.
    pub(crate) fn part_elsewhere(&self, part: PartId) -> NotServed {
        let Some(found) = self.configuration.part(part) else { return NotServed::NoPart(part) };
        match found.primary {
            Some(primary) if primary == self.own => NotServed::PartOnTheWay(part),
            primary => match primary.and_then(|primary| self.configuration.member(primary)) {
                Some(member) => NotServed::PartMoved { part, address: member.client_address.clone() },
                None => NotServed::PartLost(part),
            },
        }
    }

    /// Returns the sockets of this host at which a member is reached, if it is of this host.
    pub(crate) fn sockets_here(&self, member: &Member) -> Vec<String> {
        let own = self.configuration.member(self.own).and_then(|own| address::host_of(&own.member_address));
        let all = own.map_or_else(Vec::new, |host| address::reachable(&member.member_address, host));
        all.into_iter().filter(|address| address.starts_with("unix:")).collect()
    }

    /// Returns the part of a store that has no other one.
    pub(crate) fn only_part(&self) -> Result<PartId, NotServed> {
        match &self.configuration.parts[..] {
            [part] => Ok(part.id),
            _ => Err(NotServed::WhichPart),
        }
    }

    /// Returns the parts of which a member is the primary.
    pub(crate) fn parts_of(&self, member: MemberId) -> impl Iterator<Item = &Part> {
        self.configuration.parts.iter().filter(move |part| part.primary == Some(member))
    }

    /// Returns the members that have a complete copy of one of this server's parts.
    pub(crate) fn copy_holders(&self) -> Vec<&Member> {
        let holds = |member: &&Member| self.parts_of(self.own).any(|part| part.backups.contains(&member.id));
        self.configuration.members.iter().filter(holds).collect()
    }

    /// Returns the name of a member as Redis's tools know it: 40 hexadecimal digits, others for each membership.
    pub(crate) fn node_id(&self, member: &Member) -> String {
        let since = member.since & 0xffff;
        format!("{:032x}{:04x}{since:04x}", self.configuration.instance.0, member.id.0)
    }
}

/// Returns the host and the port of an address, `HOST:PORT`.
pub(crate) fn host_and_port(address: &str) -> (&str, u16) {
    let (host, port) = address.rsplit_once(':').unwrap_or((address, "0"));
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (bare, port.parse().unwrap_or(0))
}

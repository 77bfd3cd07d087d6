//! What a part is to be at a member, as a configuration says.

use caravan_cluster::{Configuration, Member, MemberId, MemberIdentity, PartId};

/// What a part is to be at a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PartDuty {
    pub(super) epoch: u64,
    pub(super) role: PartRole,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PartRole {
    Nothing,
    Primary {
        since: u64,
        is_made: bool,
        /// With the epoch in which the filling of the copy began, if it is not complete.
        copies: Vec<(Member, Option<u64>)>,
    },
    Copy {
        primary: Option<MemberIdentity>,
        primary_since: u64,
        filling_since: Option<u64>,
    },
}

impl PartDuty {
    /// Returns what the part is to be at the member `own`.
    pub(super) fn of(configuration: &Configuration, part: PartId, own: MemberId) -> Self {
        let role = configuration.part(part).map_or(PartRole::Nothing, |part| {
            let identity = |id: MemberId| configuration.member(id).map(Member::identity);
            let filling =
                |id: MemberId| part.filling.iter().find(|copy| copy.member == id).map(|copy| copy.since);
            if part.primary == Some(own) {
                let copies = part.backups.iter().copied().chain(part.filling.iter().map(|copy| copy.member));
                let copies = copies.filter_map(|id| Some((configuration.member(id)?.clone(), filling(id))));
                return PartRole::Primary {
                    since: part.primary_since,
                    is_made: part.made,
                    copies: copies.collect(),
                };
            }
            if part.backups.contains(&own) || filling(own).is_some() {
                return PartRole::Copy {
                    primary: part.primary.and_then(identity),
                    primary_since: part.primary_since,
                    filling_since: filling(own),
                };
            }
            PartRole::Nothing
        });
        Self { epoch: configuration.epoch, role }
    }
}

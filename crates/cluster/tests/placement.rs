//! Placement under random histories of servers that join, leave and die, and copies that are filled.
//!
//! The world beside it knows what no configuration says: whose memory really has everything that was acknowledged.

use std::collections::{BTreeMap, BTreeSet};

use caravan_cluster::{
    Change, Configuration, MemberId, MemberIdentity, MemberState, NewMember, Occasion, Part, PartId,
    StoreInstance, next_configuration,
};
use proptest::prelude::*;
use proptest::sample::Index;

/// What happens. An index chooses among what there is.
#[derive(Clone, Debug)]
enum Happening {
    /// Servers end, at the same moment; true: their keepers testify.
    Die(Vec<(Index, bool)>),
    Join,
    /// The server that died first comes back, with its memory.
    Return,
    Leave(Index),
    /// A copy has been filled.
    Fill(Index),
    FillAll,
    /// A primary cannot go on with a backup.
    Refill(Index),
    /// The manager makes the next step.
    Step,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        2 => prop::collection::vec((any::<Index>(), any::<bool>()), 1..3).prop_map(Happening::Die),
        2 => Just(Happening::Join),
        1 => Just(Happening::Return),
        1 => any::<Index>().prop_map(Happening::Leave),
        6 => any::<Index>().prop_map(Happening::Fill),
        2 => Just(Happening::FillAll),
        1 => any::<Index>().prop_map(Happening::Refill),
        6 => Just(Happening::Step),
    ]
}

struct World {
    configuration: Configuration,
    /// Whose memory has everything that was acknowledged of a part.
    whole: BTreeMap<PartId, BTreeSet<MemberIdentity>>,
    /// Servers that died, with what they were and what they hold.
    dead: Vec<(String, MemberIdentity)>,
    servers: usize,
    fillings: usize,
}

fn server(number: usize) -> NewMember {
    NewMember {
        name: format!("server-{number}"),
        client_address: format!("10.0.0.{number}:1"),
        member_address: format!("10.0.0.{number}:2"),
        kept: Vec::new(),
    }
}

impl World {
    fn new(servers: usize, parts: u16, copies: u8) -> Self {
        let members: Vec<NewMember> = (0..servers).map(server).collect();
        let configuration = Configuration::create("test", StoreInstance(7), copies, parts, &members);
        let configuration = configuration.expect("a right configuration");
        Self { configuration, whole: BTreeMap::new(), dead: Vec::new(), servers, fillings: 0 }
    }

    fn identity(&self, id: MemberId) -> MemberIdentity {
        self.configuration.member(id).expect("a member").identity()
    }

    /// Applies an occasion, and checks what must hold between two configurations.
    fn apply(&mut self, occasion: &Occasion<'_>) -> bool {
        let before = &self.configuration;
        let Some(next) = next_configuration(before, occasion) else { return false };
        next.check().expect("a right configuration");
        if next.epoch % 16 == 0 {
            assert_eq!(Configuration::from_json(&next.to_json()).expect("readable"), next);
        }
        assert_eq!(next.epoch, before.epoch + 1);
        let identity = |id: MemberId| next.member(id).expect("a member").identity();
        for (part, old) in next.parts.iter().zip(&before.parts) {
            assert_eq!((part.id, &part.slots), (old.id, &old.slots), "parts stay as they are");
            assert!(part.made || !old.made, "part {} is to be made a second time", part.id);
            let whole = self.whole.entry(part.id).or_default();
            if part.made && !old.made {
                whole.insert(identity(old.primary.expect("a primary")));
            }
            // What is being filled from now on is whole no longer.
            for copy in part.filling.iter().filter(|copy| copy.since == next.epoch) {
                self.fillings += usize::from(!old.filling.iter().any(|it| it.member == copy.member));
                whole.remove(&identity(copy.member));
            }
            for holder in part.complete().filter(|_| part.made) {
                assert!(
                    whole.contains(&identity(holder)),
                    "part {} has {holder} for whole in epoch {}",
                    part.id,
                    next.epoch
                );
            }
            assert!(
                part.holders().count() <= usize::from(next.copies) + 1,
                "one copy too many is being filled"
            );
            if part.primary == old.primary && part.primary.is_some() {
                assert_eq!(
                    part.primary_since, old.primary_since,
                    "the primary of part {} is the same one",
                    part.id
                );
            }
            if part.primary != old.primary {
                assert_eq!(
                    part.primary_since.max(part.lost.as_ref().map_or(0, |lost| lost.since)),
                    next.epoch
                );
                // It had a copy, which is whole: see above.
                let was_complete = old.holders().any(|holder| Some(holder) == part.primary);
                assert!(was_complete || part.lost.is_some() || old.lost.is_some() || !old.made);
            }
            if let Some(lost) = &part.lost {
                assert!(!lost.holders.is_empty());
                let survives =
                    |id: MemberId| before.member(id).is_some_and(|member| next.has(member.identity()));
                assert!(old.complete().all(|holder| !survives(holder)), "part {} is not lost", part.id);
                // Exactly who had it last.
                assert!(lost.holders.iter().all(|holder| whole.contains(&holder.identity)));
            }
        }
        for gone in before.members.iter().filter(|member| !next.has(member.identity())) {
            assert!(next.former.iter().any(|former| former.identity == gone.identity()));
        }
        self.configuration = next;
        true
    }

    fn change(&mut self, change: Change) -> bool {
        self.apply(&Occasion { is_unblocked: true, changes: &[change], ..Occasion::default() })
    }

    fn step(&mut self) -> bool {
        self.apply(&Occasion { is_unblocked: true, ..Occasion::default() })
    }

    fn fill(&mut self, index: usize) {
        let fillings: Vec<_> = self
            .configuration
            .parts
            .iter()
            .flat_map(|part| part.filling.iter().map(|copy| (part.id, *copy)))
            .collect();
        if !fillings.is_empty() {
            let (part, copy) = fillings[index % fillings.len()];
            let identity = self.identity(copy.member);
            self.whole.entry(part).or_default().insert(identity);
            assert!(self.change(Change::Filled { part, member: copy.member, since: copy.since }));
            // The same news again is of no effect, and so is news of another filling.
            let again = self.configuration.parts.clone();
            let _ = self.change(Change::Filled { part, member: copy.member, since: copy.since });
            let part = |parts: &[Part]| parts.iter().find(|it| it.id == part).map(|it| it.backups.len());
            assert!(part(&self.configuration.parts) <= part(&again).map(|count| count + 1));
        }
    }

    fn make_all(&mut self) {
        let next = |world: &Self| {
            let parts = &world.configuration.parts;
            let new = parts.iter().find(|part| !part.made && part.primary.is_some());
            new.map(|part| Change::Made { part: part.id, primary_since: part.primary_since })
        };
        while let Some(change) = next(self) {
            assert!(self.change(change));
        }
    }

    /// Everything is done that servers do, until the manager has nothing left to do; returns the number of steps.
    fn settle(&mut self) -> usize {
        for steps in 0..10_000 {
            self.make_all();
            let has_stepped = self.step();
            let fillings = self.configuration.parts.iter().map(|part| part.filling.len()).sum::<usize>();
            (0..fillings).for_each(|_| self.fill(0));
            if !has_stepped && fillings == 0 {
                return steps;
            }
        }
        panic!("the placement does not come to an end: {}", self.configuration.to_json());
    }

    fn happen(&mut self, happening: &Happening) {
        let members = &self.configuration.members;
        match happening {
            Happening::Die(who) => {
                let dead: BTreeMap<MemberId, bool> =
                    who.iter().map(|(index, testified)| (index.get(members).id, *testified)).collect();
                if dead.len() < members.len() {
                    let identities = members.iter().filter(|member| dead.contains_key(&member.id));
                    let identities: Vec<_> =
                        identities.map(|member| (member.name.clone(), member.identity())).collect();
                    assert!(self.apply(&Occasion { expelled: dead, ..Occasion::default() }));
                    self.dead.extend(identities);
                }
            }
            Happening::Join => {
                if members.len() < 9 {
                    self.servers += 1;
                    assert!(self.change(Change::Join(server(self.servers))));
                }
            }
            Happening::Return => {
                if !self.dead.is_empty() {
                    let (name, identity) = self.dead.remove(0);
                    let number: usize = name["server-".len()..].parse().expect("a number");
                    let kept =
                        (0..self.configuration.parts.len() as u16).map(|id| (PartId(id), identity)).collect();
                    // Its memory of lost parts goes on: as another member.
                    let joining = NewMember { kept, ..server(number) };
                    let whole = self.whole.clone();
                    for holders in self.whole.values_mut().filter(|holders| holders.contains(&identity)) {
                        let former = &self.configuration.former;
                        let used = |id: &u16| {
                            self.configuration.member(MemberId(*id)).is_some()
                                || former.iter().any(|former| former.identity.id.0 == *id)
                        };
                        let id = (0..).find(|id| !used(id)).map(MemberId).expect("a number");
                        holders.insert(MemberIdentity { id, since: self.configuration.epoch + 1 });
                    }
                    if !self.change(Change::Join(joining)) {
                        self.whole = whole;
                    }
                }
            }
            Happening::Leave(index) => {
                let identity = index.get(members).identity();
                let _ = self.change(Change::Leave(identity));
            }
            Happening::Fill(index) => self.fill(index.index(usize::MAX)),
            Happening::FillAll => (0..100).for_each(|_| self.fill(0)),
            Happening::Refill(index) => {
                let backups: Vec<_> = self
                    .configuration
                    .parts
                    .iter()
                    .flat_map(|part| part.backups.iter().map(|backup| (part.id, *backup, part.primary_since)))
                    .collect();
                if !backups.is_empty() {
                    let (part, member, primary_since) = *index.get(&backups);
                    assert!(self.change(Change::Refill { part, member, primary_since }));
                }
            }
            Happening::Step => {
                self.make_all();
                let _ = self.step();
            }
        }
    }

    fn counts(&self, named: impl Fn(&Part) -> Vec<MemberId>) -> Vec<usize> {
        let joined = self.configuration.members.iter().filter(|it| it.state == MemberState::Joined);
        joined
            .map(|it| self.configuration.parts.iter().filter(|part| named(part).contains(&it.id)).count())
            .collect()
    }

    /// What the placement aims at.
    fn assert_settled(&self) {
        let joined = self.counts(|_| Vec::new()).len();
        if joined == 0 {
            // Who should leave keeps everything until somebody joins.
            assert!(
                self.configuration.parts.iter().all(|part| part.primary.is_some() || part.lost.is_some())
            );
            return;
        }
        let wanted = usize::from(self.configuration.copies).min(joined);
        for part in self.configuration.parts.iter().filter(|part| part.lost.is_none()) {
            assert!(part.filling.is_empty());
            assert_eq!(
                part.complete().count(),
                wanted,
                "part {} of {}",
                part.id,
                self.configuration.to_json()
            );
        }
        assert!(self.configuration.members.iter().all(|member| member.state == MemberState::Joined));
        for counts in [
            self.counts(|part| part.primary.into_iter().collect()),
            self.counts(|part| part.holders().collect()),
        ] {
            let (least, most) = (counts.iter().min(), counts.iter().max());
            assert!(most.zip(least).is_some_and(|(most, least)| most - least <= 1), "{counts:?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_keeps_what_is_whole_and_comes_to_an_even_end(
        servers in 1_usize..7,
        parts in 1_u16..16,
        copies in 1_u8..4,
        happenings in prop::collection::vec(happening(), 0..60),
    ) {
        let mut world = World::new(servers, parts, copies);
        for happening in &happenings {
            world.happen(happening);
        }
        let steps = world.settle();
        // Each step that is no end begins or ends a copy, moves primaries, or removes a member.
        let bound = 4 * (usize::from(parts) * usize::from(copies) + world.configuration.members.len()) + 4;
        prop_assert!(steps <= bound, "{steps} steps");
        world.assert_settled();
    }

    /// A member that joins gets its share with no more copies than that share, and none between others.
    #[test]
    fn a_join_moves_no_more_than_the_share(servers in 1_usize..8, parts in 1_u16..40, copies in 1_u8..4) {
        let mut world = World::new(servers, parts, copies);
        world.settle();
        world.assert_settled();
        let before = world.fillings;
        world.happen(&Happening::Join);
        world.settle();
        world.assert_settled();
        let wanted = usize::from(copies).min(servers + 1);
        let newcomer = *world.counts(|part| part.holders().collect()).last().expect("a member");
        prop_assert_eq!(world.fillings - before, newcomer);
        let least = usize::from(parts) * wanted / (servers + 1);
        // With as many members as copies, it needs a copy of everything.
        prop_assert!((least..=least + 1).contains(&newcomer));
    }

    /// The loss of a member begins exactly the copies that it had.
    #[test]
    fn a_death_fills_no_more_than_was_lost(servers in 2_usize..8, parts in 1_u16..40, copies in 2_u8..4, who in any::<Index>()) {
        let mut world = World::new(servers, parts, copies);
        world.settle();
        let who = who.get(&world.configuration.members).id;
        let had = world.configuration.parts.iter().filter(|part| part.holders().any(|holder| holder == who)).count();
        let before = world.fillings;
        world.apply(&Occasion { expelled: BTreeMap::from([(who, true)]), ..Occasion::default() });
        prop_assert!(world.configuration.parts.iter().all(|part| part.lost.is_none()));
        world.step();
        let expected = if servers > usize::from(copies) { had } else { 0 };
        prop_assert_eq!(world.fillings - before, expected);
        world.settle();
        world.assert_settled();
    }
}

#[test]
fn the_backup_with_the_longest_stream_becomes_primary() {
    for longest in [1, 2] {
        let mut world = World::new(3, 1, 3);
        world.settle();
        let part = PartId(0);
        let primary = world.configuration.parts[0].primary.expect("a primary");
        let backups = world.configuration.parts[0].backups.clone();
        let positions =
            BTreeMap::from([((part, backups[0]), 100 + longest), ((part, backups[1]), 103 - longest)]);
        let expelled = BTreeMap::from([(primary, false)]);
        world.apply(&Occasion { expelled, positions, ..Occasion::default() });
        let heir = if longest == 2 { backups[0] } else { backups[1] };
        assert_eq!(world.configuration.parts[0].primary, Some(heir));
    }
}

#[test]
fn a_lost_part_is_named_and_comes_back_only_with_its_memory() {
    let mut world = World::new(2, 2, 1);
    world.settle();
    let owner = world.configuration.parts[0].primary.expect("a primary");
    let lost = world.identity(owner);
    world.apply(&Occasion { expelled: BTreeMap::from([(owner, false)]), ..Occasion::default() });
    world.settle();
    let part = &world.configuration.parts[0];
    assert_eq!(part.primary, None);
    let holders = part.lost.as_ref().map(|lost| lost.holders.clone()).unwrap_or_default();
    assert_eq!(holders.iter().map(|holder| holder.identity).collect::<Vec<_>>(), [lost]);
    // A server of another name, one without its memory, and one with the memory of another life.
    for (number, kept) in [
        (7, vec![(PartId(0), lost)]),
        (0, Vec::new()),
        (0, vec![(PartId(0), MemberIdentity { since: 9, ..lost })]),
    ] {
        let occasion = [Change::Join(NewMember { kept, ..server(number) })];
        let next = next_configuration(
            &world.configuration,
            &Occasion { is_unblocked: true, changes: &occasion, ..Occasion::default() },
        );
        assert_eq!(next.expect("it joins").parts[0].primary, None);
    }
    let kept = vec![(PartId(0), lost)];
    let next = next_configuration(
        &world.configuration,
        &Occasion {
            is_unblocked: true,
            changes: &[Change::Join(NewMember { kept, ..server(0) })],
            ..Occasion::default()
        },
    );
    let next = next.expect("it joins");
    assert_eq!(next.parts[0].primary, next.member_by_name("server-0").map(|member| member.id));
}

#[test]
fn nothing_but_expulsions_happens_in_a_blocked_epoch() {
    let mut world = World::new(3, 3, 2);
    world.make_all();
    let changes = [Change::Join(server(8)), Change::Leave(world.identity(MemberId(1)))];
    assert_eq!(
        next_configuration(&world.configuration, &Occasion { changes: &changes, ..Occasion::default() }),
        None
    );
    let expelled = BTreeMap::from([(MemberId(0), false)]);
    let occasion = Occasion { expelled, changes: &changes, ..Occasion::default() };
    let next = next_configuration(&world.configuration, &occasion).expect("an expulsion");
    assert_eq!(next.members.len(), 2);
    assert_eq!(next.unblocked, world.configuration.unblocked);
}

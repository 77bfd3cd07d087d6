use super::*;

fn link() -> LinkId {
    LinkId::new(1).unwrap()
}

fn worker(place: usize) -> Owner {
    Owner::Worker(WorkerId::new(place).unwrap())
}

/// Makes workers 0 and 1, link 1 between them with `numbers` in its full ring, and packets with these `owners`.
fn sight(numbers: &[u32], owners: &[Owner]) -> Sight {
    let seen = Seen {
        link: link(),
        ring: LinkRing::Full,
        owner: Owner::Full(link()),
        takers: [WorkerId::new(1), None],
        capacity: 1024,
        before: (7, 7 + numbers.len() as u64),
        after: (7, 7 + numbers.len() as u64),
        numbers: numbers.to_vec(),
    };
    let there = |places: &[usize], all| (0..all).map(|place| places.contains(&place)).collect();
    Sight {
        rings: vec![seen],
        headers: owners.iter().map(|owner| PacketHeader::unused(*owner)).collect(),
        workers: there(&[0, 1], WORKERS_MAX),
        links: there(&[1], LINKS_MAX),
    }
}

#[test]
fn what_may_be_is_counted() {
    let full = Owner::Full(link());
    let owners = [worker(1), full, full, worker(0), Owner::Pool];
    let found = audit(&sight(&[0, 1], &owners), true);
    assert_eq!(found.violations, []);
    assert_eq!((found.unreleased, found.unpublished, found.pool), (1, 1, 1));
    assert_eq!((found.full[&1], found.workers[&0], found.workers[&1]), (2, 1, 1));
}

#[test]
fn what_must_not_be_is_found() {
    let full = Owner::Full(link());
    let nobody = Owner::Worker(WorkerId::new(2).unwrap());
    let unlinked = Owner::Empty(LinkId::new(2).unwrap());
    type Case = (&'static [u32], Vec<Owner>, fn(&Violation) -> bool);
    let cases: Vec<Case> = vec![
        (&[], vec![nobody], |found| matches!(found, Violation::Nobody { packet: 0, .. })),
        (&[], vec![unlinked], |found| matches!(found, Violation::Nobody { packet: 0, .. })),
        (&[0, 0], vec![full], |found| matches!(found, Violation::Twice { packet: 0, .. })),
        (&[9], vec![full], |found| matches!(found, Violation::NoPacket { packet: 9, .. })),
        // The producer's, and the consumer's behind one that it has not taken.
        (&[0], vec![worker(0)], |found| matches!(found, Violation::Foreign { place: 0, .. })),
        (&[0, 1], vec![full, worker(1)], |found| matches!(found, Violation::Foreign { place: 1, .. })),
        (&[], vec![full; BATCH_PACKETS + 1], |found| matches!(found, Violation::Leaked { .. })),
    ];
    for (numbers, owners, is) in cases {
        let found = audit(&sight(numbers, &owners), true).violations;
        assert!(found.len() == 1 && is(&found[0]), "{numbers:?}, {owners:?}: {found:?}");
    }
    let mut moved = sight(&[0], &[full]);
    moved.rings[0].after.0 += 1;
    assert!(audit(&moved, false).violations.is_empty());
    assert!(matches!(audit(&moved, true).violations[..], [Violation::Moved { .. }]));
    moved.rings[0].after = (9, 8);
    assert!(matches!(audit(&moved, false).violations[..], [Violation::Positions { .. }]));
}

#[test]
fn what_passes_while_it_is_looked_at_is_no_violation() {
    let full = Owner::Full(link());
    // 0 is taken between the reads, and already given on; 1 is given meanwhile.
    let mut passing = sight(&[0], &[worker(0), full]);
    passing.rings[0].after = (8, 9);
    passing.rings[0].numbers.push(1);
    let found = audit(&passing, false);
    assert_eq!((found.violations, found.unpublished), (vec![], 0));
}

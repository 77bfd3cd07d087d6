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
        before: Positions { head: 7, tail: 7 + numbers.len() as u64 },
        after: Positions { head: 7, tail: 7 + numbers.len() as u64 },
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
    assert_eq!(found.violations, [""; 0]);
    assert_eq!((found.unreleased, found.unpublished, found.pool), (1, 1, 1));
    assert_eq!((found.full[&1], found.workers[&0], found.workers[&1]), (2, 1, 1));
}

#[test]
fn what_must_not_be_is_found() {
    let full = Owner::Full(link());
    let nobody = Owner::Worker(WorkerId::new(2).unwrap());
    let unlinked = Owner::Empty(LinkId::new(2).unwrap());
    let cases: Vec<(&[u32], Vec<Owner>, &str)> = vec![
        (&[], vec![nobody], "packet 0 names 0x0003, which is nobody"),
        (&[], vec![unlinked], "packet 0 names 0x8002, which is nobody"),
        (&[0, 0], vec![full], "packet 0 is in link 1, Full, and in another place, too"),
        (&[9], vec![full], "link 1, Full: there is no packet 9"),
        // The producer's, and the consumer's behind one that it has not taken.
        (
            &[0],
            vec![worker(0)],
            "packet 0 in link 1, Full, at 0 from the head, names Some(Worker(WorkerId(0)))",
        ),
        (&[0, 1], vec![full, worker(1)], "packet 1 in link 1, Full, at 1 from the head, names Some("),
        (&[], vec![full; BATCH_PACKETS + 1], "129 packets name Full(LinkId(1)) and are not in its rings"),
    ];
    for (numbers, owners, expected) in cases {
        let found = audit(&sight(numbers, &owners), true).violations;
        assert!(found.len() == 1 && found[0].starts_with(expected), "{numbers:?}, {owners:?}: {found:?}");
    }
    let mut moved = sight(&[0], &[full]);
    moved.rings[0].after.head += 1;
    assert!(audit(&moved, false).violations.is_empty());
    assert_eq!(audit(&moved, true).violations, ["link 1, Full: moved"]);
    moved.rings[0].after = Positions { head: 9, tail: 8 };
    assert_eq!(audit(&moved, false).violations, ["link 1, Full: head 9, tail 8"]);
}

#[test]
fn what_passes_while_it_is_looked_at_is_no_violation() {
    let full = Owner::Full(link());
    // 0 is taken between the reads, and already given on; 1 is given meanwhile.
    let mut passing = sight(&[0], &[worker(0), full]);
    passing.rings[0].after = Positions { head: 8, tail: 9 };
    passing.rings[0].numbers.push(1);
    let found = audit(&passing, false);
    assert_eq!((found.violations, found.unpublished), (vec![], 0));
}

//! Fixed tables, read by clients: what they find, and how many one-sided reads it takes.

use caravan_store::{FixedProbe, FixedTable, ScanCursor, StoreError, StoreTransport, limits};

use super::rig::{Rig, far, transports};

/// The slots of a shard of a table with small pairs.
const SHARD_SLOTS: u64 = limits::FIXED_SHARD_BUCKETS_MAX * 4;
/// Tables that are read together, so that none of them decides.
const TABLES: u64 = 30;

fn key(number: u64) -> [u8; 16] {
    let mut key = [b'k'; 16];
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

fn value(number: u64) -> [u8; 32] {
    [number as u8; 32]
}

fn filled(rig: &Rig, numbers: std::ops::Range<u64>) -> FixedTable {
    let table = rig.store.transaction(|tx| FixedTable::create(tx, 16, 32)).unwrap();
    for number in numbers {
        rig.store.transaction(|tx| table.put(tx, &key(number), &value(number))).unwrap();
    }
    table
}

#[test]
fn a_lookup_takes_one_read_with_few_exceptions() {
    let rig = Rig::new();
    let count = SHARD_SLOTS * 90 / 100;
    let tables: Vec<_> = (0..TABLES).map(|at| filled(&rig, at * count..(at + 1) * count)).collect();
    let client = rig.connect(far());
    // What the server lends is there from the first answer on.
    client.get(b"none").unwrap();
    let (mut present, mut absent) = (0, 0);
    for (at, table) in (0..).zip(&tables) {
        let mut probe = FixedProbe::new(table);
        client.get_fixed(&mut probe, &key(0)).unwrap();
        let mut counted = |from: u64, is_there: bool| {
            let before = client.one_sided_reads();
            for number in from..from + count {
                let found = client.get_fixed(&mut probe, &key(number)).unwrap();
                assert_eq!(found, is_there.then(|| value(number).to_vec()));
            }
            client.one_sided_reads() - before
        };
        present += counted(at * count, true);
        absent += counted(1 << 40 | at * count, false);
    }
    let a_lookup = [present, absent].map(|reads| reads as f64 / (TABLES * count) as f64);
    println!("90 % full: {:.4} reads for a key that exists, {:.4} for another", a_lookup[0], a_lookup[1]);
    assert!(a_lookup.iter().all(|reads| (1.0..1.05).contains(reads)), "{a_lookup:?}");
}

#[test]
fn a_table_that_changes_is_read_as_it_is() {
    let rig = Rig::new();
    let table = filled(&rig, 0..10);
    for transport in transports() {
        let client = rig.connect(transport);
        let opened = FixedTable::open(&client, table.address()).unwrap();
        assert_eq!((opened, opened.key_bytes(), opened.value_bytes()), (table, 16, 32));
        let mut probe = FixedProbe::new(&opened);
        // It is split several times, under a client that knows it.
        for number in 0..6 * SHARD_SLOTS {
            rig.store.transaction(|tx| table.put(tx, &key(number), &value(number))).unwrap();
            let found = client.get_fixed(&mut probe, &key(number / 2)).unwrap();
            assert_eq!(found, Some(value(number / 2).to_vec()), "{transport:?} {number}");
        }
        let (mut pairs, mut cursor) = (0, ScanCursor::START);
        loop {
            cursor = opened.scan(&client, cursor, 500, |_, _| pairs += 1).unwrap();
            if cursor == ScanCursor::START {
                break;
            }
        }
        assert_eq!(pairs, 6 * SHARD_SLOTS);
        rig.store.transaction(|tx| table.delete(tx, &key(7))).unwrap();
        assert_eq!(client.get_fixed(&mut probe, &key(7)).unwrap(), None);
        let wrong = client.get_fixed(&mut probe, b"short");
        assert!(matches!(wrong, Err(StoreError::FixedKey { bytes: 5, takes: 16 })), "{wrong:?}");
        if transport != StoreTransport::Mapped {
            assert!(client.one_sided_reads() > 6 * SHARD_SLOTS, "{}", client.one_sided_reads());
        }
    }
}

#[test]
fn a_client_makes_writes_and_frees_a_table() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        let table = client.create_fixed(16, 32).unwrap();
        let mut probe = FixedProbe::new(&table);
        // The table is split several times.
        let writes: Vec<_> = (0..3 * SHARD_SLOTS)
            .map(|number| client.start_put_fixed(&table, &key(number), &value(number)))
            .collect();
        writes.into_iter().for_each(|write| write.wait().unwrap());
        client.put_fixed(&table, &key(1), &value(100)).unwrap();
        assert!(client.delete_fixed(&table, &key(2)).unwrap(), "{transport:?}");
        assert!(!client.delete_fixed(&table, &key(2)).unwrap(), "{transport:?}");
        for number in 0..3 * SHARD_SLOTS {
            let expected = match number {
                1 => Some(value(100).to_vec()),
                2 => None,
                _ => Some(value(number).to_vec()),
            };
            let found = client.get_fixed(&mut probe, &key(number)).unwrap();
            assert_eq!(found, expected, "{transport:?} {number}");
            assert_eq!(table.get(&*rig.store, &key(number)).unwrap(), expected, "{transport:?} {number}");
        }
        client.free_fixed(table).unwrap();
        let gone = client.put_fixed(&table, &key(1), &value(1));
        assert!(matches!(gone, Err(StoreError::NoObject(_))), "{transport:?}: {gone:?}");

        let sizes = client.create_fixed(0, 1);
        assert!(matches!(sizes, Err(StoreError::FixedSizes { .. })), "{transport:?}: {sizes:?}");
        let short = client.put_fixed(&table, b"short", &value(1));
        assert!(
            matches!(short, Err(StoreError::FixedKey { bytes: 5, takes: 16 })),
            "{transport:?}: {short:?}"
        );
        // An object of a client that claims to be a table.
        let other = client.alloc(40, None).unwrap();
        let not_a_table = FixedTable::open(&client, other);
        assert!(matches!(not_a_table, Err(StoreError::NotAFixedTable(_))), "{transport:?}: {not_a_table:?}");
    }
}

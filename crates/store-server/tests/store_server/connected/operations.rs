//! Each operation gives what the same operation on the store itself gives.

use std::sync::atomic::{AtomicBool, Ordering};

use caravan_store::{
    ConnectOptions, KeyVersion, ObjectAddress, ScanCursor, Store, StoreError, StoreOptions, limits,
};

use super::rig::{Rig, far, transports};

#[test]
fn a_ping_returns_its_bytes_and_one_that_is_too_long_is_refused() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        for bytes in [&b""[..], b"any bytes", &[7; 100_000]] {
            assert_eq!(client.ping(bytes).unwrap(), bytes, "{transport:?}");
        }
        let refused = client.ping(&vec![7; limits::CALL_VALUE_BYTES_MAX + 1]);
        assert!(matches!(refused, Err(StoreError::CallTooLong { .. })), "{refused:?}");
    }
}

#[test]
fn keys_are_put_read_and_deleted() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        assert_eq!(client.get(b"a").unwrap(), None);
        client.put(b"a", b"1").unwrap();
        assert_eq!(rig.store.get(b"a").unwrap().as_deref(), Some(&b"1"[..]));
        // The first time by a call, then by reads alone.
        for _ in 0..3 {
            let (mine, theirs) = (client.entry(b"a").unwrap(), rig.store.entry(b"a").unwrap());
            assert!(mine.is_some() && mine == theirs, "{transport:?}");
        }
        let mut value = b"before ".to_vec();
        assert_eq!(client.get_into(b"a", &mut value).unwrap(), rig.store.head(b"a").unwrap());
        assert_eq!(value, b"before 1");
        assert_eq!(client.version(b"a").unwrap(), rig.store.version(b"a").unwrap());
        assert_eq!(client.version(b"none").unwrap(), KeyVersion::ABSENT);
        rig.store.put(b"a", b"longer than before, so that its object moves to another place").unwrap();
        assert_eq!(client.entry(b"a").unwrap(), rig.store.entry(b"a").unwrap());
        assert!(client.delete(b"a").unwrap());
        assert!(!client.delete(b"a").unwrap());
        assert_eq!(client.get(b"a").unwrap(), None);
        rig.store.put(b"a", b"again").unwrap();
        assert_eq!(client.get(b"a").unwrap().as_deref(), Some(&b"again"[..]));
        rig.store.clear().unwrap();
        assert_eq!(client.get(b"a").unwrap(), None);
    }
}

#[test]
fn keys_of_every_size_and_many_at_once() {
    let rig = Rig::new();
    let sizes = [0, 1, 7, 8, 100, 3000, 4000, 5000, 70_000, limits::OBJECT_BYTES_MAX, 3 << 20];
    for transport in transports() {
        let client = rig.connect(transport);
        let keys: Vec<Vec<u8>> = sizes.iter().map(|size| format!("key {size}").into_bytes()).collect();
        let long = vec![b'k'; limits::KEY_BYTES_MAX];
        client.put(&long, b"of a long key").unwrap();
        assert_eq!(client.get(&long).unwrap().as_deref(), Some(&b"of a long key"[..]));
        for (key, size) in keys.iter().zip(sizes) {
            client.put(key, &vec![size as u8; size]).unwrap();
        }
        for _ in 0..2 {
            let mut seen = 0;
            let wanted = [&keys[..], &[b"none".to_vec()]].concat();
            client
                .get_many(&wanted, |index, value| {
                    assert_eq!(index, seen);
                    let expected = sizes.get(index).map(|size| vec![*size as u8; *size]);
                    assert!(value.map(<[u8]>::to_vec) == expected, "{transport:?} {index}");
                    seen += 1;
                })
                .unwrap();
            assert_eq!(seen, wanted.len());
        }
        let too_long = vec![0; limits::CALL_VALUE_BYTES_MAX + 1];
        assert!(matches!(client.put(b"k", &too_long), Err(StoreError::CallTooLong { .. })));
        let too_long = vec![0; limits::KEY_BYTES_MAX + 1];
        assert!(matches!(client.get(&too_long), Err(StoreError::KeyTooLong { .. })));
        assert!(matches!(client.delete(&too_long), Err(StoreError::KeyTooLong { .. })));
        assert!(matches!(
            client.alloc(limits::OBJECT_BYTES_MAX + 1, None),
            Err(StoreError::ObjectTooLong { .. })
        ));
        // The connection is as good as before.
        assert_eq!(client.get(b"key 7").unwrap(), Some(vec![7; 7]));
    }
}

#[test]
fn keys_expire_by_the_store_s_clock() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        let now_ms = rig.store.now_ms();
        client.put_until(b"past", b"1", Some(1)).unwrap();
        client.put_until(b"future", b"2", Some(now_ms + 3_600_000)).unwrap();
        for _ in 0..2 {
            assert_eq!(client.get(b"past").unwrap(), None);
            let entry = client.entry(b"future").unwrap().unwrap();
            assert_eq!((&entry.value[..], entry.head.expires_at_ms), (&b"2"[..], Some(now_ms + 3_600_000)));
        }
        let heads = client.transaction(|tx| {
            let stored = tx.head(b"future")?;
            tx.put(b"future", b"3")?;
            Ok::<_, StoreError>([stored, tx.head(b"future")?])
        });
        let expiries = heads.unwrap().map(|head| head.map(|head| head.expires_at_ms));
        assert_eq!(expiries, [Some(Some(now_ms + 3_600_000)), Some(None)]);
    }
}

#[test]
fn a_table_that_grows_stays_readable() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        let key = |number: u32| format!("{transport:?} {number}").into_bytes();
        for number in 0..30_000 {
            rig.store.put(&key(number), &number.to_ne_bytes()).unwrap();
            // It has read the table before each of its splits.
            if number % 100 == 0 {
                assert_eq!(client.get(&key(number / 2)).unwrap(), Some((number / 2).to_ne_bytes().to_vec()));
            }
        }
        let keys: Vec<_> = (0..30_000).map(key).collect();
        client
            .get_many(&keys, |index, value| assert_eq!(value, Some(&(index as u32).to_ne_bytes()[..])))
            .unwrap();
        // By now the client knows where nearly all of them lie.
        let before = client.one_sided_reads();
        for number in (0..30_000).step_by(10) {
            assert_eq!(client.get(&key(number)).unwrap(), Some(number.to_ne_bytes().to_vec()));
        }
        if transport == far() {
            let reads = client.one_sided_reads() - before;
            assert!((2900..=3 * 3100).contains(&reads), "{reads}");
        }
    }
}

#[test]
fn scans_return_each_key_and_counters_are_the_store_s() {
    let rig = Rig::new();
    for number in 0..1000 {
        rig.store.put(format!("k{number}").as_bytes(), b"").unwrap();
    }
    for transport in transports() {
        let client = rig.connect(transport);
        let (mut keys, mut cursor) = (Vec::new(), ScanCursor::START);
        loop {
            cursor = client.scan(cursor, 50, |key| keys.push(key.to_vec())).unwrap();
            if cursor == ScanCursor::START {
                break;
            }
        }
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 1000);
        assert_eq!(client.counts().unwrap().keys, 1000);
    }
}

#[test]
fn objects_without_a_key() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        let address = client.alloc(5, None).unwrap();
        assert_eq!(client.read(address).unwrap(), [0; 5]);
        client.transaction(|tx| tx.write(address, b"hello")).unwrap();
        assert_eq!(rig.store.read(address).unwrap(), b"hello");
        assert_eq!(client.read(address).unwrap(), b"hello");
        let too_long = client.transaction(|tx| tx.write(address, &[0; 1000]));
        assert!(matches!(too_long, Err(StoreError::ObjectTooSmall { bytes: 1000, .. })), "{too_long:?}");
        // Objects of keys and of nobody.
        client.put(b"k", b"v").unwrap();
        let nowhere = ObjectAddress::from_parts(8, 0);
        for result in [client.read(nowhere).map(drop), client.transaction(|tx| tx.write(nowhere, b""))] {
            assert!(matches!(result, Err(StoreError::NoObject(_))), "{result:?}");
        }
        // Two objects at once, one of which goes again.
        let kept = client
            .transaction(|tx| {
                let kept = tx.alloc(b"kept", Some(address))?;
                let dropped = tx.alloc(b"dropped", None)?;
                assert_eq!(tx.read(kept)?, b"kept");
                tx.free(dropped)?;
                tx.free(address)?;
                Ok::<_, StoreError>(kept)
            })
            .unwrap();
        assert!(matches!(client.read(address), Err(StoreError::NoObject(_))));
        assert_eq!(client.read(kept).unwrap(), b"kept");
        client.transaction(|tx| tx.free(kept)).unwrap();
        // What an aborted transaction has allocated goes back.
        let aborted = client.transaction(|tx| {
            tx.alloc(b"lost", None)?;
            Err::<(), _>(StoreError::VersionChanged)
        });
        assert!(matches!(aborted, Err(StoreError::VersionChanged)));
        client.counts().unwrap();
        rig.store.audit().unwrap();
    }
}

#[test]
fn transactions_keep_a_sum_whatever_others_do() {
    let rig = Rig::new();
    let accounts: Vec<Vec<u8>> = (0..8).map(|number| format!("account {number}").into_bytes()).collect();
    let amount = |value: Option<Vec<u8>>| u64::from_ne_bytes(value.unwrap().try_into().unwrap());
    for account in &accounts {
        rig.store.put(account, &100_u64.to_ne_bytes()).unwrap();
    }
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let movers: Vec<_> = transports()
            .into_iter()
            .map(|transport| {
                let (rig, accounts) = (&rig, &accounts);
                scope.spawn(move || {
                    let client = rig.connect(transport);
                    for round in 0..200_usize {
                        let (from, to) = (&accounts[round % 8], &accounts[(round * 5 + 3) % 8]);
                        client
                            .transaction(|tx| {
                                let mine = amount(tx.get(from)?);
                                if from == to || mine == 0 {
                                    return Ok(());
                                }
                                let theirs = amount(tx.get(to)?);
                                tx.put(from, &(mine - 1).to_ne_bytes())?;
                                tx.put(to, &(theirs + 1).to_ne_bytes())
                            })
                            .map_err(|error: StoreError| panic!("{transport:?}: {error}"))
                            .unwrap();
                    }
                })
            })
            .collect();
        for transport in transports() {
            let (rig, accounts, is_done) = (&rig, &accounts, &is_done);
            scope.spawn(move || {
                let client = rig.connect(transport);
                while !is_done.load(Ordering::Relaxed) {
                    let sum = client.transaction(|tx| {
                        let mut sum = 0;
                        for account in accounts {
                            sum += amount(tx.get(account)?);
                        }
                        // The body itself never sees another sum, even if it is run again.
                        assert_eq!(sum, 800, "{transport:?}");
                        Ok::<_, StoreError>(sum)
                    });
                    // Writers may always be faster than a reader with a long way.
                    assert!(matches!(sum, Ok(800) | Err(StoreError::Conflict)), "{sum:?}");
                }
            });
        }
        movers.into_iter().for_each(|mover| mover.join().unwrap());
        is_done.store(true, Ordering::Relaxed);
    });
    rig.store.audit().unwrap();
}

#[test]
fn a_required_version_is_checked_at_the_commit() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        client.put(b"k", b"1").unwrap();
        let version = client.version(b"k").unwrap();
        let mut runs = 0;
        let result = client.transaction(|tx| {
            tx.require(b"k", version)?;
            runs += 1;
            if runs == 1 {
                rig.store.put(b"k", b"2").unwrap();
            }
            tx.put(b"other", b"written")
        });
        assert!(matches!(result, Err(StoreError::VersionChanged)), "{result:?}");
        assert_eq!(client.get(b"other").unwrap(), None);
        // Absence is required, too.
        let absent = client.transaction(|tx| {
            tx.require(b"none", KeyVersion::ABSENT)?;
            tx.put(b"first", b"1")?;
            assert!(tx.delete(b"first")?);
            tx.get(b"first")
        });
        assert_eq!(absent.map_err(|error: StoreError| error.to_string()), Ok(None));
        assert_eq!(client.get(b"first").unwrap(), None);
    }
}

#[test]
fn a_key_that_is_watched_and_written_stops_a_transaction() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        rig.store.clear().unwrap();
        rig.store.put(b"there", b"1").unwrap();
        client.put_until(b"expired", b"1", Some(1)).unwrap();
        for key in [&b"there"[..], b"absent", b"expired"] {
            let watch = client.watch(key).unwrap();
            let require = |run: &mut dyn FnMut()| {
                client.transaction(|tx| {
                    tx.require_unchanged(key, &watch)?;
                    run();
                    tx.put(b"other", b"written")
                })
            };
            require(&mut || ()).unwrap();
            assert!(client.delete(b"other").unwrap());
            // Once it is written before the commit, then before the transaction.
            let mut write = || {
                client.put(key, b"2").unwrap();
                client.delete(key).unwrap();
            };
            for result in [require(&mut write), require(&mut || ())] {
                assert!(matches!(result, Err(StoreError::VersionChanged)), "{transport:?}: {result:?}");
            }
            assert_eq!(client.get(b"other").unwrap(), None);
        }
        let too_long = vec![0; limits::KEY_BYTES_MAX + 1];
        assert!(matches!(client.watch(&too_long), Err(StoreError::KeyTooLong { .. })));
    }
}

#[test]
fn all_keys_are_deleted_and_one_is_chosen_at_random() {
    let mut rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        let keys = [&b"a"[..], b"b", b"c"];
        keys.iter().for_each(|key| client.put(key, b"value").unwrap());
        for random in [0, 1, 1 << 40, u64::MAX] {
            let key = client.random_key(random).unwrap().expect("a key");
            assert!(keys.contains(&&key[..]), "{key:?}");
        }
        // Another server, which the client has not noticed.
        let address = rig.server().address();
        drop(rig.server.take());
        rig.serve(|mut options| {
            options.address = address;
            options
        });
        client.clear().unwrap();
        assert_eq!(rig.store.counts().keys, 0);
        assert_eq!((client.get(b"a").unwrap(), client.random_key(7).unwrap()), (None, None));
    }
}

#[test]
fn a_transaction_carries_long_values() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        let value = |byte: u8, bytes: usize| vec![byte; bytes];
        let stored = client.transaction(|tx| {
            tx.put(b"long", &value(1, 3 << 20))?;
            tx.put(b"longer", &value(2, 5 << 20))?;
            tx.put_until(b"expires", &value(3, limits::OBJECT_BYTES_MAX + 1), Some(u64::MAX >> 1))?;
            tx.get(b"long")
        });
        assert!(stored.unwrap() == Some(value(1, 3 << 20)));
        // What it has read decides, and one long value replaces another.
        let read = client.transaction(|tx| {
            let read = tx.get(b"longer")?.unwrap_or_default();
            tx.put(b"long", &read)?;
            tx.delete(b"longer")?;
            Ok::<_, StoreError>(read)
        });
        assert!(read.unwrap() == value(2, 5 << 20));
        assert!(rig.store.get(b"long").unwrap() == Some(value(2, 5 << 20)));
        assert!(client.get(b"longer").unwrap().is_none());
        let expires = client.entry(b"expires").unwrap().unwrap();
        assert_eq!(expires.head.expires_at_ms, Some(u64::MAX >> 1));
        assert!(expires.value == value(3, limits::OBJECT_BYTES_MAX + 1));
        // All writes of a transaction travel in one call.
        let too_large = client.transaction(|tx| {
            tx.put(b"one", &value(4, limits::CALL_VALUE_BYTES_MAX))?;
            tx.put(b"two", &value(5, 1 << 20))
        });
        assert!(matches!(too_large, Err(StoreError::TransactionTooLarge)), "{too_large:?}");
        let too_long = client.transaction(|tx| tx.put(b"k", &value(6, limits::CALL_VALUE_BYTES_MAX + 1)));
        assert!(matches!(too_long, Err(StoreError::CallTooLong { .. })), "{too_long:?}");
        client.clear().unwrap();
        rig.store.audit().unwrap();
    }
}

#[test]
fn a_full_store_says_so_and_goes_on() {
    let rig = Rig::with(StoreOptions::new(8 << 20), |options| options);
    for transport in transports() {
        let client = rig.connect(transport);
        let value = vec![7; 100_000];
        let full = (0..1000).find_map(|number| client.put(format!("{number}").as_bytes(), &value).err());
        assert!(matches!(full, Some(StoreError::Full { .. })), "{full:?}");
        let full = client.transaction(|tx| tx.put(b"one more", &value));
        assert!(matches!(full, Err(StoreError::Full { .. })), "{full:?}");
        assert_eq!(client.get(b"0").unwrap().as_deref(), Some(&value[..]));
        rig.store.clear().unwrap();
        client.put(b"0", &value).unwrap();
        rig.store.clear().unwrap();
    }
}

#[test]
fn a_password_is_asked_for() {
    let rig = Rig::with(StoreOptions::new(16 << 20), |mut options| {
        options.password = Some(b"secret".to_vec());
        options
    });
    for transport in transports() {
        let options = ConnectOptions::new(rig.address(transport));
        let refused = Store::connect(options.clone()).map(drop);
        assert!(matches!(&refused, Err(StoreError::Refused(text)) if text.contains("NOAUTH")), "{refused:?}");
        let refused = Store::connect(options.clone().password("wrong")).map(drop);
        assert!(
            matches!(&refused, Err(StoreError::Refused(text)) if text.contains("WRONGPASS")),
            "{refused:?}"
        );
        let client = Store::connect(options.password("secret")).unwrap();
        client.put(b"k", b"v").unwrap();
        assert_eq!(client.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
    }
}

#[test]
fn nobody_at_the_address_is_said() {
    let address = "unix:/nonexistent/socket";
    let error = Store::connect(address).map(drop).unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(address), "{error}");
}

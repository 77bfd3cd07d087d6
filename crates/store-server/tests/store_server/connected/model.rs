//! Random operations of a client, beside a map.

use std::collections::BTreeMap;

use caravan_store::StoreError;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::rig::{Rig, transports};

#[derive(Clone, Debug)]
enum Step {
    Put(u8, usize),
    Get(u8),
    Delete(u8),
    Swap(u8, u8),
    Abort(u8),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let sizes = prop_oneof![0..40_usize, 100..6000_usize];
    let step = prop_oneof![
        4 => (0..20_u8, sizes).prop_map(|(key, size)| Step::Put(key, size)),
        4 => (0..20_u8).prop_map(Step::Get),
        2 => (0..20_u8).prop_map(Step::Delete),
        1 => (0..20_u8, 0..20_u8).prop_map(|(one, other)| Step::Swap(one, other)),
        1 => (0..20_u8).prop_map(Step::Abort),
    ];
    proptest::collection::vec(step, 1..60)
}

#[test]
fn random_operations_agree_with_a_map() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        let mut runner =
            TestRunner::new(Config { cases: 40, failure_persistence: None, ..Config::default() });
        let run = |steps: Vec<Step>| {
            rig.store.clear().unwrap();
            let mut map: BTreeMap<u8, Vec<u8>> = BTreeMap::new();
            for (number, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Put(key, size) => {
                        let value = vec![number as u8; size];
                        client.put(&[key], &value).unwrap();
                        map.insert(key, value);
                    }
                    Step::Get(key) => prop_assert_eq!(client.get(&[key]).unwrap(), map.get(&key).cloned()),
                    Step::Delete(key) => {
                        prop_assert_eq!(client.delete(&[key]).unwrap(), map.remove(&key).is_some());
                    }
                    Step::Swap(one, other) => {
                        let swap = client.transaction(|tx| {
                            let values = (tx.get(&[one])?, tx.get(&[other])?);
                            for (key, value) in [(one, &values.1), (other, &values.0)] {
                                match value {
                                    Some(value) => tx.put(&[key], value)?,
                                    None => drop(tx.delete(&[key])?),
                                }
                            }
                            Ok::<_, StoreError>(())
                        });
                        swap.unwrap();
                        let values = (map.remove(&one), map.remove(&other));
                        // With one key for both, both values are its own.
                        let values = if one == other { (values.0.clone(), values.0) } else { values };
                        values.1.into_iter().for_each(|value| _ = map.insert(one, value));
                        values.0.into_iter().for_each(|value| _ = map.insert(other, value));
                    }
                    Step::Abort(key) => {
                        let aborted = client.transaction(|tx| {
                            tx.put(&[key], b"never")?;
                            Err::<(), _>(StoreError::VersionChanged)
                        });
                        prop_assert!(matches!(aborted, Err(StoreError::VersionChanged)));
                    }
                }
            }
            for key in 0..20 {
                prop_assert_eq!(client.get(&[key]).unwrap(), map.get(&key).cloned());
            }
            prop_assert!(rig.store.audit().is_ok());
            Ok(())
        };
        runner.run(&steps(), run).unwrap();
    }
}

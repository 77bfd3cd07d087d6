//! Many operations under way on one connection, waited for or awaited.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use caravan_store::{KeyVersion, StoreError};

use super::rig::{Rig, transports};

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future as the simplest executor does: nothing but its waker brings it on.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        std::thread::park();
    }
}

/// A thread beside it would take the answers, and the processor.
#[test]
fn a_thread_that_waits_needs_no_other_thread() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        for number in 0..100_u32 {
            let put = |tx: &mut caravan_store::ConnectedTransaction<'_>| {
                tx.get(b"key")?;
                tx.put(b"key", &number.to_ne_bytes())
            };
            client.transaction(put).unwrap();
        }
        assert!(!client.has_helper(), "{transport:?}");
        let put = async || client.transaction_async(async |tx| tx.put(b"key", b"value")).await;
        let mut futures = (0..100).map(|_| block_on(put()).unwrap());
        assert!(futures.any(|()| client.has_helper()), "{transport:?}");
    }
}

#[test]
fn operations_are_awaited_without_a_runtime() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        let result: Result<(), StoreError> = block_on(async {
            let puts: Vec<_> =
                (0..100_u32).map(|n| client.start_put(&n.to_ne_bytes(), b"value", None)).collect();
            for put in puts {
                put.await?;
            }
            let gets: Vec<_> = (0..100_u32).map(|n| client.start_get(&n.to_ne_bytes())).collect();
            for get in gets {
                assert_eq!(get.await?.as_deref(), Some(&b"value"[..]));
            }
            assert!(client.start_delete(&7_u32.to_ne_bytes()).await?);
            assert!(!client.start_delete(&7_u32.to_ne_bytes()).await?);
            let object = client.alloc(5, None)?;
            assert_eq!(client.start_read(object).await?, [0; 5]);
            client.transaction(|tx| tx.free(object))?;
            assert!(matches!(client.start_read(object).await, Err(StoreError::NoObject(_))));
            Ok(())
        });
        result.unwrap();
    }
}

#[test]
fn transactions_are_awaited_and_run_again_when_others_interfere() {
    const THREADS: u64 = 4;
    const TRANSFERS: u64 = 50;
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        let amount = |bytes: Option<Vec<u8>>| {
            bytes.and_then(|bytes| bytes.first_chunk().copied()).map_or(0, u64::from_ne_bytes)
        };
        client.put(b"from", &(THREADS * TRANSFERS).to_ne_bytes()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for _ in 0..TRANSFERS {
                        let left = block_on(client.transaction_async(async |tx| {
                            let (from, to) = (amount(tx.get(b"from").await?), amount(tx.get(b"to").await?));
                            assert_eq!(from + to, THREADS * TRANSFERS, "{transport:?}");
                            tx.put(b"from", &(from - 1).to_ne_bytes())?;
                            tx.put(b"to", &(to + 1).to_ne_bytes())?;
                            Ok::<_, StoreError>(from - 1)
                        }));
                        assert!(left.unwrap() < THREADS * TRANSFERS);
                    }
                });
            }
        });
        assert_eq!(amount(client.get(b"to").unwrap()), THREADS * TRANSFERS, "{transport:?}");
        let object: Result<_, StoreError> = block_on(client.transaction_async(async |tx| {
            assert!(tx.delete(b"to").await?);
            let object = tx.alloc(b"12", None).await?;
            tx.write(object, b"34").await?;
            assert_eq!(tx.read(object).await?, b"34");
            Ok(object)
        }));
        let object = object.unwrap();
        assert_eq!((client.get(b"to").unwrap(), client.read(object).unwrap()), (None, b"34".to_vec()));
        let refused: Result<(), StoreError> = block_on(client.transaction_async(async |tx| {
            tx.free(object).await?;
            tx.require(b"from", KeyVersion::ABSENT).await
        }));
        assert!(matches!(refused, Err(StoreError::VersionChanged)), "{refused:?}");
        assert_eq!(client.read(object).unwrap(), b"34");
        rig.store.clear().unwrap();
    }
}

#[test]
fn answers_are_taken_in_any_order() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        // More than may be under way: the later ones wait for room.
        let mut puts: Vec<_> =
            (0..3000_u32).map(|n| client.start_put(&n.to_ne_bytes(), &[1; 100], None)).collect();
        while let Some(put) = puts.pop() {
            put.wait().unwrap();
        }
        let mut gets: Vec<_> = (0..3000_u32).map(|n| client.start_get(&n.to_ne_bytes())).collect();
        while let Some(get) = gets.pop() {
            assert_eq!(get.wait().unwrap(), Some(vec![1; 100]));
        }
        // What nobody waits for is done all the same.
        (0..100_u32).for_each(|n| drop(client.start_delete(&n.to_ne_bytes())));
        // The server takes calls in order; a one-sided read does not wait for them.
        assert_eq!(client.counts().unwrap().keys, 2900);
        assert_eq!(client.start_get(&0_u32.to_ne_bytes()).wait().unwrap(), None);
        rig.store.clear().unwrap();
    }
}

#[test]
fn threads_share_a_client() {
    let rig = Rig::new();
    for transport in transports() {
        let client = rig.connect(transport);
        std::thread::scope(|scope| {
            for thread in 0..4_u32 {
                let client = &client;
                scope.spawn(move || {
                    for n in 0..300_u32 {
                        let key = [thread, n].map(u32::to_ne_bytes).concat();
                        client.put(&key, &key).unwrap();
                        assert_eq!(client.get(&key).unwrap(), Some(key));
                    }
                });
            }
        });
    }
}

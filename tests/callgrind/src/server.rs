//! What the server of a store does for a request, from its bytes to those of the reply, without a socket.

use std::sync::Arc;

use caravan_store::{Store, StoreOptions};
use caravan_store_server::{Dialogue, ServedParts, ServerFacts, ServerState};

/// Keys, few enough that hardly any two share a bucket: where they lie is random.
const KEYS: usize = 64;

/// A dialogue with a server whose store has the keys, and the requests of its client.
struct ServerWorld {
    dialogue: Dialogue,
    gets: Vec<Vec<u8>>,
    sets: Vec<Vec<u8>>,
    /// The request that comes next.
    next: usize,
}

impl ServerWorld {
    fn new() -> Self {
        let store = Arc::new(Store::embedded(StoreOptions::new(64 << 20)).expect("a store"));
        let state = Arc::new(ServerState::new(
            ServedParts::whole(store).expect("parts"),
            ServerFacts::new("probes"),
            None,
        ));
        let mut dialogue = Dialogue::new(state, "probe".to_owned(), 0);
        let get = |key| format!("*2\r\n$3\r\nGET\r\n$16\r\n{key:016}\r\n").into_bytes();
        let set = |key| format!("*3\r\n$3\r\nSET\r\n$16\r\n{key:016}\r\n$32\r\n{key:032}\r\n").into_bytes();
        let (gets, sets) = ((0..KEYS).map(get).collect(), (0..KEYS).map(set).collect::<Vec<_>>());
        sets.iter().for_each(|request| _ = dialogue.serve(request, 0));
        dialogue.output().clear();
        Self { dialogue, gets, sets, next: 0 }
    }

    fn turn(&mut self) {
        self.next = (self.next + 1) % KEYS;
        self.dialogue.output().clear();
    }
}

probes! {
    ServerWorld, 1000;
    probe_server_get, ServerWorld::turn, |world| {
        _ = world.dialogue.serve(&world.gets[world.next], 0);
    }, |world| assert!(world.dialogue.output().starts_with(b"$32\r\n"));
    // A new value of the same length for a key that exists.
    probe_server_set, ServerWorld::turn, |world| {
        _ = world.dialogue.serve(&world.sets[world.next], 0);
    }, |world| assert_eq!(world.dialogue.output(), b"+OK\r\n");
}

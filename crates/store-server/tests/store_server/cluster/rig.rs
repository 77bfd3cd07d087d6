//! Servers of one store, each with parts of its own. The test itself decides who has what.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use caravan_cluster::{Configuration, MemberId, NewMember, PartId, StoreInstance, slot_of};
use caravan_store::{Store, StoreOptions};
use caravan_store_server::{
    ServedParts, ServerOptions, StoreAnswer, StoreClient, StoreServer, local_address,
};

/// A store of several servers, all in this process.
pub struct ClusterRig {
    pub configuration: Configuration,
    pub servers: Vec<RigServer>,
    pub folder: PathBuf,
    /// The memory of each part.
    memories: BTreeMap<PartId, OwnedFd>,
}

/// One of the servers.
pub struct RigServer {
    pub parts: Arc<ServedParts>,
    pub server: StoreServer,
}

impl RigServer {
    /// Returns `127.0.0.1:PORT`.
    pub fn address(&self) -> String {
        self.server.address().expect("it listens on TCP").to_string()
    }

    pub fn client(&self) -> StoreClient {
        StoreClient::connect(self.server.socket()).expect("connected")
    }
}

fn socket(folder: &Path, number: usize) -> PathBuf {
    folder.join(format!("socket-{number}"))
}

fn members(folder: &Path, addresses: &[String]) -> Vec<NewMember> {
    let member = |(number, address): (usize, &String)| NewMember {
        name: format!("server-{number}"),
        client_address: address.clone(),
        member_address: format!("unix:{}#here,127.0.0.2:{}", socket(folder, number).display(), 7000 + number),
        kept: Vec::new(),
    };
    addresses.iter().enumerate().map(member).collect()
}

impl ClusterRig {
    /// Starts servers of a store with so many parts: part 0 is at the first server, part 1 at the second, and so on round.
    pub fn new(servers: usize, parts: u16) -> Self {
        Self::with(servers, parts, |_| ())
    }

    /// The same with further options of the servers.
    pub fn with(servers: usize, parts: u16, set: impl Fn(&mut ServerOptions)) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("caravan-cluster-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let configured = |addresses: &[String]| {
            Configuration::create("test", StoreInstance(7), 1, parts, &members(&folder, addresses)).unwrap()
        };
        // The addresses are known once the servers listen.
        let unknown: Vec<String> = (0..servers).map(|number| format!("127.0.0.1:{}", 1 + number)).collect();
        let configuration = configured(&unknown);
        let started = (0..servers).map(|number| {
            let own = ServedParts::of_cluster(&configuration, MemberId(number as u16));
            let mut options = ServerOptions::new("test", socket(&folder, number));
            options.address = Some(local_address(0));
            set(&mut options);
            let server = StoreServer::start_parts(Arc::clone(&own), options, |text| eprintln!("{text}"));
            RigServer { parts: own, server: server.unwrap() }
        });
        let servers: Vec<RigServer> = started.collect();
        let known: Vec<String> = servers.iter().map(RigServer::address).collect();
        let mut rig = Self { configuration: configured(&known), servers, folder, memories: BTreeMap::new() };
        for part in rig.configuration.parts.clone() {
            rig.memories.insert(part.id, Store::new_memory("test").unwrap());
            rig.servers[rig.holder(part.id)].parts.add(part.id, rig.open(part.id)).unwrap();
        }
        rig.publish();
        rig
    }

    /// Takes the memory of a part over. Fails if somebody uses the part's store still.
    fn open(&self, part: PartId) -> Arc<Store> {
        let memory = self.memories[&part].try_clone().unwrap();
        Arc::new(Store::open(memory, StoreOptions::new(32 << 20)).expect("nobody has the memory any more"))
    }

    /// Returns the memory that a part had first.
    pub fn memory(&self, part: PartId) -> BorrowedFd<'_> {
        self.memories[&part].as_fd()
    }

    /// Returns which server has a part.
    pub fn holder(&self, part: PartId) -> usize {
        usize::from(self.configuration.part(part).and_then(|part| part.primary).expect("a primary").0)
    }

    /// Returns the part of a key.
    pub fn part_of(&self, key: &[u8]) -> PartId {
        self.configuration.slot_map().part(slot_of(key))
    }

    /// Returns the server that has the part of a key.
    pub fn server_of(&self, key: &[u8]) -> &RigServer {
        &self.servers[self.holder(self.part_of(key))]
    }

    /// Changes the configuration, which is of the next epoch then, and tells all servers.
    pub fn change(&mut self, change: impl FnOnce(&mut Configuration)) {
        self.configuration.epoch += 1;
        change(&mut self.configuration);
        self.publish();
    }

    /// Tells all servers the configuration.
    pub fn publish(&mut self) {
        self.configuration.check().expect("a sound configuration");
        for (number, server) in self.servers.iter().enumerate() {
            server.parts.set_configuration(&self.configuration, MemberId(number as u16));
        }
    }

    /// Hands a part over to another server, in the order in which real servers do it.
    pub fn move_part(&mut self, part: PartId, to: usize) {
        drop(self.servers[self.holder(part)].parts.remove(part).expect("it was served"));
        self.servers[to].parts.add(part, self.open(part)).unwrap();
        self.change(|configuration| {
            let epoch = configuration.epoch;
            let part = configuration.parts.iter_mut().find(|found| found.id == part).expect("a part");
            (part.primary, part.primary_since) = (Some(MemberId(to as u16)), epoch);
        });
    }

    /// Returns a key of a part: the first of `PREFIX0`, `PREFIX1` and so on.
    pub fn key_of(&self, part: PartId, prefix: &str) -> String {
        let keys = (0..).map(|number| format!("{prefix}{number}"));
        keys.into_iter().find(|key| self.part_of(key.as_bytes()) == part).expect("a key of each part")
    }
}

impl Drop for ClusterRig {
    fn drop(&mut self) {
        self.servers.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Sends words to a server, and returns its answer as `redis-cli` shows it, without quotes.
pub fn ask(client: &mut StoreClient, words: &str) -> String {
    let words: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    shown(&client.call(&words).expect("an answer"))
}

/// Shows an answer.
pub fn shown(answer: &StoreAnswer) -> String {
    match answer {
        StoreAnswer::Simple(text) | StoreAnswer::Error(text) | StoreAnswer::Bulk(text) => {
            String::from_utf8_lossy(text).into_owned()
        }
        StoreAnswer::Integer(number) => number.to_string(),
        StoreAnswer::Null => "null".to_owned(),
        StoreAnswer::Array(answers) => {
            format!("[{}]", answers.iter().map(shown).collect::<Vec<_>>().join(", "))
        }
        other => panic!("{other:?}"),
    }
}

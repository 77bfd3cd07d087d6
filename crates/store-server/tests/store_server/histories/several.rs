//! The processes of a store of several servers: keepers, which are children of the test, and the servers that they start.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use caravan_cluster::FileRegister;
use caravan_store::Eviction;
use caravan_store::faults::{self, FaultMoment};
use caravan_store_server::keeper::channel::{
    ClusterSettings, KeeperChannel, ServerAnswer, ServerOrder, ServerSettings,
};
use caravan_store_server::keeper::{KeeperEvent, KeeperOptions, StoreKeeper};
use caravan_store_server::{
    HeldForServer, ListeningSockets, MemberOptions, Membership, ServerOptions, StoreServer, local_address,
};
use serde::{Deserialize, Serialize};

use super::children::{self, Role};
use super::rig::READY;

/// The name of the store.
pub const STORE: &str = "judged";
pub const PARTS: u16 = 6;
pub const PART_BYTES: u64 = 64 << 20;
/// Long enough that servers which get no processor for a while are not expelled.
pub const LEASE: Duration = Duration::from_secs(3);
/// The test below. A keeper starts its servers as `PROGRAM store-server NAME`, and the harness takes these words for names of
/// tests.
const SERVERS_TEST: &str = "histories::several::server_of_a_keeper";
/// How long a new server waits for its parts before it says that it serves.
const SERVING_WAIT: Duration = Duration::from_secs(5);

/// What a keeper is told when it starts.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct KeeperOrder {
    pub folder: PathBuf,
    pub member: String,
    /// The same each time that this member is started.
    pub port: u16,
    /// When the server ends itself.
    pub ends: Option<OwnEnd>,
}

/// The moments at which a server ends itself, each with how many of its kind come until then.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub enum OwnEnd {
    /// It stops before it sends the record of a commit to the copies.
    StopAtRecord(u64),
    /// It is killed before a branch happens that was decided.
    KillAtBranch(u64),
    /// It is killed when it has decided a transaction over several parts.
    KillAtDecision(u64),
}

impl KeeperOrder {
    pub fn socket(&self) -> PathBuf {
        self.folder.join(format!("{}.sock", self.member))
    }
}

/// Returns the file with the configuration of the store in this folder.
pub fn place(folder: &std::path::Path) -> PathBuf {
    folder.join("cluster.json")
}

/// Keeps a server until it is killed. Says on its standard output that the first server serves.
pub fn keep(order: &KeeperOrder) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let mut server = ServerOptions::new(SERVERS_TEST, order.socket());
    server.address = Some(local_address(order.port));
    server.forwards = true;
    let address = server.address.map(|address| address.ip().to_string()).unwrap_or_default();
    let member = MemberOptions {
        store: STORE.to_owned(),
        name: order.member.clone(),
        client_address: address.clone(),
        socket: order.socket(),
        tcp_address: Some(address),
        part_bytes: PART_BYTES,
        copies: Some(2),
        parts: Some(PARTS),
        lease: Some(LEASE),
        fill_pause: Duration::ZERO,
    };
    let mut keeper = StoreKeeper::start(KeeperOptions {
        server,
        memory_bytes: PART_BYTES,
        cluster: Some(ClusterSettings { place: place(&order.folder).display().to_string(), member }),
        load: None,
        save: None,
        program: File::open("/proc/self/exe").map_err(|error| failed(&error))?.into(),
        log: None,
    })
    .map_err(|error| failed(&error))?;
    let mut out = File::from(std::io::stdout().as_fd().try_clone_to_owned().map_err(|error| failed(&error))?);
    while !keeper.is_over() {
        for event in keeper.step(Duration::from_secs(1)).map_err(|error| failed(&error))? {
            match event {
                KeeperEvent::Ready { .. } => out.write_all(&[READY]).map_err(|error| failed(&error))?,
                event => println!("{}: {event:?}", order.member),
            }
        }
    }
    Err("a keeper has ended by itself".to_owned())
}

/// As a test of its own, this does nothing.
#[test]
fn server_of_a_keeper() {
    let Some(order) = children::order() else { return };
    let Role::Keeper(order) = order.role else { panic!("only a keeper starts this: {order:?}") };
    let ended = serve(&order);
    if let Err(text) = &ended {
        eprintln!("{}: {text}", order.member);
    }
    std::process::exit(i32::from(ended.is_err()));
}

/// Serves what the keeper lends, until the keeper ends.
fn serve(order: &KeeperOrder) -> Result<(), String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let input = std::io::stdin().as_fd().try_clone_to_owned().map_err(|error| failed(&error))?;
    let keeper = Arc::new(KeeperChannel::of(input));
    keeper.send(&ServerAnswer::Running, &[]).map_err(|error| failed(&error))?;
    let mut held = Vec::new();
    let (settings, lent) = loop {
        match keeper.receive() {
            Ok((ServerOrder::Held { name, note }, descriptors)) => {
                held.push(HeldForServer { name, note, descriptors });
            }
            Ok((ServerOrder::Serve(settings), lent)) => break (settings, lent),
            _ => return Ok(()),
        }
    };
    let (member, server, lock) = become_member(&keeper, &settings, lent, held)?;
    keeper.send(&ServerAnswer::Serving, &[]).map_err(|error| failed(&error))?;
    match order.ends {
        Some(OwnEnd::StopAtRecord(number)) => faults::stop_at(FaultMoment::Record, number),
        Some(OwnEnd::KillAtBranch(number)) => faults::kill_at(FaultMoment::Branch, number),
        Some(OwnEnd::KillAtDecision(number)) => faults::kill_at(FaultMoment::Decision, number),
        None => {}
    }
    // No order is meant for it but to end.
    let _ = keeper.receive::<ServerOrder>();
    server.end();
    member.end(false);
    drop(lock);
    Ok(())
}

fn become_member(
    keeper: &Arc<KeeperChannel>,
    settings: &ServerSettings,
    lent: Vec<OwnedFd>,
    held: Vec<HeldForServer>,
) -> Result<(caravan_store_server::RunningMember, StoreServer, OwnedFd), String> {
    let failed = |error: &dyn std::fmt::Display| error.to_string();
    let cluster = settings.cluster.clone().ok_or("the server is alone")?;
    let mut lent = lent.into_iter();
    let (_memory, lock, unix) = (lent.next(), lent.next(), lent.next());
    let (lock, unix) = lock.zip(unix).ok_or("too few descriptors")?;
    let sockets = ListeningSockets::lent(unix, settings.tcp.iter().cloned().zip(lent));
    let register = Arc::new(FileRegister::new(&cluster.place).map_err(|error| failed(&error))?);
    let member = Membership::join(cluster.member, register, None, Arc::clone(keeper), held);
    let member = member.map_err(|error| failed(&error))?;
    let parts = member.parts();
    let mut options = ServerOptions::new(STORE, PathBuf::from(&settings.socket));
    (options.workers, options.spreads, options.forwards) = (Some(2), true, settings.forwards);
    let server = StoreServer::on(sockets, Arc::clone(&parts), options, |text| eprintln!("{text}"));
    let server = server.map_err(|error| failed(&error))?;
    // The next server becomes a member anew.
    let gone = |_| std::process::exit(1);
    let member = member.run(&parts, Eviction::Refuse, |text| eprintln!("{text}"), gone);
    let member = member.map_err(|error| failed(&error))?;
    member.wait_until_serving(SERVING_WAIT);
    Ok((member, server, lock))
}

//! A server as the member of a cluster: which parts of the store it has, as the configuration says, and for how long it may
//! answer.
//!
//! | thread | what it does |
//! |---|---|
//! | `member` | drives [`MemberWatch`]: leases, suspicions, changes of members; talks to the other members |
//! | `member-register`, `member-watch` | ask the register, and wait for its news |
//! | `part-N` | what part N is here ([`part`]) |
//! | `part-dial`, `part-accept`, `part-fill`, `part-restore` | what may take long for a part |
//!
//! They tell each other what has happened by messages. Connections between members go one way: each member sends over those
//! that it has made, and receives over the others.

pub(crate) mod address;
mod control;
mod duty;
mod feed;
mod inbox;
mod joining;
mod line;
mod neighbours;
mod part;
mod register;
mod status;

use std::collections::BTreeMap;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use caravan_cluster::{
    BootTime, Change, Configuration, ConfigurationRegister, MemberIdentity, MemberMessage, MemberWatch,
    NewMember, PartId, ProcessNumber, StoreInstance, StoredConfiguration, SwapOutcome,
};
use caravan_segment::passing::DoorwayAddress;
use caravan_segment::process::Process;
use caravan_store::connected::{ConnectLimit, ServerSocket};
use caravan_store::{Eviction, StoreOptions};
use serde::{Deserialize, Serialize};

pub use self::address::host_name;
use self::control::MemberControl;
use self::feed::{CopyCall, CopyCaller};
use self::inbox::Inbox;
use self::joining::Joining;
use self::neighbours::Neighbours;
use self::part::HeldMemory;
use self::register::RegisterThreads;
pub use self::status::{FeedReport, MemberStatus};
use crate::error::ServeError;
use crate::keeper::channel::{KeeperChannel, ServerAnswer};
use crate::limits::{MEMBER_END_MAX, SERVING_PAUSE};
use crate::parts::ServedParts;
use crate::socket::say;
use crate::worker::Tell;

/// What a server needs to be a member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberOptions {
    /// The name of the store, which all members share.
    pub store: String,
    /// The name of this member.
    pub name: String,
    /// Where clients reach it.
    pub client_address: String,
    /// The path of its UNIX socket, for members of the same host.
    pub socket: PathBuf,
    /// Its address on TCP, for members of other hosts.
    pub tcp_address: Option<String>,
    /// The memory of each part, everything included.
    pub part_bytes: u64,
    /// How many copies of each part there are to be. What a cluster was made with stays: if this is given, it must be the same.
    pub copies: Option<u8>,
    /// How many parts there are to be. As for `copies`.
    pub parts: Option<u16>,
    /// How long a lease is to last. As for `copies`.
    #[serde(default)]
    pub lease: Option<Duration>,
    /// The pause between two pieces of 64 KiB that a copy is filled with.
    pub fill_pause: Duration,
}

/// What the thread of a member is told.
#[derive(Debug)]
enum MemberEvent {
    /// Another member, or one that is to be, has connected.
    Connected(OwnedFd, Option<Process>),
    /// What came of the attempt to connect to a member.
    Dialed(MemberIdentity, Option<OwnedFd>),
    Learned(Box<StoredConfiguration>),
    /// The register could not be read.
    NotRead,
    Swapped(Option<SwapOutcome>),
    /// Nothing of earlier epochs than this is under way in the part.
    Closed(PartId, u64),
    Propose(Change),
    /// Somebody wants the member of this name to leave, and waits for an answer.
    Leave(String, OwnedFd),
    Suspect(MemberIdentity),
    /// A primary wants to write into the ring of a copy.
    Call(CopyCall, CopyCaller),
    /// This server serves nothing any more; whether its keeper starts no other one. The sender is dropped once the others know.
    End {
        is_last: bool,
        told: SyncSender<()>,
    },
}

/// A message between members.
#[derive(Debug, Serialize, Deserialize)]
struct Letter {
    /// None from a server that is no member yet.
    from: Option<(MemberIdentity, ProcessNumber)>,
    /// Whoever has taken its place drops the message.
    to: MemberIdentity,
    message: MemberMessage,
}

/// What the next server is to know of memory that the keeper holds.
#[derive(Debug, Serialize, Deserialize)]
struct HeldNote {
    me: MemberIdentity,
    since: u64,
}

impl HeldNote {
    /// Has the keeper hold the memory of a part with this note.
    fn hold(
        &self,
        keeper: &KeeperChannel,
        part: PartId,
        memory: &[BorrowedFd<'_>],
    ) -> Result<(), ServeError> {
        let note = serde_json::to_string(self).map_err(ServeError::system("write JSON"))?;
        keeper.send(&ServerAnswer::Hold { name: part.to_string(), note }, memory)
    }
}

/// What all threads of a member share.
struct MemberShared {
    me: MemberIdentity,
    store: String,
    instance: StoreInstance,
    host: String,
    place: String,
    password: Option<Vec<u8>>,
    part_bytes: u64,
    eviction: Eviction,
    fill_pause: Duration,
    leave_wait: Duration,
    served: Arc<ServedParts>,
    /// How the parts of which this member is the primary feed their copies.
    reports: Mutex<BTreeMap<PartId, Vec<FeedReport>>>,
    keeper: Arc<KeeperChannel>,
    inbox: Arc<Inbox<MemberEvent>>,
    is_ending: AtomicBool,
    tell: Tell,
}

impl MemberShared {
    fn store_options(&self) -> StoreOptions {
        StoreOptions::new(self.part_bytes).eviction(self.eviction)
    }

    /// Has the keeper hold the memory of a part: its image, and the ring of a copy. `since` is the epoch since which it is
    /// the same memory.
    fn hold(&self, part: PartId, since: u64, memory: &[BorrowedFd<'_>]) -> Result<(), ServeError> {
        HeldNote { me: self.me, since }.hold(&self.keeper, part, memory)
    }

    /// Has the keeper no longer hold the memory of a part.
    fn release(&self, part: PartId) {
        // Without a keeper there is nothing to be released.
        let _ = self.keeper.send(&ServerAnswer::Release(part.to_string()), &[]);
    }

    fn reports(&self) -> MutexGuard<'_, BTreeMap<PartId, Vec<FeedReport>>> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }
}

/// Starts a thread.
fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), ServeError> {
    let spawned = std::thread::Builder::new().name(name.to_owned()).spawn(body);
    spawned.map(drop).map_err(ServeError::system("start a thread"))
}

/// What a keeper has held for a server.
#[derive(Debug)]
pub struct HeldForServer {
    /// Its name.
    pub name: String,
    /// The note with it.
    pub note: String,
    /// The descriptors.
    pub descriptors: Vec<OwnedFd>,
}

impl HeldForServer {
    fn memory(self) -> Option<(PartId, MemberIdentity, HeldMemory)> {
        let HeldNote { me, since } = serde_json::from_str(&self.note).ok()?;
        let mut descriptors = self.descriptors.into_iter();
        let memory = HeldMemory { since, image: descriptors.next()?, ring: descriptors.next() };
        Some((PartId(self.name.parse().ok()?), me, memory))
    }
}

/// Why a server is no member any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GoneReason {
    /// The others have expelled it, because it was silent. The next server becomes a member anew.
    Expelled,
    /// It has handed its parts over, as it was asked to.
    Left,
}

/// A membership: what [`join`](Self::join) has found, and [`run`](Self::run) goes on with.
pub struct Membership {
    options: MemberOptions,
    register: Arc<dyn ConfigurationRegister>,
    stored: StoredConfiguration,
    me: MemberIdentity,
    host: String,
    password: Option<Vec<u8>>,
    held: BTreeMap<PartId, HeldMemory>,
    keeper: Arc<KeeperChannel>,
}

impl Membership {
    /// Makes this server a member of its cluster, or goes on as one, if `held` says that a server before was one. Makes the
    /// cluster if there is none. Blocks until the other members have agreed.
    pub fn join(
        options: MemberOptions,
        register: Arc<dyn ConfigurationRegister>,
        password: Option<Vec<u8>>,
        keeper: Arc<KeeperChannel>,
        held: Vec<HeldForServer>,
    ) -> Result<Self, ServeError> {
        let host = address::host_name();
        let tcp = options.tcp_address.as_deref();
        let member_address = address::member_address(&options.socket, tcp, &host).ok_or_else(|| {
            ServeError::Member("this member has no address for the others: give --port".to_owned())
        })?;
        let new = NewMember {
            name: options.name.clone(),
            client_address: options.client_address.clone(),
            member_address,
            kept: Vec::new(),
        };
        let held: Vec<_> = held.into_iter().filter_map(HeldForServer::memory).collect();
        let kept = held.iter().map(|(part, holder, _)| (*part, *holder)).collect();
        let mut joining =
            Joining { options: &options, register: &*register, host: &host, new, password: &password, kept };
        let (stored, me) = joining.join()?;
        let mut own = BTreeMap::new();
        for (part, holder, memory) in held {
            // A part that was lost, and is whole again by this memory: the primary is this member since it has joined.
            let found = stored.configuration.part(part);
            let is_restored = found.is_some_and(|found| {
                found.made && found.primary == Some(me.id) && found.primary_since == me.since
            });
            if holder == me {
                own.insert(part, memory);
            } else if is_restored {
                let note = HeldNote { me, since: memory.since };
                note.hold(&keeper, part, &memory.descriptors())?;
                own.insert(part, memory);
            } else {
                // Memory of an earlier membership, which others have given up.
                let _ = keeper.send(&ServerAnswer::Release(part.to_string()), &[]);
            }
        }
        Ok(Self { options, register, stored, me, host, password, held: own, keeper })
    }

    /// Returns the parts of this member, none of which is served yet, for [`StoreServer::on`](crate::StoreServer::on).
    pub fn parts(&self) -> Arc<ServedParts> {
        ServedParts::of_cluster(&self.stored.configuration, self.me.id)
    }

    /// Starts to serve parts, as the configuration says, by `served`. `gone` is called, on a thread of the member's, when
    /// this server is no member any more: this process then ends.
    pub fn run(
        self,
        served: &Arc<ServedParts>,
        eviction: Eviction,
        tell: impl Fn(&str) + Send + Sync + 'static,
        gone: impl FnOnce(GoneReason) + Send + 'static,
    ) -> Result<RunningMember, ServeError> {
        let tell: Tell = Arc::new(tell);
        let inbox = Arc::new(Inbox::new()?);
        served.set_lease(BootTime::default());
        let shared = Arc::new(MemberShared {
            me: self.me,
            store: self.options.store.clone(),
            instance: self.stored.configuration.instance,
            host: self.host,
            place: self.register.place(),
            password: self.password,
            part_bytes: self.options.part_bytes,
            eviction,
            fill_pause: self.options.fill_pause,
            leave_wait: self.stored.configuration.times().leaving(),
            served: Arc::clone(served),
            reports: Mutex::default(),
            keeper: self.keeper,
            inbox: Arc::clone(&inbox),
            is_ending: AtomicBool::new(false),
            tell: Arc::clone(&tell),
        });
        let register = RegisterThreads::start(&self.register, &inbox, self.stored.revision, &tell)?;
        served.set_door(MemberDoor { shared: Arc::clone(&shared) });
        let control = MemberControl {
            watch: MemberWatch::new(self.me, self.stored, BootTime::now()),
            shared: Arc::clone(&shared),
            register,
            ways: BTreeMap::new(),
            callers: Vec::new(),
            neighbours: Neighbours::default(),
            parts: BTreeMap::new(),
            held: self.held,
            closing: None,
            is_leaving: false,
            ticked: Instant::now(),
            gone: Some(Box::new(gone)),
        };
        spawn("member", move || control.run())?;
        Ok(RunningMember { shared })
    }
}

/// A member at work. Dropped, it ends its threads.
pub struct RunningMember {
    shared: Arc<MemberShared>,
}

impl RunningMember {
    /// Waits until this member serves the parts that the configuration gives it, for at most `limit`.
    pub fn wait_until_serving(&self, limit: Duration) {
        let begin = Instant::now();
        while !self.shared.served.is_complete() && begin.elapsed() < limit {
            std::thread::sleep(SERVING_PAUSE);
        }
    }
}

impl RunningMember {
    /// Tells the others that this server has ended; to be called when it serves nothing any more. `is_last` says whether its
    /// keeper starts no other one: then nobody waits for that.
    pub fn end(self, is_last: bool) {
        let (told, is_told) = sync_channel(0);
        self.shared.inbox.push(MemberEvent::End { is_last, told });
        // They notice by themselves, later.
        let _ = is_told.recv_timeout(MEMBER_END_MAX);
    }
}

impl Drop for RunningMember {
    fn drop(&mut self) {
        self.shared.is_ending.store(true, Ordering::Release);
    }
}

/// Where connections of other members come in.
pub(crate) struct MemberDoor {
    shared: Arc<MemberShared>,
}

impl std::fmt::Debug for MemberDoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MemberDoor")
    }
}

/// What another member says with `CARAVAN.MEMBER`.
#[derive(Clone, Debug)]
pub(crate) enum MemberCall {
    /// Messages follow.
    Line(StoreInstance),
    /// The server of this name is to leave the store.
    Leave(String),
    /// It wants to write into the ring of a copy.
    Copy(CopyCall, Option<DoorwayAddress>),
}

impl MemberDoor {
    /// Returns what this member knows of the store, whose configuration is this one.
    pub(crate) fn status(&self, configuration: &Configuration) -> MemberStatus {
        let me = configuration.member(self.shared.me.id);
        MemberStatus {
            member: me.map(|me| me.name.clone()).unwrap_or_default(),
            place: self.shared.place.clone(),
            host: self.shared.host.clone(),
            configuration: configuration.clone(),
            feeds: self.shared.reports().clone(),
        }
    }

    /// Takes a connection over. The answer is sent here or later.
    pub(crate) fn admit(&self, socket: OwnedFd, call: MemberCall) {
        let instance = match &call {
            MemberCall::Line(instance) => *instance,
            MemberCall::Copy(call, _) => call.instance,
            // A user's command: the name says enough.
            MemberCall::Leave(_) => self.shared.instance,
        };
        if instance != self.shared.instance {
            return say(
                &socket,
                "-ERR this server is of another store, or of an earlier one of that name\r\n",
            );
        }
        match call {
            MemberCall::Line(_) => {
                say(&socket, "+OK\r\n");
                let process = neighbours::peer(&socket);
                self.shared.inbox.push(MemberEvent::Connected(socket, process));
            }
            MemberCall::Copy(call, door) => {
                self.shared.inbox.push(MemberEvent::Call(call, CopyCaller { socket, door }));
            }
            MemberCall::Leave(name) => self.shared.inbox.push(MemberEvent::Leave(name, socket)),
        }
    }
}

/// Connects to a member for messages, at the first of these addresses that works. Blocks.
fn dial(addresses: &[String], password: Option<&[u8]>, instance: StoreInstance) -> Option<OwnedFd> {
    let instance = instance.to_string();
    addresses.iter().find_map(|address| {
        let options = address::options(address, password);
        let mut socket = ServerSocket::connect(&options, ConnectLimit::of(&options)).ok()?;
        socket.command(&options, &[b"CARAVAN.MEMBER", b"LINE", instance.as_bytes()]).ok()?;
        Some(socket.into())
    })
}

//! The keeper of a store: a process that holds the memory, the lock of the name and the listening sockets, and starts
//! servers, one after the other, to which it lends them. It runs on one thread, and only waits.
//!
//! | event | what the keeper does |
//! |---|---|
//! | a server runs | tells it what to serve; a server that is to replace another waits until that one has ended |
//! | the server dies | starts another one over the same memory; the more often in a row, the later |
//! | the first server dies before it serves | ends with the reason |
//! | order to upgrade | starts a server of the new program; when that runs, ends the old one in order |
//! | the new server dies before it serves | starts one of the old program again |
//! | order to save | passes it on to the server, which answers by itself |
//! | the server has left its store of several servers | ends with it |
//! | end | has the server answer, save and end |
//!
//! If the keeper dies, its channel to the server closes, and the server ends in order.

pub mod channel;
pub mod control;
mod process;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use caravan_store::{Eviction, Store};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::error::ServeError;
use crate::keeper::channel::{
    ClusterSettings, KeeperAnswer, KeeperChannel, KeeperOrder, ServerOrder, ServerSettings,
};
use crate::keeper::control::{ControlDoor, refuse};
use crate::keeper::process::{HeldDescriptors, ServerDeath, ServerPhase, ServerProcess};
use crate::limits::{
    HELD_MAX, RESTART_PAUSE_MAX, RESTART_PAUSE_MIN, SERVER_CALM, SERVER_END_MAX, SERVER_START_MAX,
};
use crate::listen::StoreListening;
use crate::server::ServerOptions;
use crate::state::ClientSettings;
use crate::tls::{TlsIdentity, TlsOptions};

/// The first word of a program that is started as a server. Its standard input is its [`KeeperChannel`]; the second word is the
/// name of the store, for people who look at processes.
pub const SERVER_COMMAND: &str = "store-server";

/// What a keeper is started with.
#[derive(Debug)]
pub struct KeeperOptions {
    /// What its servers are started with.
    pub server: ServerOptions,
    /// The memory of the store, everything included.
    pub memory_bytes: u64,
    /// The cluster that its servers are members of, if there is one. The addresses in it are hosts without a port.
    pub cluster: Option<ClusterSettings>,
    /// The snapshot with which the store begins.
    pub load: Option<PathBuf>,
    /// The file to which the store is saved at the end.
    pub save: Option<PathBuf>,
    /// The program of its servers, opened for reading.
    pub program: OwnedFd,
    /// Where its servers write messages for the operator; `None` for the keeper's standard error.
    pub log: Option<OwnedFd>,
}

/// Something that the operator of a store should know.
#[derive(Debug)]
pub enum KeeperEvent {
    /// The store is served for the first time.
    Ready {
        /// The process of the server.
        pid: u32,
    },
    /// The server has died, or could not be started.
    Lost {
        /// What has happened.
        what: String,
        /// How long the keeper waits before it starts another one.
        pause: Duration,
    },
    /// The server has left the store of several servers, as it was asked to. The keeper ends.
    Left,
    /// A server of another program serves.
    Upgraded {
        /// Its process.
        pid: u32,
    },
    /// A server of another program did not get so far, and one of the old one goes on.
    NotUpgraded {
        /// The reason.
        why: String,
    },
}

/// A keeper. Dropped, it kills its server and removes the sockets.
#[derive(Debug)]
pub struct StoreKeeper {
    server: Option<ServerProcess>,
    /// Servers that have died, and whose heirs live.
    dead: Vec<ServerProcess>,
    upgrade: Option<StoreUpgrade>,
    control: ControlDoor,
    settings: ServerSettings,
    memory: OwnedFd,
    /// What servers have had held, by name.
    held: BTreeMap<String, HeldDescriptors>,
    listening: StoreListening,
    tls: Option<TlsOptions>,
    program: OwnedFd,
    log: Option<OwnedFd>,
    /// When the next server is started, while there is none.
    start_at: Instant,
    /// How many servers have died in a row.
    deaths: u32,
    has_served: bool,
    is_ending: bool,
    is_over: bool,
    events: Vec<KeeperEvent>,
}

/// An upgrade under way.
#[derive(Debug)]
struct StoreUpgrade {
    caller: KeeperChannel,
    program: OwnedFd,
    /// The new server, until it takes the place of the old one.
    candidate: Option<ServerProcess>,
}

impl StoreKeeper {
    /// Makes the memory, listens, and starts the first server. [`step`](Self::step) says when that one serves.
    pub fn start(options: KeeperOptions) -> Result<Self, ServeError> {
        options.server.check()?;
        let ServerOptions { name, socket, password, eviction, clients_max, tls, .. } = &options.server;
        let listening = StoreListening::open(&options.server)?;
        let control = ControlDoor::open(socket)?;
        let memory = Store::new_memory(&format!("caravan-{name}"))
            .map_err(|error| ServeError::Keeper(error.to_string()))?;
        let settings = ServerSettings {
            name: name.clone(),
            socket: socket.clone().into(),
            client: ClientSettings { password: password.clone(), clients_max: *clients_max },
            memory_bytes: options.memory_bytes,
            evicts: *eviction == Eviction::LeastRecentlyUsed,
            forwards: options.server.forwards,
            load: options.load.map(PathBuf::into_os_string),
            save: options.save.map(PathBuf::into_os_string),
            cluster: options.cluster.map(|cluster| with_port(cluster, listening.sockets.address())),
            tcp: Vec::new(),
        };
        let server = ServerProcess::start(&options.program, name, options.log.as_ref())?;
        Ok(Self {
            server: Some(server),
            dead: Vec::new(),
            upgrade: None,
            control,
            settings,
            memory,
            held: BTreeMap::new(),
            listening,
            tls: tls.clone(),
            program: options.program,
            log: options.log,
            start_at: Instant::now(),
            deaths: 0,
            has_served: false,
            is_ending: false,
            is_over: false,
            events: Vec::new(),
        })
    }

    /// Returns the address on TCP.
    pub fn address(&self) -> Option<SocketAddr> {
        self.listening.sockets.address()
    }

    /// Returns the address at which clients speak TLS.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.listening.sockets.tls_address()
    }

    /// Returns the address of the metrics.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.listening.sockets.metrics_address()
    }

    /// Waits until something happens, at most for `most`, deals with it, and returns what the operator should know. An error
    /// ends the store: it could not be started, or not be saved.
    pub fn step(&mut self, most: Duration) -> Result<Vec<KeeperEvent>, ServeError> {
        self.wait(most);
        for (order, descriptor, caller) in self.control.orders() {
            match order {
                KeeperOrder::Upgrade => self.begin_upgrade(descriptor, caller),
                KeeperOrder::Save => self.pass_save_on(&descriptor, &caller),
            }
        }
        self.dead.retain(|server| !server.is_gone());
        self.watch_candidate();
        self.watch_server()?;
        if self.server.is_none() && !self.is_over && Instant::now() >= self.start_at {
            match ServerProcess::start(&self.program, &self.settings.name, self.log.as_ref()) {
                Ok(server) => self.server = Some(server),
                Err(error) => self.note_loss(error.to_string()),
            }
        }
        Ok(std::mem::take(&mut self.events))
    }

    /// Begins the end: the server answers what has arrived, saves if it is to, and ends. The caller goes on with
    /// [`step`](Self::step) until it [`is_over`](Self::is_over).
    pub fn end(&mut self) {
        self.is_ending = true;
        if let Some(upgrade) = self.upgrade.take() {
            refuse(&upgrade.caller, "the store is being ended");
        }
        let saves = self.has_served && self.settings.save.is_some();
        match &mut self.server {
            // What is not loaded whole is not saved.
            _ if !self.has_served => self.is_over = true,
            Some(server) => match server.phase {
                ServerPhase::Opening | ServerPhase::Serving => server.end(true),
                // One that leaves does not save, and one that starts cannot yet: another turn does.
                _ if saves => {}
                _ => self.is_over = true,
            },
            None if saves => self.start_at = Instant::now(),
            None => self.is_over = true,
        }
    }

    /// Returns whether the server has ended after [`end`](Self::end).
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    fn wait(&self, most: Duration) {
        let candidate = self.upgrade.as_ref().and_then(|upgrade| upgrade.candidate.as_ref());
        let servers = self.server.iter().chain(candidate);
        let servers = servers.flat_map(|server| [server.channel.as_fd(), server.process.as_fd()]);
        let mut ready: Vec<_> = self
            .control
            .descriptors()
            .chain(servers)
            .map(|descriptor| PollFd::from_borrowed_fd(descriptor, PollFlags::IN))
            .collect();
        let until_start = self.start_at.saturating_duration_since(Instant::now());
        let most = if self.server.is_none() { most.min(until_start) } else { most };
        // A signal ends the wait, too.
        let _ = poll(&mut ready, Timespec::try_from(most).ok().as_ref());
    }

    fn watch_server(&mut self) -> Result<(), ServeError> {
        let Some(server) = &mut self.server else { return Ok(()) };
        let before = server.phase;
        let listened = server.listen();
        if std::mem::take(&mut server.has_left) {
            // It ends by itself.
            self.is_ending = true;
            self.events.push(KeeperEvent::Left);
        }
        if let Some(changed) = server.changed.take() {
            self.settings.client = changed;
        }
        for (name, held) in std::mem::take(&mut server.held) {
            match held {
                Some(held) if self.held.len() < HELD_MAX || self.held.contains_key(&name) => {
                    self.held.insert(name, held);
                }
                Some(_) => {
                    server.failure = Some(format!("it has more than {HELD_MAX} memories held"));
                    server.kill();
                }
                None => drop(self.held.remove(&name)),
            }
        }
        if let Err(death) = listened {
            let (pid, phase, calm) = (server.pid(), server.phase, server.since.elapsed() >= SERVER_CALM);
            self.dead.extend(self.server.take().filter(|server| !server.is_gone()));
            if phase == ServerPhase::Serving && calm {
                self.deaths = 0;
            }
            return self.lose(pid, phase, &death);
        }
        match server.phase {
            ServerPhase::Waiting => self.give_settings(),
            ServerPhase::Serving if before != ServerPhase::Serving => self.note_serving(),
            ServerPhase::Starting => server.kill_if_late(SERVER_START_MAX),
            ServerPhase::Leaving => server.kill_if_late(SERVER_END_MAX),
            // A save takes as long as it takes.
            _ => {}
        }
        Ok(())
    }

    fn give_settings(&mut self) {
        let Some(server) = &mut self.server else { return };
        let StoreListening { sockets, lock, .. } = &self.listening;
        let mut lent = vec![self.memory.as_fd(), lock.as_fd(), sockets.unix.as_fd()];
        let (tcp, on_tcp): (_, Vec<_>) = sockets.on_tcp().unzip();
        lent.extend(on_tcp);
        let settings = ServerSettings { tcp, ..self.settings.clone() };
        let mut held = self.held.iter().map(|(name, held)| {
            let descriptors: Vec<_> = held.descriptors.iter().map(AsFd::as_fd).collect();
            let order = ServerOrder::Held { name: name.clone(), note: held.note.clone() };
            server.channel.send(&order, &descriptors)
        });
        let given = held.try_for_each(|sent| sent);
        let given = given.and_then(|()| server.channel.send(&ServerOrder::Serve(Box::new(settings)), &lent));
        match given {
            Ok(()) => server.enter(ServerPhase::Opening),
            Err(error) => {
                server.failure = Some(error.to_string());
                server.kill();
            }
        }
    }

    fn note_serving(&mut self) {
        let Some(server) = &mut self.server else { return };
        let pid = server.pid();
        if self.is_ending {
            return server.end(true);
        }
        if !std::mem::replace(&mut self.has_served, true) {
            self.settings.load = None;
            self.events.push(KeeperEvent::Ready { pid });
        }
        if let Some(upgrade) = self.upgrade.take_if(|upgrade| upgrade.candidate.is_none()) {
            self.program = upgrade.program;
            self.deaths = 0;
            // The caller may have left.
            let _ = upgrade.caller.send(&KeeperAnswer::Upgraded { pid }, &[]);
            self.events.push(KeeperEvent::Upgraded { pid });
        }
    }

    /// The server has died.
    fn lose(&mut self, pid: u32, phase: ServerPhase, death: &ServerDeath) -> Result<(), ServeError> {
        self.start_at = Instant::now();
        if self.is_ending && phase == ServerPhase::Leaving && self.settings.save.is_some() {
            // Another one saves.
            return Ok(());
        }
        if self.is_ending {
            self.is_over = true;
            let is_saved = phase == ServerPhase::Ending && death.status.success();
            return match is_saved || self.settings.save.is_none() {
                true => Ok(()),
                false => Err(ServeError::Keeper(format!("the store was not saved: {death}"))),
            };
        }
        if !self.has_served {
            return Err(ServeError::Keeper(death.to_string()));
        }
        if let Some(upgrade) = &mut self.upgrade {
            if upgrade.candidate.as_ref().is_some_and(|server| server.phase == ServerPhase::Waiting) {
                self.server = upgrade.candidate.take();
                self.give_settings();
                return Ok(());
            }
            if upgrade.candidate.is_none() {
                self.give_up_upgrade(&format!("the new server did not open the store: {death}"));
                return Ok(());
            }
        }
        // A server that was told to leave made room for one that has died since.
        if phase != ServerPhase::Leaving {
            self.note_loss(format!("the server (process {pid}) has died: {death}"));
        }
        Ok(())
    }

    fn note_loss(&mut self, what: String) {
        let pause = restart_pause(self.deaths);
        self.deaths = self.deaths.saturating_add(1);
        self.start_at = Instant::now() + pause;
        self.events.push(KeeperEvent::Lost { what, pause });
    }

    fn pass_save_on(&mut self, file: &OwnedFd, caller: &KeeperChannel) {
        let serving = self.server.as_ref().filter(|server| server.phase == ServerPhase::Serving);
        let passed =
            serving.map(|server| server.channel.send(&ServerOrder::Save, &[file.as_fd(), caller.as_fd()]));
        match passed {
            Some(Ok(())) => {}
            Some(Err(error)) => refuse(caller, &error.to_string()),
            None => refuse(caller, "the server is just being started or ended: try again"),
        }
    }

    fn begin_upgrade(&mut self, program: OwnedFd, caller: KeeperChannel) {
        if self.is_ending || self.upgrade.is_some() || !self.has_served {
            return refuse(&caller, "the store is being started, upgraded or ended: try again");
        }
        if let Err(error) = self.renew_identity() {
            return refuse(&caller, &error.to_string());
        }
        match ServerProcess::start(&program, &self.settings.name, self.log.as_ref()) {
            Ok(server) => self.upgrade = Some(StoreUpgrade { caller, program, candidate: Some(server) }),
            Err(error) => refuse(&caller, &error.to_string()),
        }
    }

    /// Reads certificate and key again, for the servers that follow.
    fn renew_identity(&mut self) -> Result<(), ServeError> {
        if let Some((listening, options)) = self.listening.sockets.tls.as_mut().zip(self.tls.as_ref()) {
            listening.identity = TlsIdentity::read(options)?;
        }
        Ok(())
    }

    fn watch_candidate(&mut self) {
        let Some(upgrade) = &mut self.upgrade else { return };
        let Some(candidate) = &mut upgrade.candidate else { return };
        if let Err(death) = candidate.listen() {
            return self.give_up_upgrade(&format!("the new program does not run as a server: {death}"));
        }
        match (candidate.phase, &mut self.server) {
            (ServerPhase::Starting, _) => candidate.kill_if_late(SERVER_START_MAX),
            (_, Some(server)) if server.phase == ServerPhase::Leaving => {}
            (_, Some(server)) => server.end(false),
            (_, None) => {
                self.server = upgrade.candidate.take();
                self.give_settings();
            }
        }
    }

    /// Goes on with the old program.
    fn give_up_upgrade(&mut self, why: &str) {
        if let Some(upgrade) = self.upgrade.take() {
            refuse(&upgrade.caller, why);
        }
        self.events.push(KeeperEvent::NotUpgraded { why: why.to_owned() });
    }
}

/// Adds the port on which the keeper listens to the addresses of a member.
fn with_port(mut cluster: ClusterSettings, address: Option<SocketAddr>) -> ClusterSettings {
    let port = address.map_or(0, |address| address.port());
    let member = &mut cluster.member;
    member.client_address = format!("{}:{port}", member.client_address);
    member.tcp_address = member.tcp_address.take().map(|host| format!("{host}:{port}"));
    cluster
}

/// Returns how long to wait before a server is started, after so many deaths in a row before this one.
fn restart_pause(deaths: u32) -> Duration {
    match deaths {
        0 => Duration::ZERO,
        _ => RESTART_PAUSE_MIN.saturating_mul(1 << (deaths - 1).min(16)).min(RESTART_PAUSE_MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_dies_again_and_again_is_started_less_and_less_often() {
        let pauses = [0, 1, 2, 3, 8, 50, u32::MAX].map(|deaths| restart_pause(deaths).as_millis());
        assert_eq!(pauses, [0, 100, 200, 400, 10_000, 10_000, 10_000]);
    }
}

//! A store of several servers, its clients, and the hand that stops and kills them. A keeper with its server is a **host** here.

use std::fs::File;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use caravan_cluster::{Configuration, ConfigurationRegister, FileRegister};
use caravan_segment::process::{Process, ProcessStat, descendants};
use caravan_store::faults::PlantedFault;
use caravan_store_server::StoreClient;
use rustix::process::{Pid, Signal, kill_process};

use super::children::{self, LIMIT, Order, Role, Running};
use super::clients::{ClientOrder, Workload};
use super::herd::ClientHerd;
use super::history::{ClientAct, Random};
use super::quiet::compare_copies;
use super::rig::wait_until_ready;
use super::several::{KeeperOrder, LEASE, OwnEnd, place};

pub const HOSTS: usize = 3;
const CLIENTS: usize = 4;
/// How long it takes at most until nothing is written after the end of the clients.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// How long a server that serves takes to answer, mostly.
const ANSWER_MAX: Duration = Duration::from_millis(300);
const GLANCE: Duration = Duration::from_millis(2);

/// What is planted in which processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plot {
    pub in_servers: Option<PlantedFault>,
    /// When the servers of the last host end themselves.
    pub last_ends: Option<OwnEnd>,
    /// Whether half of the clients stop themselves in each transaction over several parts.
    pub clients_stop: bool,
}

struct Host {
    order: KeeperOrder,
    keeper: Option<HostKeeper>,
    /// It is to be a member since a later epoch than this one.
    member_after: u64,
}

impl Host {
    /// Returns whether its server answers.
    fn answers(&self) -> bool {
        let Ok(mut client) = StoreClient::connect(&self.order.socket()) else { return false };
        client.limit_silence(ANSWER_MAX).is_ok() && client.call(&[b"PING"]).is_ok()
    }
}

struct HostKeeper {
    process: Running,
    /// Where it says that its server serves.
    said: UnixStream,
}

pub struct Hosts {
    plot: Plot,
    pub random: Random,
    folder: PathBuf,
    hosts: Vec<Host>,
    register: FileRegister,
    pub herd: ClientHerd,
}

impl Hosts {
    /// Starts the servers, and clients of all of them.
    pub fn new(workload: Workload, seed: u64, plot: Plot) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("caravan-hosts-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).expect("made");
        // All at once, so that they differ.
        let free: Vec<TcpListener> =
            (0..HOSTS).map(|_| TcpListener::bind("127.0.0.1:0").expect("a free port")).collect();
        let host = |(number, free): (usize, &TcpListener)| {
            let ends = plot.last_ends.filter(|_| number == HOSTS - 1);
            let (member, port) = (format!("host{number}"), free.local_addr().expect("bound").port());
            let order = KeeperOrder { folder: folder.clone(), member, port, ends };
            Host { order, keeper: None, member_after: 0 }
        };
        let hosts: Vec<Host> = free.iter().enumerate().map(host).collect();
        drop(free);
        let servers = hosts.iter().map(|host| host.order.socket()).collect();
        let stops = plot.clients_stop;
        let order = ClientOrder { client: 0, seed, servers, is_mapped: false, workload, fault: None, stops };
        let register = FileRegister::new(place(&folder)).expect("a register");
        let herd = ClientHerd::new(order, plot.in_servers);
        let mut hosts = Self { plot, random: Random::new(seed), folder, hosts, register, herd };
        for host in 0..HOSTS {
            hosts.start(host);
            // The first one makes the configuration.
            hosts.wait_for(host);
        }
        hosts.until_whole();
        (0..CLIENTS).for_each(|_| hosts.start_client());
        hosts
    }

    /// Waits until something has happened.
    fn until<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let begin = Instant::now();
        loop {
            if let Some(found) = look() {
                return found;
            }
            if begin.elapsed() > LIMIT {
                let servers: Vec<_> = (0..HOSTS).map(|host| self.server(host)).collect();
                let states = servers.iter().map(|pid| Some(state(pid.as_ref()?.as_raw_nonzero().get())));
                let states: Vec<_> = states.collect();
                let now = self.register.read(Instant::now() + Duration::from_secs(1));
                panic!("it does not happen that {what}; servers {servers:?} {states:?}; {now:?}");
            }
            std::thread::sleep(GLANCE);
        }
    }

    fn start(&mut self, host: usize) {
        let order = self.hosts[host].order.clone();
        // Another host may have died under this name.
        let _ = std::fs::remove_file(order.socket());
        let planted = self.plot.in_servers.map(|fault| format!("{fault:?}"));
        let (theirs, said) = UnixStream::pair().expect("a pair");
        let order = Order { role: Role::Keeper(order), planted };
        let process = children::start(&order, nothing(), Stdio::from(OwnedFd::from(theirs)));
        self.hosts[host].keeper = Some(HostKeeper { process, said });
    }

    fn wait_for(&mut self, host: usize) {
        let keeper = self.hosts[host].keeper.as_mut().expect("it was started");
        wait_until_ready(&mut keeper.said);
    }

    pub fn start_client(&mut self) {
        self.herd.start(nothing());
    }

    pub fn kill_client(&mut self) {
        self.herd.kill_one(&mut self.random);
        self.start_client();
    }

    pub fn configuration(&self) -> Configuration {
        let read = || self.register.read(Instant::now() + Duration::from_secs(1));
        self.until("the configuration is read", || read().ok().flatten()).configuration
    }

    /// Returns the process that serves.
    fn server(&self, host: usize) -> Option<Pid> {
        let keeper = self.hosts[host].keeper.as_ref()?.process.id() as i32;
        let alive = descendants(keeper).into_iter().find(|(_, stat)| !stat.has_ended());
        alive.and_then(|(pid, _)| Pid::from_raw(pid))
    }

    /// Waits until all hosts are members that answer, and each part has all of its copies.
    pub fn until_whole(&self) {
        self.until("all copies are complete", || {
            let now = self.configuration();
            let are_whole = now.parts.iter().all(|part| {
                part.made && part.complete().count() == usize::from(now.copies) && part.filling.is_empty()
            });
            let is_member = |host: &Host| {
                now.member_by_name(&host.order.member).is_some_and(|member| member.since > host.member_after)
            };
            // Who was expelled counts until all know of it: another loss before that would be one of two at a time.
            let is_settled = are_whole && now.former.is_empty() && self.hosts.iter().all(is_member);
            (is_settled && self.hosts.iter().all(Host::answers)).then_some(())
        });
    }

    /// Kills the process that serves. Its keeper starts another one over the same memory.
    pub fn kill_server(&self, host: usize) {
        let server = self.until("the host has a server", || self.server(host));
        // It may just have died by itself.
        let _ = kill_process(server, Signal::KILL);
        self.until("the server has died", || (self.server(host) != Some(server)).then_some(()));
    }

    /// Kills keeper and server, and so the memory that only they have.
    pub fn kill_host(&mut self, host: usize) {
        self.hosts[host].member_after = self.configuration().epoch;
        let mut keeper = self.hosts[host].keeper.take().expect("it runs");
        // It starts no other server meanwhile.
        keeper.process.signal(Signal::STOP);
        let id = keeper.process.id() as i32;
        self.until("the keeper stops", || (state(id) == 'T').then_some(()));
        let servers: Vec<(i32, Option<Process>)> =
            descendants(id).into_keys().map(|pid| (pid, Process::open(pid).ok())).collect();
        keeper.process.end();
        for (pid, server) in servers {
            let _ = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::KILL));
            // Until its last thread has ended, it has the lock of its name.
            self.until("the server dies", || server.as_ref().is_none_or(|it| !it.is_alive()).then_some(()));
        }
    }

    /// Starts a host that was killed, without waiting for it.
    pub fn start_again(&mut self, host: usize) {
        self.start(host);
    }

    /// Stops a server for a part of its lease.
    pub fn stop_server(&mut self, host: usize) {
        let server = self.until("the host has a server", || self.server(host));
        let _ = kill_process(server, Signal::STOP);
        std::thread::sleep(LEASE * self.random.below(4) as u32 / 10);
        let _ = kill_process(server, Signal::CONT);
    }

    /// Stops a server for longer than its lease.
    pub fn stop_server_for_long(&mut self, host: usize) {
        let server = self.until("the host has a server", || self.server(host));
        self.until("the server stops", || {
            let _ = kill_process(server, Signal::STOP);
            self.until("it stands still", || (state(server.as_raw_nonzero().get()) == 'T').then_some(()));
            // One that has the lock of the configuration's file keeps the others from changing that.
            let is_free = self.is_register_free();
            if !is_free {
                let _ = kill_process(server, Signal::CONT);
            }
            is_free.then_some(())
        });
        self.wake_expelled(host);
    }

    /// Returns whether nobody writes the configuration just now.
    fn is_register_free(&self) -> bool {
        let lock = File::open(place(&self.folder).with_extension("json.lock")).expect("the lock of the file");
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_ok()
    }

    /// Waits until a server that is stopped, or stops itself in a commit, was expelled and clients go on without it. Then it goes
    /// on.
    pub fn wake_expelled(&mut self, host: usize) {
        let server = self.until("the server stops", || {
            let server = self.server(host)?;
            (state(server.as_raw_nonzero().get()) == 'T').then_some(server)
        });
        self.until("the others expel it", || {
            let now = self.configuration();
            now.member_by_name(&self.hosts[host].order.member).is_none().then_some(())
        });
        self.hosts[host].member_after = self.configuration().epoch;
        // Other servers have its parts.
        let lines = self.herd.lines();
        self.herd.wait_for_lines(lines + 200);
        let _ = kill_process(server, Signal::CONT);
    }

    /// Waits until the server of a host has killed itself, and another one serves.
    pub fn wait_for_death(&self, host: usize) {
        let server = self.until("the host has a server", || self.server(host));
        self.until("the server kills itself", || self.server(host).filter(|other| *other != server));
        let lines = self.herd.lines();
        self.herd.wait_for_lines(lines + 100);
    }

    /// Ends the clients, waits until all copies are complete and all is quiet, and compares the copies. Returns what all clients
    /// have written down.
    pub fn end(mut self) -> (Vec<ClientAct>, Result<(), String>) {
        let acts = self.herd.kill_all();
        self.until_whole();
        (acts, compare_copies(&self, QUIET_MAX))
    }

    /// Returns the process that holds the memory of a member.
    pub fn keeper_of(&self, member: &str) -> Result<u32, String> {
        let host = self.hosts.iter().find(|host| host.order.member == member);
        let keeper = host.and_then(|host| host.keeper.as_ref());
        keeper.map(|keeper| keeper.process.id()).ok_or_else(|| format!("{member} does not run"))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.hosts.clear();
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Returns what a process does, as the kernel says it: `T` if it is stopped.
fn state(pid: i32) -> char {
    ProcessStat::of(pid).map_or(' ', |stat| stat.state)
}

fn nothing() -> OwnedFd {
    File::open("/dev/null").expect("opened").into()
}

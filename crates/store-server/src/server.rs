//! The server: its sockets, the thread that accepts, and its workers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

use caravan_segment::printable;
use caravan_store::calls::ClientSessions;
use caravan_store::{Eviction, Store};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrAny, SocketFlags, acceptfrom_with, send};

use crate::balance;
use crate::connection::StoreConnection;
use crate::error::ServeError;
use crate::limits;
use crate::links::LinkWorkers;
use crate::listen::{ListeningSockets, StoreListening};
use crate::session::Session;
use crate::state::{ClientSettings, ServerFacts, ServerState, count};
use crate::worker::{StoreWorker, Tell, WorkerPost, unix_ms};

/// What a server is started with.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ServerOptions {
    /// The name of the store, for INFO.
    pub name: String,
    /// The path of the UNIX socket.
    pub socket: PathBuf,
    /// The address on TCP, if it listens there.
    pub address: Option<SocketAddr>,
    /// The password that clients give with AUTH.
    pub password: Option<Vec<u8>>,
    /// The number of threads that serve connections; `None` for a number that suits the host.
    pub workers: Option<usize>,
    /// Whether each thread has its share of the connections from the start, instead of as few threads as can serve them
    /// all: for tests, whose commands should meet.
    pub spreads: bool,
    /// What the store does when its memory is used up, for CONFIG GET.
    pub eviction: Eviction,
    /// The largest number of connections at a time.
    pub clients_max: usize,
}

impl ServerOptions {
    /// Returns the options of a server on a UNIX socket.
    pub fn new(name: impl Into<String>, socket: impl Into<PathBuf>) -> Self {
        let (address, password, workers) = (None, None, None);
        let (eviction, clients_max) = (Eviction::Refuse, limits::CLIENTS_DEFAULT);
        let (name, socket) = (name.into(), socket.into());
        Self { name, socket, address, password, workers, spreads: false, eviction, clients_max }
    }

    pub(crate) fn check(&self) -> Result<(), ServeError> {
        if let Some(address) = self.address.filter(|address| !address.ip().is_loopback()) {
            if self.password.is_none() {
                return Err(ServeError::Exposed(address.ip()));
            }
        }
        match self.workers {
            Some(workers) if !(1..=limits::WORKERS_MAX).contains(&workers) => Err(ServeError::Options(
                format!("the number of workers is {workers}; it takes 1 to {}", limits::WORKERS_MAX),
            )),
            _ => Ok(()),
        }
    }
}

/// A running server. Dropping it ends it.
pub struct StoreServer {
    state: Arc<ServerState>,
    address: Option<SocketAddr>,
    socket: PathBuf,
    /// Ends the accepting thread.
    bell: Arc<OwnedFd>,
    posts: Vec<Arc<WorkerPost>>,
    links: Option<Arc<LinkWorkers>>,
    acceptor: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    /// What this server listens with itself; dropped at the end, which removes the socket.
    _listening: Option<StoreListening>,
}

impl std::fmt::Debug for StoreServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("StoreServer").field("state", &self.state).finish_non_exhaustive()
    }
}

impl StoreServer {
    /// Starts a server of this store. `tell` gets a sentence when something happens that the operator should know.
    pub fn start(
        store: Arc<Store>,
        options: ServerOptions,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, ServeError> {
        options.check()?;
        let listening = StoreListening::open(&options)?;
        let mut server = Self::on(listening.sockets.try_clone()?, store, options, tell)?;
        server._listening = Some(listening);
        Ok(server)
    }

    /// Starts a server on sockets that somebody else keeps: clients that connect while no server accepts wait for the next
    /// one. The options' socket and address are those of the sockets.
    pub fn on(
        sockets: ListeningSockets,
        store: Arc<Store>,
        options: ServerOptions,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, ServeError> {
        options.check()?;
        let address = sockets.address();
        let facts = ServerFacts {
            port: address.map_or(0, |address| address.port()),
            socket: options.socket.display().to_string(),
            is_exposed: address.is_some_and(|address| !address.ip().is_loopback()),
            eviction: options.eviction,
            started_ms: unix_ms(),
            spreads: options.spreads,
            ..ServerFacts::new(options.name)
        };
        let sessions = ClientSessions::new(&store).map_err(ServeError::Store)?;
        let mut state = ServerState::new(store, facts, options.password);
        state.sessions = Arc::new(sessions);
        let state = Arc::new(state);
        state.set_clients_max(options.clients_max);
        let tell: Tell = Arc::new(tell);
        let bell = Arc::new(
            eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
                .map_err(ServeError::system("make an eventfd"))?,
        );
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let count = options.workers.unwrap_or(limits::WORKERS_DEFAULT.min(cores));
        let posts: Result<Vec<_>, _> = (0..count).map(|_| WorkerPost::new().map(Arc::new)).collect();
        let links = Some(LinkWorkers::start(&state, &tell, count)?);
        let (acceptor, workers, socket) = (None, Vec::new(), options.socket);
        let posts = posts?;
        let mut server =
            Self { state, address, socket, bell, posts, links, acceptor, workers, _listening: None };
        server.spawn(sockets, &tell)?;
        Ok(server)
    }

    fn spawn(&mut self, sockets: ListeningSockets, tell: &Tell) -> Result<(), ServeError> {
        let thread = |name: String| std::thread::Builder::new().name(name);
        for (index, links) in (0..self.posts.len()).zip(self.links.as_ref().into_iter().cycle()) {
            let (state, tell, links) = (Arc::clone(&self.state), Arc::clone(tell), Arc::clone(links));
            let worker = StoreWorker::new(index, self.posts.clone(), state, tell, links)?;
            let spawned = thread(format!("store-{index}")).spawn(move || worker.serve());
            self.workers.push(spawned.map_err(ServeError::system("start a thread"))?);
        }
        let (state, posts, bell) = (Arc::clone(&self.state), self.posts.clone(), Arc::clone(&self.bell));
        let acceptor = Acceptor { sockets, bell, state, posts, links: self.links.clone() };
        let spawned = thread("store-accept".to_owned()).spawn(move || acceptor.accept());
        self.acceptor = Some(spawned.map_err(ServeError::system("start a thread"))?);
        Ok(())
    }

    /// Calls `watcher` with the settings of now, and again when a client has changed one (CONFIG SET), on the thread that
    /// serves it and before it gets its reply. There is one watcher.
    pub fn watch_settings(&self, watcher: impl Fn(ClientSettings) + Send + Sync + 'static) {
        self.state.watch_settings(Box::new(watcher));
    }

    /// Returns the address on TCP, with the port that the system chose if the options had 0.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// Returns the path of the UNIX socket.
    pub fn socket(&self) -> &std::path::Path {
        &self.socket
    }

    /// Ends the server: accepts nobody, answers what has arrived, closes all connections, and removes the socket unless
    /// somebody else keeps it.
    pub fn end(self) {
        drop(self);
    }
}

impl Drop for StoreServer {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
        // A thread that panicked has told so itself; the others end all the same.
        self.acceptor.take().into_iter().for_each(|thread| _ = thread.join());
        self.posts.iter().for_each(|post| post.end());
        self.workers.drain(..).for_each(|thread| _ = thread.join());
        self.links.take().into_iter().for_each(|links| links.end());
    }
}

/// The thread that accepts connections and spreads them over the workers.
struct Acceptor {
    sockets: ListeningSockets,
    bell: Arc<OwnedFd>,
    state: Arc<ServerState>,
    posts: Vec<Arc<WorkerPost>>,
    links: Option<Arc<LinkWorkers>>,
}

impl Acceptor {
    fn accept(self) {
        let listeners: Vec<_> =
            std::iter::once(&self.sockets.unix).chain(&self.sockets.tcp).map(AsFd::as_fd).collect();
        loop {
            let mut ready = vec![PollFd::new(&*self.bell, PollFlags::IN)];
            ready.extend(listeners.iter().map(|fd| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
            if poll(&mut ready, None).is_err() {
                continue;
            }
            if !ready[0].revents().is_empty() {
                return;
            }
            let ready: Vec<bool> = ready[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
            for (listener, _) in listeners.iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
                match acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok((socket, address)) => self.admit(socket, address),
                    // Too many descriptors are open: the connection waits until others have been closed.
                    Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                        std::thread::sleep(limits::EXPIRY_INTERVAL);
                    }
                    // The client was gone first.
                    Err(_) => {}
                }
            }
        }
    }

    fn admit(&self, socket: OwnedFd, address: Option<SocketAddrAny>) {
        let connections = |post: &Arc<WorkerPost>| post.connections.load(Ordering::Relaxed);
        let linked = self.links.as_ref().map_or(0, |links| links.clients());
        if self.posts.iter().map(connections).sum::<usize>() + linked >= self.state.clients_max() {
            count(&self.state.counters.refused, 1);
            // The client may be gone, and is not waited for.
            let text = b"-ERR max number of clients reached\r\n";
            let _ = send(&socket, text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            return;
        }
        let address = address.and_then(|address| SocketAddr::try_from(address).ok());
        let address = match address {
            Some(address) => {
                // Replies are complete when they are sent, so waiting for more only delays them.
                let _ = rustix::net::sockopt::set_tcp_nodelay(&socket, true);
                address.to_string()
            }
            None => format!("{}:0", printable(&self.state.facts.socket)),
        };
        let session = Session::new(Arc::clone(&self.state), address, unix_ms());
        let connection = StoreConnection::new(socket, session, Instant::now());
        // A server that ends takes nobody.
        let worker = balance::worker_for_new(&balance::loads(&self.posts), self.state.facts.spreads);
        let _ = self.posts[worker].hand_over(vec![connection]);
    }
}

/// Returns the address of this host with this port, for clients of the same host only.
pub fn local_address(port: u16) -> SocketAddr {
    SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port)
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use caravan_store::StoreOptions;

    use super::*;

    /// The idle second worker gives its connection to the first one, in the middle of a request.
    #[test]
    fn a_connection_is_served_on_after_it_was_handed_over() {
        let path = std::env::temp_dir().join(format!("caravan-hand-over-{}.sock", std::process::id()));
        let store = Arc::new(Store::embedded(StoreOptions::new(16 << 20)).expect("a store"));
        let options = ServerOptions { workers: Some(2), ..ServerOptions::new("test", path) };
        let server = StoreServer::start(store, options, |_| ()).expect("a server");
        let (mut client, socket) = UnixStream::pair().expect("a pair");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        let session = Session::new(Arc::clone(&server.state), "test".to_owned(), unix_ms());
        let connection = StoreConnection::new(socket.into(), session, Instant::now());
        assert!(server.posts[1].hand_over(vec![connection]).is_empty());
        let mut reply = [0; 7];
        client.write_all(b"PING\r\n*2\r\n$4\r\nEC").expect("sent");
        client.read_exact(&mut reply).expect("an answer");
        assert_eq!(&reply, b"+PONG\r\n");
        let count = |index: usize| server.posts[index].connections.load(Ordering::Relaxed);
        let deadline = Instant::now() + Duration::from_secs(60);
        while (count(0), count(1)) != (1, 0) {
            assert!(Instant::now() < deadline, "it stays at the second worker");
            std::thread::sleep(Duration::from_millis(1));
        }
        client.write_all(b"HO\r\n$1\r\nx\r\n").expect("sent");
        client.read_exact(&mut reply).expect("an answer");
        assert_eq!(&reply, b"$1\r\nx\r\n");
        server.end();
        assert_eq!(client.read(&mut reply).expect("the end"), 0);
    }
}

//! The server: its sockets, the thread that accepts, and its workers.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Instant;

use caravan_segment::printable;
use caravan_store::{Eviction, Store, StoreFunctions};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{SendFlags, SocketAddrAny, SocketFlags, acceptfrom_with, send};
use rustls::ServerConfig;

use crate::balance;
use crate::connection::StoreConnection;
use crate::dialogue::Dialogue;
use crate::errands::ErrandThreads;
use crate::error::ServeError;
use crate::limits;
use crate::links::LinkWorkers;
use crate::listen::{ListeningSockets, StoreListening};
use crate::metrics::{self, MetricsPost};
use crate::parts::ServedParts;
use crate::seat::{Relief, Seat, look_at};
use crate::socket::StoreSocket;
use crate::state::{ClientSettings, ServerFacts, ServerState, count};
use crate::tls::TlsOptions;
use crate::undecided;
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
    /// Where and with which certificate clients speak TLS, if they can.
    pub tls: Option<TlsOptions>,
    /// The address on TCP at which Prometheus gets the counters by `GET /metrics`, if there is one.
    pub metrics: Option<SocketAddr>,
    /// The password that clients give with AUTH.
    pub password: Option<Vec<u8>>,
    /// The number of threads that serve connections; `None` for a number that suits the host.
    pub workers: Option<usize>,
    /// Whether each thread has its share of the connections from the start, instead of as few threads as can serve them
    /// all: for tests, whose commands should meet.
    pub spreads: bool,
    /// Whether it does requests on keys of other servers of its store itself, instead of sending clients there: for
    /// programs that know nothing of Redis Cluster.
    pub forwards: bool,
    /// What the store does when its memory is used up, for CONFIG GET.
    pub eviction: Eviction,
    /// The largest number of connections at a time.
    pub clients_max: usize,
    /// The functions that clients may call.
    pub functions: StoreFunctions,
}

impl ServerOptions {
    /// Returns the options of a server on a UNIX socket.
    pub fn new(name: impl Into<String>, socket: impl Into<PathBuf>) -> Self {
        let (address, tls, metrics, password, workers) = (None, None, None, None, None);
        let (eviction, clients_max) = (Eviction::Refuse, limits::CLIENTS_DEFAULT);
        let (name, socket) = (name.into(), socket.into());
        let (spreads, forwards, functions) = (false, false, StoreFunctions::new());
        Self {
            name,
            socket,
            address,
            tls,
            metrics,
            password,
            workers,
            spreads,
            forwards,
            eviction,
            clients_max,
            functions,
        }
    }

    pub(crate) fn check(&self) -> Result<(), ServeError> {
        let tls = self.tls.as_ref().map(|tls| tls.address);
        if let Some(address) = exposed([self.address, tls]) {
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
    tls_address: Option<SocketAddr>,
    socket: PathBuf,
    /// Ends the accepting thread.
    bell: Arc<OwnedFd>,
    posts: Vec<Arc<WorkerPost>>,
    links: Option<Arc<LinkWorkers>>,
    errands: Arc<ErrandThreads>,
    acceptor: Option<JoinHandle<()>>,
    workers: Vec<JoinHandle<()>>,
    /// Of a server of several parts.
    relief: Option<Relief>,
    metrics: Option<(Option<SocketAddr>, JoinHandle<()>)>,
    /// Of a server of several parts.
    branches: Option<JoinHandle<()>>,
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
        Self::start_parts(ServedParts::whole(store).map_err(ServeError::Store)?, options, tell)
    }

    /// The same for a server of a cluster, whose parts come and go.
    pub fn start_parts(
        parts: Arc<ServedParts>,
        options: ServerOptions,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, ServeError> {
        options.check()?;
        let listening = StoreListening::open(&options)?;
        let mut server = Self::on(listening.sockets.try_clone()?, parts, options, tell)?;
        server._listening = Some(listening);
        Ok(server)
    }

    /// Starts a server on sockets that somebody else keeps: clients that connect while no server accepts wait for the next
    /// one. The options' socket is that of the sockets, and
    /// what they say of addresses and certificates does not count.
    pub fn on(
        sockets: ListeningSockets,
        parts: Arc<ServedParts>,
        options: ServerOptions,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> Result<Self, ServeError> {
        options.check()?;
        let [address, tls_address, metrics_address] =
            [sockets.address(), sockets.tls_address(), sockets.metrics_address()];
        let config = sockets.tls.as_ref().map(|tls| tls.identity.config()).transpose()?;
        let facts = ServerFacts {
            port: address.map_or(0, |address| address.port()),
            socket: options.socket.display().to_string(),
            is_exposed: exposed([address, tls_address]).is_some(),
            eviction: options.eviction,
            started_ms: unix_ms(),
            spreads: options.spreads,
            functions: Arc::new(options.functions),
            forwards: options.forwards,
            ..ServerFacts::new(options.name)
        };
        let state = Arc::new(ServerState::new(parts, facts, options.password));
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
        let errands = Arc::new(ErrandThreads::new(&state));
        let (acceptor, workers, metrics, socket) = (None, Vec::new(), None, options.socket);
        let posts = posts?;
        let mut server = Self {
            state,
            address,
            tls_address,
            socket,
            bell,
            posts,
            links,
            errands,
            acceptor,
            workers,
            relief: None,
            metrics,
            branches: None,
            _listening: None,
        };
        let ListeningSockets { unix, tcp, tls, metrics } = sockets;
        let tls = tls.map(|tls| tls.socket).zip(config);
        server.spawn(unix, tcp, tls, &tell)?;
        if let Some(listener) = metrics {
            let (state, bell) = (Arc::clone(&server.state), Arc::clone(&server.bell));
            let thread = metrics::spawn(MetricsPost::of(listener), state, bell)?;
            server.metrics = Some((metrics_address, thread));
        }
        if server.state.parts.table().cluster.is_some() {
            server.branches = Some(undecided::spawn(&server.state, &server.bell)?);
        }
        Ok(server)
    }

    fn spawn(
        &mut self,
        unix: OwnedFd,
        tcp: Option<OwnedFd>,
        tls: Option<(OwnedFd, Arc<ServerConfig>)>,
        tell: &Tell,
    ) -> Result<(), ServeError> {
        let may_wait = self.state.parts.table().cluster.is_some();
        let mut looks = Vec::new();
        for (index, links) in (0..self.posts.len()).zip(self.links.as_ref().into_iter().cycle()) {
            let (state, tell, links) = (Arc::clone(&self.state), Arc::clone(tell), Arc::clone(links));
            let errands = Arc::clone(&self.errands);
            let worker = StoreWorker::new(index, self.posts.clone(), state, tell, links, errands)?;
            let seat = Seat::new(format!("store-{index}"), worker, may_wait);
            looks.push(look_at(&seat));
            self.workers.push(seat.start()?);
        }
        if may_wait {
            looks.extend(self.links.iter().flat_map(|links| links.looks()));
            self.relief = Some(Relief::start(&self.state.parts, looks)?);
        }
        let (state, posts, bell) = (Arc::clone(&self.state), self.posts.clone(), Arc::clone(&self.bell));
        let links = self.links.clone();
        let acceptor = Acceptor { unix, tcp, tls, bell, state, posts, links };
        let thread = std::thread::Builder::new().name("store-accept".to_owned());
        let spawned = thread.spawn(move || acceptor.accept());
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

    /// Returns the address at which clients speak TLS, with the port that the system chose if the options had 0.
    pub fn tls_address(&self) -> Option<SocketAddr> {
        self.tls_address
    }

    /// Returns the address of the metrics, with the port that the system chose if the options had 0.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().and_then(|(address, _)| *address)
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
        self.metrics.take().into_iter().for_each(|(_, thread)| _ = thread.join());
        self.branches.take().into_iter().for_each(|thread| _ = thread.join());
        // They still need the workers and the links.
        self.errands.end();
        self.workers.extend(self.relief.take().into_iter().flat_map(|mut relief| relief.end()));
        self.posts.iter().for_each(|post| post.end());
        self.links.iter().for_each(|links| links.tell_end());
        self.workers.drain(..).for_each(|thread| _ = thread.join());
        self.links.take().into_iter().for_each(|links| links.end());
    }
}

/// The thread that accepts connections and spreads them over the workers.
struct Acceptor {
    unix: OwnedFd,
    tcp: Option<OwnedFd>,
    tls: Option<(OwnedFd, Arc<ServerConfig>)>,
    bell: Arc<OwnedFd>,
    state: Arc<ServerState>,
    posts: Vec<Arc<WorkerPost>>,
    links: Option<Arc<LinkWorkers>>,
}

impl Acceptor {
    fn accept(self) {
        // Each with the configuration of TLS, if clients speak it there.
        let tls = self.tls.as_ref().map(|(listener, config)| (listener.as_fd(), Some(config)));
        let tcp = self.tcp.as_ref().map(|listener| (listener.as_fd(), None));
        let listeners: Vec<_> = [Some((self.unix.as_fd(), None)), tcp, tls].into_iter().flatten().collect();
        loop {
            let mut ready = vec![PollFd::new(&*self.bell, PollFlags::IN)];
            ready.extend(listeners.iter().map(|(fd, _)| PollFd::from_borrowed_fd(*fd, PollFlags::IN)));
            if poll(&mut ready, None).is_err() {
                continue;
            }
            if !ready[0].revents().is_empty() {
                return;
            }
            let ready: Vec<bool> = ready[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
            for ((listener, config), _) in listeners.iter().zip(ready).filter(|(_, is_ready)| *is_ready) {
                match acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                    Ok((socket, address)) => self.admit(socket, address, *config),
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

    fn admit(&self, socket: OwnedFd, address: Option<SocketAddrAny>, config: Option<&Arc<ServerConfig>>) {
        let connections = |post: &Arc<WorkerPost>| post.connections.load(Ordering::Relaxed);
        let linked = self.links.as_ref().map_or(0, |links| links.clients());
        if self.posts.iter().map(connections).sum::<usize>() + linked >= self.state.clients_max() {
            count(&self.state.counters.refused, 1);
            // The client may be gone, and is not waited for. One that speaks TLS would take the text for nonsense.
            if config.is_none() {
                let text = b"-ERR max number of clients reached\r\n";
                let _ = send(&socket, text, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
            }
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
        let socket = match config {
            None => StoreSocket::Plain(socket),
            Some(config) => match StoreSocket::sealed(socket, Arc::clone(config)) {
                Ok(socket) => socket,
                // The certificate has been tried already; only the system's random numbers can fail.
                Err(_) => return,
            },
        };
        let dialogue = Dialogue::new(Arc::clone(&self.state), address, unix_ms());
        let connection = StoreConnection::new(socket, dialogue, Instant::now());
        // A server that ends takes nobody.
        let worker = balance::worker_for_new(&balance::loads(&self.posts), self.state.facts.spreads);
        let _ = self.posts[worker].hand_over(vec![connection]);
    }
}

/// Returns an address that other hosts can reach, if there is one.
fn exposed(addresses: [Option<SocketAddr>; 2]) -> Option<SocketAddr> {
    addresses.into_iter().flatten().find(|address| !address.ip().is_loopback())
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
        let options = ServerOptions { workers: Some(2), ..ServerOptions::new("test", &path) };
        let server = StoreServer::start(store, options, |_| ()).expect("a server");
        let (mut client, socket) = UnixStream::pair().expect("a pair");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("set");
        let dialogue = Dialogue::new(Arc::clone(&server.state), "test".to_owned(), unix_ms());
        let connection = StoreConnection::new(StoreSocket::Plain(socket.into()), dialogue, Instant::now());
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
        std::fs::remove_file(path.with_extension("sock.lock")).expect("removed");
    }
}

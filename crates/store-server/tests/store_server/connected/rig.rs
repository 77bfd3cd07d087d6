//! A server, and clients of it.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use caravan_store::{ConnectOptions, ConnectedStore, Store, StoreOptions, StoreTransport};
use caravan_store_server::{ServeError, ServerOptions, StoreServer, local_address};

/// A server in a folder of its own.
pub struct Rig {
    pub store: Arc<Store>,
    pub server: Option<StoreServer>,
    pub folder: PathBuf,
}

/// Set to `rdma` where there is a device: clients that map nothing then use it.
const FAR: &str = "CARAVAN_CONNECTED_TEST_FAR";

/// Returns the transport of clients that map nothing.
pub fn far() -> StoreTransport {
    if std::env::var_os(FAR).is_some_and(|far| far == "rdma") {
        StoreTransport::Rdma
    } else {
        StoreTransport::Tcp
    }
}

/// Returns the transports that every test runs over.
pub fn transports() -> [StoreTransport; 2] {
    [StoreTransport::Mapped, far()]
}

impl Rig {
    pub fn new() -> Self {
        Self::with(StoreOptions::new(64 << 20), |options| options)
    }

    pub fn with(store: StoreOptions, change: impl FnOnce(ServerOptions) -> ServerOptions) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("caravan-connected-{}-{number}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let store = Arc::new(Store::embedded(store).unwrap());
        let mut rig = Self { store, server: None, folder };
        rig.serve(change);
        rig
    }

    /// Starts the server, on a port that the system chooses.
    pub fn serve(&mut self, change: impl FnOnce(ServerOptions) -> ServerOptions) {
        let mut options = ServerOptions::new("test", self.folder.join("socket"));
        options.address = Some(local_address(0));
        let (options, begin) = (change(options), Instant::now());
        let start =
            || StoreServer::start(Arc::clone(&self.store), options.clone(), |text| eprintln!("{text}"));
        self.server = loop {
            match start() {
                // A process that another test starts has the lock of the server before, until it runs its program.
                Err(ServeError::Taken { pid, .. })
                    if pid == Some(std::process::id() as i32)
                        && begin.elapsed() < Duration::from_secs(10) =>
                {
                    std::thread::yield_now();
                }
                server => break Some(server.unwrap()),
            }
        };
    }

    pub fn server(&self) -> &StoreServer {
        self.server.as_ref().expect("the server runs")
    }

    /// Returns the address of the server for clients of a transport.
    pub fn address(&self, transport: StoreTransport) -> String {
        match transport {
            StoreTransport::Mapped => format!("unix:{}", self.server().socket().display()),
            _ => self.server().address().expect("it listens on TCP").to_string(),
        }
    }

    pub fn connect(&self, transport: StoreTransport) -> ConnectedStore {
        let client = Store::connect(ConnectOptions::new(self.address(transport))).unwrap();
        assert_eq!(client.transport(), transport);
        client
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        drop(self.server.take());
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

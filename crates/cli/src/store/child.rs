//! `caravan store-server`: a server that a keeper has started. It serves the memory and the sockets that the keeper lends it.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use caravan_bench::Error as Shared;
use caravan_segment::process::{allow_descriptors, start_heir};
use caravan_store::{Eviction, SnapshotCounts, Store, StoreOptions};
use caravan_store_server::keeper::channel::{
    ChannelEnd, ClusterSettings, KeeperAnswer, KeeperChannel, ServerAnswer, ServerOrder, ServerSettings,
};
use caravan_store_server::{
    GoneReason, HeldForServer, ListeningSockets, Membership, RunningMember, ServedParts, ServerOptions,
    StoreServer,
};
use indicatif::{ProgressBar, ProgressStyle};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use signal_hook::consts::SIGXFSZ;

use crate::carry::stream::RecvOutput;
use crate::error::Error;
use crate::store::{register, sentence, tell};

/// How long a new member waits for the parts that it is to serve, before it says that it is ready.
const SERVING_WAIT: Duration = Duration::from_secs(5);

/// Bytes that one write of a snapshot has.
const WRITE_BYTES: usize = 1 << 20;

/// Serves until the keeper says that it is enough, or has died.
pub fn run() -> Result<ExitCode, Error> {
    // It was started by a descriptor, of which the kernel would make the number its name. Only tools show it.
    let _ = rustix::thread::set_name(c"caravan-store");
    // A snapshot that exceeds the limit on the size of files is an error, not the end of the store.
    signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))).map_err(Shared::Signals)?;
    // A new snapshot is for this user alone, as the store is.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let socket = io::stdin().as_fd().try_clone_to_owned().map_err(|source| no_keeper(&source))?;
    let keeper = Arc::new(KeeperChannel::of(socket));
    keeper.send(&ServerAnswer::Running, &[]).map_err(|error| no_keeper(&error))?;
    if let Err(error) = start_heir() {
        tell(&format!("the next server will start later, as the end of this one takes longer: {error}"));
    }
    let mut held = Vec::new();
    let (settings, lent) = loop {
        match keeper.receive() {
            Ok((ServerOrder::Held { name, note }, descriptors)) => {
                held.push(HeldForServer { name, note, descriptors });
            }
            Ok((ServerOrder::Serve(settings), lent)) => break (settings, lent),
            Err(ChannelEnd::Unknown(why)) => {
                return Ok(give_up(&keeper, &format!("the order is unknown: {why}")));
            }
            _ => return Ok(ExitCode::SUCCESS),
        }
    };
    let begun = match &settings.cluster {
        Some(cluster) => beginmember(&settings, cluster, &keeper, lent, held),
        None => begin(&settings, lent),
    };
    let outcome = begun.and_then(|served| {
        keeper.send(&ServerAnswer::Serving, &[]).map_err(sentence)?;
        // The next server goes on with what clients have set. Without a keeper there is no next one.
        let listener = Arc::clone(&keeper);
        let told = move |settings| _ = listener.send(&ServerAnswer::Changed(settings), &[]);
        served.server.watch_settings(told);
        served.store.as_ref().map_or(Ok(()), restore)?;
        let saves = serve(&keeper, served.store.as_ref())?;
        served.server.end();
        // The keeper starts another server unless it ends itself.
        served.member.into_iter().for_each(|member| member.end(saves));
        match settings.save.as_ref().zip(served.store.as_ref()) {
            Some((path, store)) if saves => save_at_end(store, Path::new(path)),
            _ => Ok(()),
        }
    });
    Ok(match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => give_up(&keeper, &error.to_string()),
    })
}

fn no_keeper(why: &dyn std::fmt::Display) -> Error {
    Error::Sentence(format!("a keeper starts this command (`caravan store serve`), and none is there: {why}"))
}

/// Tells the keeper why this server ends.
fn give_up(keeper: &KeeperChannel, why: &str) -> ExitCode {
    if keeper.send(&ServerAnswer::Failed(why.to_owned()), &[]).is_err() {
        tell(why);
    }
    ExitCode::FAILURE
}

/// A store and its server.
struct ServedStore {
    /// The whole store; a member of a cluster has parts that come and go.
    store: Option<Arc<Store>>,
    server: StoreServer,
    member: Option<RunningMember>,
    /// The lock of the name: if the keeper dies, the name stays taken until this process has ended, too.
    _lock: OwnedFd,
}

/// Opens the store, loads what it begins with, and serves it.
fn begin(settings: &ServerSettings, lent: Vec<OwnedFd>) -> Result<ServedStore, Error> {
    // Each connection takes a descriptor, and shells allow fewer than the limit of connections. Without more, a client
    // waits until another one leaves.
    allow_descriptors(u64::MAX);
    let (memory, lock, sockets) = lent_descriptors(settings, lent)?;
    let eviction = eviction(settings);
    let options = StoreOptions::new(settings.memory_bytes).eviction(eviction);
    // The rest is restored once this server serves.
    let store = Store::take_over(memory, options).map_err(sentence)?;
    if let Some(path) = &settings.load {
        store.publish_now(unix_ms());
        load(&store, Path::new(path))?;
    }
    let store = Arc::new(store);
    // It is never dropped: that would unmap the memory, which this process's heir does when the next server has begun.
    std::mem::forget(Arc::clone(&store));
    let parts = ServedParts::whole(Arc::clone(&store)).map_err(sentence)?;
    let server = StoreServer::on(sockets, parts, server_options(settings), tell).map_err(sentence)?;
    Ok(ServedStore { store: Some(store), server, member: None, _lock: lock })
}

/// Becomes a member of a cluster, and serves the parts that the configuration gives it.
fn beginmember(
    settings: &ServerSettings,
    cluster: &ClusterSettings,
    keeper: &Arc<KeeperChannel>,
    lent: Vec<OwnedFd>,
    held: Vec<HeldForServer>,
) -> Result<ServedStore, Error> {
    allow_descriptors(u64::MAX);
    let (_, lock, sockets) = lent_descriptors(settings, lent)?;
    let register = register(&cluster.place)?;
    let password = settings.client.password.clone();
    let member = Membership::join(cluster.member.clone(), register, password, Arc::clone(keeper), held);
    let member = member.map_err(sentence)?;
    let parts = member.parts();
    let server =
        StoreServer::on(sockets, Arc::clone(&parts), server_options(settings), tell).map_err(sentence)?;
    let told = Arc::clone(keeper);
    let gone = move |reason| {
        if reason == GoneReason::Left && told.send(&ServerAnswer::Left, &[]).is_ok() {
            std::process::exit(0);
        }
        // The next server becomes a member anew.
        give_up(&told, "the other servers of the store have expelled this one, which was silent");
        std::process::exit(1);
    };
    let member = member.run(&parts, eviction(settings), tell, gone).map_err(sentence)?;
    member.wait_until_serving(SERVING_WAIT);
    Ok(ServedStore { store: None, server, member: Some(member), _lock: lock })
}

/// Returns the memory, the lock of the name and the sockets that the keeper has lent.
fn lent_descriptors(
    settings: &ServerSettings,
    lent: Vec<OwnedFd>,
) -> Result<(OwnedFd, OwnedFd, ListeningSockets), Error> {
    let mut lent = lent.into_iter();
    let (Some(memory), Some(lock), Some(unix)) = (lent.next(), lent.next(), lent.next()) else {
        return Err(Error::Sentence("the keeper has lent too few descriptors".to_owned()));
    };
    Ok((memory, lock, ListeningSockets::lent(unix, settings.tcp.iter().cloned().zip(lent))))
}

fn eviction(settings: &ServerSettings) -> Eviction {
    if settings.evicts { Eviction::LeastRecentlyUsed } else { Eviction::Refuse }
}

fn server_options(settings: &ServerSettings) -> ServerOptions {
    let mut options = ServerOptions::new(&settings.name, PathBuf::from(&settings.socket));
    options.password = settings.client.password.clone();
    options.clients_max = settings.client.clients_max;
    options.eviction = eviction(settings);
    options.forwards = settings.forwards;
    options
}

/// Carries orders out until the server is to end; returns whether it is to save then.
fn serve(keeper: &KeeperChannel, store: Option<&Arc<Store>>) -> Result<bool, Error> {
    loop {
        match keeper.receive() {
            Ok((ServerOrder::Save, lent)) => match store {
                Some(store) => save_for_caller(store, lent),
                None => refuse_save(lent),
            },
            Ok((ServerOrder::End { saves }, _)) => return Ok(saves),
            Ok((ServerOrder::Serve(_) | ServerOrder::Held { .. }, _)) => {}
            // The keeper has died, and with it whoever could end this server in order.
            Err(ChannelEnd::Closed | ChannelEnd::Empty) => return Ok(true),
            Err(ChannelEnd::Unknown(why)) => {
                return Err(Error::Sentence(format!("the order is unknown: {why}")));
            }
        }
    }
}

/// Restores what a server before has left, while clients are served.
fn restore(store: &Arc<Store>) -> Result<(), Error> {
    let store = Arc::clone(store);
    let work = move || {
        if let Err(error) = store.restore() {
            tell(&format!("what the server before has left is not restored: {error}"));
        }
    };
    std::thread::Builder::new()
        .name("store-restore".to_owned())
        .spawn(work)
        .map_err(|error| Error::Sentence(format!("cannot start a thread: {error}")))?;
    Ok(())
}

fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

fn load(store: &Store, path: &Path) -> Result<(), Error> {
    let failed = |source| Shared::File { what: "load", path: path.to_owned(), source };
    let file = File::open(path).map_err(failed)?;
    let bar = progress("loading", file.metadata().map_err(failed)?.len());
    let loaded = store.load(io::BufReader::with_capacity(WRITE_BYTES, bar.wrap_read(&file)));
    bar.finish_and_clear();
    loaded.map_err(|error| Error::Sentence(format!("cannot load {}: {error}", path.display())))?;
    Ok(())
}

/// Tells a command that wants to save that it has to do without.
fn refuse_save(lent: Vec<OwnedFd>) {
    let why = "a store of several servers cannot be saved by one of them";
    if let Some(caller) = lent.into_iter().nth(1) {
        let _ = KeeperChannel::of(caller).send(&KeeperAnswer::Refused(why.to_owned()), &[]);
    }
}

/// Saves for a command, which owns the file, while clients are served.
fn save_for_caller(store: &Arc<Store>, lent: Vec<OwnedFd>) {
    let store = Arc::clone(store);
    let Ok([file, caller]) = <[OwnedFd; 2]>::try_from(lent) else { return };
    let caller = KeeperChannel::of(caller);
    let refused = caller.as_fd().try_clone_to_owned();
    let saving = std::thread::Builder::new().name("store-save".to_owned()).spawn(move || {
        let out = CallersFile { file: File::from(file), caller: &caller };
        let answer = match save(&store, out) {
            Ok(counts) => KeeperAnswer::Saved { records: counts.records, bytes: counts.bytes },
            Err(error) => KeeperAnswer::Refused(error.to_string()),
        };
        // The caller may have left.
        let _ = caller.send(&answer, &[]);
    });
    if let (Err(error), Ok(caller)) = (saving, refused) {
        let why = format!("cannot start a thread: {error}");
        let _ = KeeperChannel::of(caller).send(&KeeperAnswer::Refused(why), &[]);
    }
}

/// The file of a command that saves, for as long as that command waits.
struct CallersFile<'c> {
    file: File,
    caller: &'c KeeperChannel,
}

impl Write for CallersFile<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut ends = [PollFd::new(self.caller, PollFlags::RDHUP)];
        match poll(&mut ends, Some(&Timespec::default())) {
            Ok(0) => self.file.write(bytes),
            _ => Err(io::Error::other("the command that wanted it has ended")),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn save(store: &Store, out: impl Write) -> Result<SnapshotCounts, caravan_store::StoreError> {
    store.save(io::BufWriter::with_capacity(WRITE_BYTES, out))
}

fn save_at_end(store: &Store, path: &Path) -> Result<(), Error> {
    let output = RecvOutput::open(Some(path)).map_err(sentence)?;
    let file = File::from(output.descriptor().map_err(sentence)?);
    let bar = progress("saving", 0);
    let saved = save(store, bar.wrap_write(&file));
    bar.finish_and_clear();
    saved.map_err(|error| Error::Sentence(format!("{}: {error}", path.display())))?;
    output.complete_on_disk().map_err(sentence)
}

/// Returns a bar on the terminal, if standard error is one. A length of 0 is unknown.
pub fn progress(what: &str, bytes: u64) -> ProgressBar {
    let (bar, form) = match bytes {
        0 => (ProgressBar::no_length(), "{msg} {bytes}, {binary_bytes_per_sec}"),
        bytes => {
            (ProgressBar::new(bytes), "{msg} {bytes} of {total_bytes}, {binary_bytes_per_sec} {wide_bar}")
        }
    };
    let style = ProgressStyle::with_template(form).unwrap_or_else(|_| ProgressStyle::default_bar());
    bar.with_style(style).with_message(what.to_owned())
}

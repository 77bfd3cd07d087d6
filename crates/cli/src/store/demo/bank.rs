//! The bank of the demonstration: an office for each part, whose accounts have one hash tag, and one whose accounts are spread over
//! all parts; clients that move money between the accounts of an office, and readers that add it up.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use caravan_cluster::{Configuration, PartId, slot_of};
use caravan_store::{ClusterStore, ClusterTransaction, ConnectOptions, StoreError};

use super::StopKind;
use super::judge::{ClientBook, FoundOffice, Transfer, mistakes, stale};
use super::pauses::DemoPauses;
use super::times::{LongestTime, PartTimes};
use crate::error::Error;
use crate::store::sentence;

/// Accounts of an office, and what each has at the beginning.
const ACCOUNTS: usize = 12;
const BEGIN: i64 = 1000;
/// The most that one transfer moves.
const AMOUNT_MAX: u64 = 400;
/// The pause between two readings of an office.
const READ_PAUSE: Duration = Duration::from_millis(20);
/// The pause before an operation that has failed is tried again.
const FAILURE_PAUSE: Duration = Duration::from_millis(1);
/// The bytes of each value that the store is filled with.
const FILL_VALUE_BYTES: usize = 4000;
/// How long the last reading of a part is tried.
const AUDIT_MAX: Duration = Duration::from_secs(10);
/// By how much clients stand back behind the servers for processor time: on a small machine, they would keep these from renewing
/// their leases.
const NICE: i32 = 10;
/// The most messages of what is wrong that are kept.
const MISTAKES_MAX: usize = 20;

/// Accounts between which money is moved, and what clients and readers have seen of them.
#[derive(Debug)]
pub struct BankOffice {
    name: String,
    /// The part of all its keys; none if they are spread over all parts.
    pub part: Option<PartId>,
    accounts: Vec<Vec<u8>>,
    /// For each client, the key of its number of transfers.
    counters: Vec<Vec<u8>>,
    addresses: Vec<String>,
    password: Option<Vec<u8>>,
    /// When its server was killed, in nanoseconds since `bank.begin`, if there was no commit since; 0 otherwise.
    waits_since_ns: AtomicU64,
    /// Whether its keeper was killed, too. Written before `waits_since_ns`.
    waits_for_host: AtomicBool,
    commits: AtomicU64,
    /// How long transfers take, and readings.
    transfers: LongestTime,
    readings: LongestTime,
    books: Vec<Mutex<ClientBook>>,
}

/// All accounts.
#[derive(Debug)]
pub struct Bank {
    begin: Instant,
    /// The pause of a client after each transfer.
    pause: Option<Duration>,
    offices: Vec<BankOffice>,
    is_over: AtomicBool,
    readings: AtomicU64,
    refused: AtomicU64,
    mistakes: Mutex<Vec<String>>,
    /// How long each part had no commit after its server was killed.
    pauses: Mutex<DemoPauses>,
}

/// The threads of clients and readers.
pub struct BankThreads(Vec<JoinHandle<()>>);

/// What the bank has seen so far.
#[derive(Clone, Debug, PartialEq)]
pub struct BankCounts {
    pub commits: u64,
    /// Transfers that the accounts did not cover.
    pub refused: u64,
    pub readings: u64,
    pub is_right: bool,
    /// How long parts had no commit.
    pub pauses: DemoPauses,
    /// Parts that have had no commit since their server was killed.
    pub waiting: usize,
}

/// Why a transfer did not happen.
#[derive(Debug)]
enum NoTransfer {
    /// The account has less.
    Refused,
    /// The store does not have what it must have.
    Wrong(String),
    Store(StoreError),
}

impl From<StoreError> for NoTransfer {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl Bank {
    /// Opens the accounts of each office, for so many clients each, who together do `rate` transfers in a second at most.
    pub fn open(
        configuration: &Configuration,
        clients: usize,
        rate: Option<u32>,
        password: Option<Vec<u8>>,
    ) -> Result<Arc<Self>, Error> {
        let addresses: Vec<String> =
            configuration.members.iter().map(|member| member.client_address.clone()).collect();
        let slots = configuration.slot_map();
        // Others may use the same store, now or later.
        let own =
            SplitMix(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_nanos() as u64))
                .below(1 << 32);
        let mut tags = Vec::new();
        for part in &configuration.parts {
            let is_of_part = |tag: &String| slots.part(slot_of(tag.as_bytes())) == part.id;
            let tag = (0_u32..).map(|number| format!("office{own}.{number}")).find(is_of_part);
            tags.push((part.id, tag.unwrap_or_default()));
        }
        let office = |name: String, part: Option<PartId>, tags: &[&str]| {
            let kind = if part.is_some() { "account" } else { "spread" };
            let tag = |number: usize| tags[number % tags.len()];
            let account = |number: usize| format!("{{{}}}:{kind}:{number}", tag(number)).into_bytes();
            let counter = |client: usize| format!("{{{}}}:{kind}-client:{client}", tag(client)).into_bytes();
            BankOffice {
                part,
                accounts: (0..ACCOUNTS).map(account).collect(),
                counters: (0..clients).map(counter).collect(),
                name,
                addresses: addresses.clone(),
                password: password.clone(),
                waits_since_ns: AtomicU64::new(0),
                waits_for_host: AtomicBool::new(false),
                commits: AtomicU64::new(0),
                transfers: LongestTime::new(clients),
                readings: LongestTime::new(1),
                books: (0..clients).map(|_| Mutex::new(ClientBook::new(ACCOUNTS))).collect(),
            }
        };
        let mut offices: Vec<BankOffice> =
            tags.iter().map(|(part, tag)| office(format!("part {part}"), Some(*part), &[tag])).collect();
        let all: Vec<&str> = tags.iter().map(|(_, tag)| &tag[..]).collect();
        offices.push(office("all parts".to_owned(), None, &all));
        for office in &offices {
            let store = office.connect().map_err(sentence)?;
            let put = |account: &Vec<u8>| store.put(account, BEGIN.to_string().as_bytes());
            office.accounts.iter().try_for_each(put).map_err(sentence)?;
        }
        let clients = (clients * offices.len()) as f64;
        Ok(Arc::new(Self {
            begin: Instant::now(),
            pause: rate.map(|rate| Duration::from_secs_f64(clients / f64::from(rate))),
            offices,
            is_over: AtomicBool::new(false),
            readings: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            mistakes: Mutex::default(),
            pauses: Mutex::default(),
        }))
    }

    /// Starts the clients and a reader of each office.
    pub fn start(self: &Arc<Self>) -> Result<BankThreads, Error> {
        let mut threads = Vec::new();
        let mut start = |name: &str, body: Box<dyn FnOnce() + Send>| {
            let body = move || {
                // Counts for this thread alone.
                let _ = rustix::process::nice(NICE);
                body();
            };
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(body);
            thread.map(|thread| threads.push(thread)).map_err(sentence)
        };
        for office in 0..self.offices.len() {
            for client in 0..self.offices[office].books.len() {
                let bank = Arc::clone(self);
                start("demo-client", Box::new(move || bank.transfer_all(&bank.offices[office], client)))?;
            }
            let bank = Arc::clone(self);
            start("demo-reader", Box::new(move || bank.read_all(&bank.offices[office])))?;
        }
        Ok(BankThreads(threads))
    }

    /// Says that the servers of these parts are killed now, in this way.
    pub fn note_kill(&self, parts: &[PartId], kind: StopKind) {
        let now_ns = self.now_ns();
        for office in
            self.offices.iter().filter(|office| office.part.is_some_and(|part| parts.contains(&part)))
        {
            // A part that still waits has waited since the kill before.
            if office.waits_since_ns.load(Ordering::Relaxed) == 0 {
                office.waits_for_host.store(kind == StopKind::Host, Ordering::Relaxed);
                // Pairs with the Acquire in `note_commit`. Only this thread sets it.
                office.waits_since_ns.store(now_ns, Ordering::Release);
            }
        }
    }

    /// Returns the longest transfer and the longest reading of each part since the call before.
    pub fn take_times(&self) -> PartTimes {
        let now_ns = self.now_ns();
        let times = |office: &BankOffice| {
            Some((office.part?, office.transfers.take(now_ns), office.readings.take(now_ns)))
        };
        self.offices.iter().filter_map(times).collect()
    }

    /// Puts so many bytes of values into the store, spread over its parts.
    pub fn fill(&self, bytes: u64) -> Result<(), Error> {
        let parts: Vec<&BankOffice> = self.offices.iter().filter(|office| office.part.is_some()).collect();
        let values = bytes.div_ceil(parts.len() as u64 * FILL_VALUE_BYTES as u64);
        let fill = |office: &BankOffice| -> Result<(), StoreError> {
            let (store, value) = (office.connect()?, vec![b'x'; FILL_VALUE_BYTES]);
            let tag = office.tag();
            (0..values).try_for_each(|number| store.put(format!("{tag}:fill:{number}").as_bytes(), &value))
        };
        let filled: Result<Vec<()>, StoreError> = std::thread::scope(|scope| {
            let threads: Vec<_> = parts.iter().map(|office| scope.spawn(move || fill(office))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err(StoreError::Disconnected))).collect()
        });
        filled.map(drop).map_err(sentence)
    }

    /// Returns what was seen so far.
    pub fn counts(&self) -> BankCounts {
        let sum = |of: fn(&BankOffice) -> u64| self.offices.iter().map(of).sum();
        let pauses = lock(&self.pauses).clone();
        BankCounts {
            commits: sum(|office| office.commits.load(Ordering::Relaxed)),
            refused: self.refused.load(Ordering::Relaxed),
            readings: self.readings.load(Ordering::Relaxed),
            is_right: lock(&self.mistakes).is_empty(),
            pauses,
            waiting: self
                .offices
                .iter()
                .filter(|office| office.waits_since_ns.load(Ordering::Relaxed) != 0)
                .count(),
        }
    }

    /// Has clients and readers end, each after its operation.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Reads all accounts by new connections, and returns all that is wrong.
    pub fn audit(&self) -> Vec<String> {
        for office in &self.offices {
            let books: Vec<ClientBook> = office.books.iter().map(|book| lock(book).clone()).collect();
            match office.read_at_last() {
                Ok(found) => self.note(mistakes(&office.name, BEGIN, &books, &found)),
                Err(error) => {
                    self.note([format!("{} cannot be read: {error}", office.name)]);
                    continue;
                }
            }
            if office.waits_since_ns.load(Ordering::Relaxed) != 0 {
                self.note([format!("{} had no commit after its server was killed", office.name)]);
            }
        }
        lock(&self.mistakes).clone()
    }

    /// Deletes all that the clients have written, as far as it is in reach.
    pub fn clear(&self) {
        for office in &self.offices {
            let _ = office.connect().and_then(|store| {
                office.accounts.iter().chain(&office.counters).try_for_each(|key| store.delete(key).map(drop))
            });
        }
    }

    /// Returns the number of commits in each part.
    pub fn commits_by_part(&self) -> Vec<(PartId, u64)> {
        let commits = |office: &BankOffice| Some((office.part?, office.commits.load(Ordering::Relaxed)));
        self.offices.iter().filter_map(commits).collect()
    }

    /// Returns the addresses of all servers.
    pub fn addresses(&self) -> &[String] {
        self.offices.first().map_or(&[], |office| &office.addresses)
    }

    fn now_ns(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn note(&self, mistakes: impl IntoIterator<Item = String>) {
        let mut noted = lock(&self.mistakes);
        noted.extend(mistakes);
        noted.truncate(MISTAKES_MAX);
    }

    /// Connects, again and again while nobody has the part; `None` at the end.
    fn connected(&self, office: &BankOffice) -> Option<ClusterStore> {
        while !self.is_over.load(Ordering::Relaxed) {
            match office.connect() {
                Ok(store) => return Some(store),
                Err(_) => std::thread::sleep(FAILURE_PAUSE),
            }
        }
        None
    }

    /// Moves money until the end.
    fn transfer_all(&self, office: &BankOffice, client: usize) {
        let mut random = SplitMix(office.part.map_or(u64::MAX, |part| part.0.into()) << 32 | client as u64);
        let Some(mut store) = self.connected(office) else { return };
        while !self.is_over.load(Ordering::Relaxed) {
            let from = random.below(ACCOUNTS as u64) as usize;
            let to = (from + 1 + random.below(ACCOUNTS as u64 - 1) as usize) % ACCOUNTS;
            let transfer = Transfer { from, to, amount: 1 + random.below(AMOUNT_MAX) as i64 };
            office.transfers.begin(client, self.now_ns());
            // Until its outcome is known: a client that gave up would not know what is true.
            while let Err(error) = self.transfer(office, client, &store, transfer) {
                if self.is_over.load(Ordering::Relaxed) {
                    return;
                }
                std::thread::sleep(FAILURE_PAUSE);
                if matches!(error, StoreError::Disconnected | StoreError::Replaced) {
                    let Some(again) = self.connected(office) else { return };
                    store = again;
                }
            }
            office.transfers.end(client, self.now_ns());
            self.pause.into_iter().for_each(std::thread::sleep);
        }
    }

    /// Does a transfer once. After an error nobody knows whether it was done.
    fn transfer(
        &self,
        office: &BankOffice,
        client: usize,
        store: &ClusterStore,
        transfer: Transfer,
    ) -> Result<(), StoreError> {
        let (done, was_tried) = {
            let mut book = lock(&office.books[client]);
            (book.acknowledged, book.unanswered.replace(transfer).is_some())
        };
        let number = done + 1;
        let mut began_ns = 0;
        let outcome = store.transaction(|tx| {
            began_ns = self.now_ns();
            let counter = office.number(tx, &office.counters[client])? as u64;
            if was_tried && counter == number {
                // The answer to the earlier attempt was lost.
                return Ok(());
            }
            if counter != done {
                let name = &office.name;
                return Err(NoTransfer::Wrong(format!(
                    "{name}: client {client} has {done} acknowledged transfers, and the store has {counter}"
                )));
            }
            let Transfer { from, to, amount } = transfer;
            let (from, to) = (&office.accounts[from], &office.accounts[to]);
            let left = office.number(tx, from)? - amount;
            let there = office.number(tx, to)? + amount;
            tx.put(from, left.to_string().as_bytes())?;
            tx.put(to, there.to_string().as_bytes())?;
            tx.put(&office.counters[client], number.to_string().as_bytes())?;
            // Nothing of all this may happen.
            if left < 0 { Err(NoTransfer::Refused) } else { Ok(()) }
        });
        let mut book = lock(&office.books[client]);
        match outcome {
            Ok(()) => {
                book.acknowledge(transfer);
                book.unanswered = None;
                drop(book);
                self.note_commit(office, began_ns);
            }
            Err(NoTransfer::Refused) => {
                book.unanswered = None;
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
            Err(NoTransfer::Wrong(text)) => {
                drop(book);
                self.note([text]);
                self.end();
            }
            Err(NoTransfer::Store(error)) => return Err(error),
        }
        Ok(())
    }

    fn note_commit(&self, office: &BankOffice, began_ns: u64) {
        office.commits.fetch_add(1, Ordering::Relaxed);
        let since_ns = office.waits_since_ns.load(Ordering::Acquire);
        // One that began before the kill may have been done before it.
        if since_ns == 0 || began_ns < since_ns {
            return;
        }
        let kind =
            if office.waits_for_host.load(Ordering::Relaxed) { StopKind::Host } else { StopKind::Server };
        if office.waits_since_ns.compare_exchange(since_ns, 0, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
            lock(&self.pauses).note(kind, Duration::from_nanos(self.now_ns() - since_ns));
        }
    }

    /// Adds the money of an office up until the end.
    fn read_all(&self, office: &BankOffice) {
        let Some(mut store) = self.connected(office) else { return };
        while !self.is_over.load(Ordering::Relaxed) {
            office.readings.begin(0, self.now_ns());
            let acknowledged: Vec<u64> = office.books.iter().map(|book| lock(book).acknowledged).collect();
            match office.read(&store) {
                Ok(found) => {
                    office.readings.end(0, self.now_ns());
                    self.note(stale(&office.name, &acknowledged, &found));
                    let (sum, expected) = (found.balances.iter().sum::<i64>(), BEGIN * ACCOUNTS as i64);
                    if sum != expected {
                        self.note([format!("{}: the sum is {sum} instead of {expected}", office.name)]);
                    }
                    self.readings.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(READ_PAUSE);
                }
                Err(_) => {
                    office.readings.end(0, self.now_ns());
                    std::thread::sleep(FAILURE_PAUSE);
                    let Some(again) = self.connected(office) else { return };
                    store = again;
                }
            }
        }
    }
}

impl BankOffice {
    fn connect(&self) -> Result<ClusterStore, StoreError> {
        let (first, others) = self.addresses.split_first().ok_or(StoreError::Disconnected)?;
        let mut options = ConnectOptions::new(first).others(others.to_vec());
        options.password.clone_from(&self.password);
        ClusterStore::connect(options)
    }

    /// Returns the hash tag of its first account, with braces.
    fn tag(&self) -> String {
        let account = String::from_utf8_lossy(&self.accounts[0]).into_owned();
        account.split_inclusive('}').next().unwrap_or_default().to_owned()
    }

    /// Reads over a new connection, again while the part is out of reach.
    fn read_at_last(&self) -> Result<FoundOffice, StoreError> {
        let deadline = Instant::now() + AUDIT_MAX;
        loop {
            match self.connect().and_then(|store| self.read(&store)) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(FAILURE_PAUSE),
                found => return found,
            }
        }
    }

    /// Returns the number at a key, 0 if there is none.
    fn number(&self, tx: &mut ClusterTransaction<'_>, key: &[u8]) -> Result<i64, StoreError> {
        let value = tx.get(key)?.unwrap_or_else(|| b"0".to_vec());
        // What is no number is no right balance either.
        Ok(std::str::from_utf8(&value).ok().and_then(|text| text.parse().ok()).unwrap_or(i64::MIN / 4))
    }

    fn read(&self, store: &ClusterStore) -> Result<FoundOffice, StoreError> {
        store.transaction(|tx| {
            let balances = self.accounts.iter().map(|account| self.number(tx, account));
            let balances = balances.collect::<Result<_, StoreError>>()?;
            let counters = self.counters.iter().map(|counter| self.number(tx, counter));
            let counters = counters.map(|counter| counter.map(|counter| counter as u64));
            Ok(FoundOffice { balances, counters: counters.collect::<Result<_, StoreError>>()? })
        })
    }
}

impl BankThreads {
    /// Returns whether all have ended.
    pub fn have_ended(&self) -> bool {
        self.0.iter().all(JoinHandle::is_finished)
    }
}

fn lock<T>(of: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Random numbers (SplitMix64).
struct SplitMix(u64);

impl SplitMix {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % limit
    }
}

//! The clients of a history: processes that are started, stopped and killed, and what they have written down.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use caravan_segment::process::ProcessStat;
use caravan_store::faults::PlantedFault;
use rustix::process::Signal;

use super::children::{self, Order, Role, Running};
use super::clients::ClientOrder;
use super::history::{self, ClientAct, Random};

struct ClientProcess {
    process: Running,
    said: JoinHandle<Vec<u8>>,
}

pub struct ClientHerd {
    /// What each is told, but for its number.
    order: ClientOrder,
    planted: Option<PlantedFault>,
    clients: Vec<ClientProcess>,
    started: u32,
    said: Vec<Vec<u8>>,
    /// How many lines all clients have written.
    lines: Arc<AtomicU64>,
}

impl ClientHerd {
    pub fn new(order: ClientOrder, planted: Option<PlantedFault>) -> Self {
        Self { order, planted, clients: Vec::new(), started: 0, said: Vec::new(), lines: Arc::default() }
    }

    /// Starts a client with this standard input.
    pub fn start(&mut self, input: impl Into<OwnedFd>) {
        let order = ClientOrder { client: self.started, ..self.order.clone() };
        self.started += 1;
        let planted = self.planted.map(|fault| format!("{fault:?}"));
        let order = Order { role: Role::Client(order), planted };
        let mut process = children::start(&order, input.into(), Stdio::piped());
        let mut stdout = process.stdout();
        let lines = Arc::clone(&self.lines);
        let said = std::thread::spawn(move || {
            let (mut bytes, mut part) = (Vec::new(), [0; 4096]);
            loop {
                let count = stdout.read(&mut part).expect("read");
                if count == 0 {
                    return bytes;
                }
                let ends = part[..count].iter().filter(|byte| **byte == b'\n').count();
                lines.fetch_add(ends as u64, Ordering::Relaxed);
                bytes.extend_from_slice(&part[..count]);
            }
        });
        self.clients.push(ClientProcess { process, said });
    }

    /// Returns how many lines all clients have written.
    pub fn lines(&self) -> u64 {
        self.lines.load(Ordering::Relaxed)
    }

    pub fn wait_for_lines(&self, lines: u64) {
        let begin = Instant::now();
        while self.lines() < lines {
            assert!(begin.elapsed() < children::LIMIT, "the clients hardly do anything");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Kills one of them.
    pub fn kill_one(&mut self, random: &mut Random) {
        let at = random.below(self.clients.len());
        let client = self.clients.swap_remove(at);
        self.bury(client);
    }

    /// Kills all, and returns what they have written down since the last time.
    pub fn kill_all(&mut self) -> Vec<ClientAct> {
        for client in std::mem::take(&mut self.clients) {
            self.bury(client);
        }
        std::mem::take(&mut self.said).iter().flat_map(|said| history::parse(said)).collect()
    }

    fn bury(&mut self, mut client: ClientProcess) {
        assert!(!client.process.has_ended(), "a client ended by itself, for the reason above");
        drop(client.process);
        self.said.push(client.said.join().expect("read"));
    }

    /// Stops one for a while; returns how many that were.
    pub fn stop_one(&mut self, random: &mut Random, pause: Duration) -> usize {
        let at = random.below(self.clients.len());
        self.clients[at].process.signal(Signal::STOP);
        std::thread::sleep(pause);
        self.clients[at].process.signal(Signal::CONT);
        1
    }

    /// Waits until a client has stopped itself. Lets it go on a while later.
    pub fn wake_one(&self, pause: Duration) {
        let begin = Instant::now();
        let is_stopped = |client: &&ClientProcess| {
            ProcessStat::of(client.process.id() as i32).is_ok_and(|stat| stat.state == 'T')
        };
        let client = loop {
            if let Some(client) = self.clients.iter().find(is_stopped) {
                break client;
            }
            assert!(begin.elapsed() < children::LIMIT, "no client stops itself");
            std::thread::sleep(Duration::from_millis(1));
        };
        std::thread::sleep(pause);
        client.process.signal(Signal::CONT);
    }
}

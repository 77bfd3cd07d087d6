//! The other side of a self-test. It answers on its standard output the questions from its standard input, and ends
//! when that ends, whatever it is doing.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

use caravan_bench::Error as Shared;
use caravan_bench::interrupt::Interrupt;
use caravan_fabric::contract::Endpoint;
use caravan_fabric::{Link, shm, verbs};
use caravan_pipe::framing;
use caravan_pipe::place::Place;

use crate::args::SelfTestPeer;
use crate::error::Error;
use crate::fabric::survey::Findings;
use crate::remote::agent::remove_copy;
use crate::selftest::message::{
    Arena, MESSAGE_BYTES_MAX, PROTOCOL, SelftestAnswer, SelftestAsk, SelftestHello, StepBounds, StepFailure,
    Wait,
};
use crate::selftest::promises::Promises;
use crate::selftest::traffic::Traffic;
use crate::selftest::{CONNECT_LIMIT, OURS, STEP_LIMIT, THEIRS, limit};

/// How long a peer waits for the next question before it ends.
const IDLE_LIMIT: Duration = Duration::from_secs(600);
/// How long the current step may take to end once the standard input has ended.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The mark at the beginning of each line before the first message; the greetings of shells lack it.
pub const MARK: &str = "caravan-selftest";

/// Identifies this program: both sides must be the same one.
pub fn identity() -> String {
    format!("caravan {} selftest {PROTOCOL}", env!("CARGO_PKG_VERSION"))
}

/// Serves until the standard input ends.
pub fn run(args: &SelfTestPeer) -> Result<(), Error> {
    let mut out = io::stdout();
    if args.probe {
        return crate::print(&format!("{}\n", identity()));
    }
    if let Some(folder) = &args.remove {
        remove_copy(folder, MARK)?;
    }
    crate::print(&format!("\n{MARK} ready\n"))?;
    let ended = Arc::new(AtomicBool::new(false));
    let asked = read_questions(Arc::clone(&ended));
    let mut peer = PeerSide::new(Interrupt::by(ended));
    while let Ok(ask) = asked.recv_timeout(IDLE_LIMIT) {
        let answer = match peer.answer(ask, &mut out) {
            Ok(answer) => answer,
            Err(StepFailure::Failed(why)) => SelftestAnswer::Failed(why),
            // The other side is gone.
            Err(StepFailure::Fatal(Error::Shared(Shared::Interrupted))) => break,
            Err(StepFailure::Fatal(error)) => return Err(error),
        };
        say(&mut out, &answer)?;
    }
    Ok(())
}

fn say(out: &mut impl Write, answer: &SelftestAnswer) -> Result<(), Error> {
    Ok(framing::write_json(out, answer, MESSAGE_BYTES_MAX).map_err(Shared::Output)?)
}

/// Reads the questions in a thread. When the standard input ends, the other side is gone: then the current step ends
/// in order, as devices need it, or the process exits after `END_LIMIT`.
fn read_questions(ended: Arc<AtomicBool>) -> Receiver<SelftestAsk> {
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        let mut input = io::stdin().lock();
        while let Ok(ask) = framing::read_json(&mut input, MESSAGE_BYTES_MAX) {
            if sender.send(ask).is_err() {
                break;
            }
        }
        ended.store(true, Ordering::Relaxed);
        drop(sender);
        std::thread::sleep(END_LIMIT);
        std::process::exit(0);
    });
    receiver
}

#[derive(Debug)]
struct PeerSide {
    doorway: Option<shm::Listener>,
    endpoint: Option<Box<dyn Endpoint>>,
    link: Option<Link>,
    ended: Interrupt,
}

impl PeerSide {
    fn new(ended: Interrupt) -> Self {
        Self { doorway: None, endpoint: None, link: None, ended }
    }

    fn answer(&mut self, ask: SelftestAsk, out: &mut impl Write) -> Result<SelftestAnswer, StepFailure> {
        match ask {
            SelftestAsk::Hello => return hello(),
            SelftestAsk::Listen { arena_bytes } => {
                let (doorway, descriptor) = shm::Listener::listen(arena_bytes)?;
                self.doorway = Some(doorway);
                return Ok(SelftestAnswer::Bytes(descriptor));
            }
            SelftestAsk::Enter => {
                let doorway = self.doorway.take().ok_or_else(|| out_of_turn("a doorway"))?;
                self.endpoint = Some(Box::new(doorway.accept()?));
            }
            SelftestAsk::Accept { request, arena } => self.accept(&request, &arena, out)?,
            SelftestAsk::Fill { from, bytes } => self.promises()?.fill(from, bytes)?,
            SelftestAsk::Immediates { from, count, bytes } => {
                self.promises()?.take_immediates(from, count, bytes)?
            }
            SelftestAsk::Untouched { bytes } => self.promises()?.untouched(bytes)?,
            SelftestAsk::Link { ring_bytes } => {
                let endpoint = self.endpoint.take().ok_or_else(|| out_of_turn("a connection"))?;
                self.link = Some(Link::new(endpoint, ring_bytes)?);
            }
            SelftestAsk::Content { bytes, wait } => {
                self.traffic(wait, STEP_LIMIT)?.content((THEIRS, OURS), bytes)?;
            }
            SelftestAsk::Echo { bytes, wait, time } => self.traffic(wait, limit(time))?.echo(size(bytes)?)?,
            SelftestAsk::Take { bytes, wait, time } => {
                self.traffic(wait, limit(time))?.drain(size(bytes)?)?
            }
            SelftestAsk::Send { bytes, wait, time } => {
                let rate = self.traffic(wait, limit(time))?.stream(size(bytes)?, time)?;
                return Ok(SelftestAnswer::Figure(rate));
            }
            SelftestAsk::End => *self = Self::new(self.ended.clone()),
        }
        Ok(SelftestAnswer::Done)
    }

    /// Answers with this side's half, then waits until the connection is up.
    fn accept(&mut self, request: &[u8], arena: &Arena, out: &mut impl Write) -> Result<(), StepFailure> {
        let exposure = arena.exposure().ok_or_else(|| out_of_turn("a possible arena"))?;
        let (pending, half) = verbs::accept(request, &exposure)?;
        say(out, &SelftestAnswer::Bytes(half))?;
        self.endpoint = Some(pending.finish(&[], CONNECT_LIMIT)?);
        Ok(())
    }

    fn promises(&mut self) -> Result<Promises<'_>, StepFailure> {
        match &mut self.endpoint {
            Some(endpoint) => {
                Ok(Promises::new(&mut **endpoint, StepBounds::new(STEP_LIMIT, Some(&self.ended))))
            }
            None => Err(out_of_turn("a connection")),
        }
    }

    fn traffic(&mut self, wait: Wait, limit: Duration) -> Result<Traffic<'_>, StepFailure> {
        let link = self.link.as_mut().ok_or_else(|| out_of_turn("a link"))?;
        Ok(Traffic::new(link, wait, StepBounds::new(limit, Some(&self.ended))))
    }
}

fn hello() -> Result<SelftestAnswer, StepFailure> {
    let found = Findings::of_this_host()?;
    let offer = verbs::offer_of(&found.ports);
    Ok(SelftestAnswer::Hello(Box::new(SelftestHello { survey: found.survey, offer, place: Place::here() })))
}

/// Checks the size of a message, which begins with its number.
fn size(bytes: usize) -> Result<usize, StepFailure> {
    match (8..=1 << 30).contains(&bytes) {
        true => Ok(bytes),
        false => Err(out_of_turn("a possible size")),
    }
}

fn out_of_turn(what: &str) -> StepFailure {
    StepFailure::failed(format!("a question came without {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_out_of_turn_is_answered_with_a_failure() {
        let mut peer = PeerSide::new(Interrupt::by(Arc::default()));
        for ask in [
            SelftestAsk::Enter,
            SelftestAsk::Link { ring_bytes: 4096 },
            SelftestAsk::Content { bytes: 1, wait: Wait::Spin },
            SelftestAsk::Untouched { bytes: 1 },
            SelftestAsk::Accept {
                request: vec![1],
                arena: Arena { bytes: 1, exposed: (2, 1), reads: false, swaps: false },
            },
        ] {
            let said = peer.answer(ask, &mut Vec::new());
            assert!(matches!(said, Err(StepFailure::Failed(_))), "{said:?}");
        }
    }
}

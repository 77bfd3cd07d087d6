//! The messages between `send` and `recv` on the side channel.
//!
//! Both sides are silent while data move, so nothing is under way here. Thus TCP's own keepalive notices within 4 s
//! that the other host is gone, whatever waits on the data connection. The kernel of a live host answers keepalives
//! for a process that is stopped (Ctrl-Z): this side waits for it.

use std::thread;
use std::time::{Duration, Instant};

use caravan_bench::interrupt::{GLANCE, Interrupt};
use caravan_pipe::cancel::Cancel;
use caravan_pipe::connect::{Incoming, SideChannel};
use caravan_pipe::mover::HopOptions;
use caravan_pipe::{Error, limits};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// How long the other side may take for its first message, once it is connected.
const WORD_LIMIT: Duration = Duration::from_secs(10);
/// How long the other side may take to close after the last message, or to say why it gave up.
const CLOSE_LIMIT: Duration = Duration::from_secs(1);

#[derive(Debug, Serialize, Deserialize)]
enum TalkWord {
    /// The sender offers a stream on these terms.
    Offer(StreamTerms),
    /// The receiver takes the stream.
    Ready,
    /// The data are complete and in their place.
    Done,
    /// The stream failed, for this reason.
    Failed(String),
}

/// The terms that both sides must agree on.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct StreamTerms {
    pub hop: HopOptions,
    /// The number of bytes of the stream, if known.
    pub total: Option<u64>,
}

/// One side of the messages.
#[derive(Debug)]
pub struct Talk {
    words: SideChannel,
    peer: String,
    interrupt: Interrupt,
    /// How the stream ended for the other side.
    end: Option<Result<(), Error>>,
}

impl Talk {
    pub fn new(words: SideChannel, peer: String, interrupt: Interrupt) -> Self {
        Self { words, peer, interrupt, end: None }
    }

    /// Offers the stream, and waits until the other side is ready.
    pub fn offer(&mut self, terms: StreamTerms) -> Result<(), Error> {
        self.say(&TalkWord::Offer(terms))?;
        match self.next_word(Some(WORD_LIMIT))? {
            TalkWord::Ready => Ok(()),
            TalkWord::Failed(why) => Err(self.told(&why)),
            TalkWord::Offer(_) | TalkWord::Done => Err(out_of_turn()),
        }
    }

    /// Waits for an offer, checks it, and accepts it.
    pub fn agree(&mut self, takes_unsealed: bool) -> Result<StreamTerms, Error> {
        let terms = match self.next_word(Some(WORD_LIMIT))? {
            TalkWord::Offer(terms) => terms,
            TalkWord::Failed(why) => return Err(self.told(&why)),
            TalkWord::Ready | TalkWord::Done => return Err(out_of_turn()),
        };
        if let Err(error) = check(&terms, takes_unsealed) {
            self.tell_the_end(Some(&error));
            return Err(error);
        }
        self.say(&TalkWord::Ready)?;
        Ok(terms)
    }

    /// Waits until `done` fires, a message arrives, or it is time to check something else. An error is a reason to
    /// give up.
    pub fn attend(&mut self, done: &Cancel) -> Result<(), Error> {
        let mut set = vec![PollFd::new(done, PollFlags::IN)];
        if self.end.is_none() {
            set.push(PollFd::new(&self.words, PollFlags::IN));
        }
        wait(&mut set, GLANCE)?;
        self.check_interrupt()?;
        if self.end.is_none() {
            self.hear()?;
        }
        match &mut self.end {
            Some(end @ Err(_)) => std::mem::replace(end, Ok(())),
            _ => Ok(()),
        }
    }

    /// Waits, on the sending side after all data are sent, until the receiver has put them in their place.
    pub fn hear_the_end(&mut self) -> Result<(), Error> {
        let never = Cancel::new()?;
        while self.end.is_none() {
            self.attend(&never)?;
        }
        Ok(())
    }

    /// Returns why the other side gave up, if it says so at once.
    pub fn reason(&mut self) -> Option<Error> {
        let until = Instant::now() + CLOSE_LIMIT;
        while self.end.is_none() && Instant::now() < until {
            let mut set = [PollFd::new(&self.words, PollFlags::IN)];
            if wait(&mut set, GLANCE).is_err() || self.hear().is_err() {
                return None;
            }
        }
        self.end.take()?.err().filter(|error| matches!(error, Error::Told(_)))
    }

    /// Tells the other side how the stream ended here, and waits a moment until it has read that.
    pub fn tell_the_end(&mut self, failure: Option<&Error>) {
        let word = failure.map_or(TalkWord::Done, |error| TalkWord::Failed(error.to_string()));
        // If the other side does not listen any more, it has ended for its own reasons.
        if self.say(&word).is_err() {
            return;
        }
        self.words.close();
        let until = Instant::now() + CLOSE_LIMIT;
        while Instant::now() < until && !matches!(self.words.hear::<TalkWord>(), Ok(Incoming::End) | Err(_)) {
            if wait(&mut [PollFd::new(&self.words, PollFlags::IN)], GLANCE).is_err() {
                return;
            }
        }
    }

    fn say(&mut self, word: &TalkWord) -> Result<(), Error> {
        self.words.say(word).map_err(|error| self.gone(&format!("it does not listen any more: {error}")))
    }

    /// Reads a message, if there is one, and keeps how the stream ended.
    fn hear(&mut self) -> Result<(), Error> {
        self.end = match self.words.hear() {
            Ok(Incoming::Nothing) => None,
            Ok(Incoming::Word(TalkWord::Done)) => Some(Ok(())),
            Ok(Incoming::Word(TalkWord::Failed(why))) => Some(Err(self.told(&why))),
            Ok(Incoming::Word(TalkWord::Offer(_) | TalkWord::Ready)) => return Err(out_of_turn()),
            Ok(Incoming::End) => Some(Err(self.gone("it has ended without a word, or was killed"))),
            Err(Error::System { source, .. }) => Some(Err(self.gone(&format!("it is lost: {source}")))),
            Err(error) => return Err(error),
        };
        Ok(())
    }

    fn next_word(&mut self, limit: Option<Duration>) -> Result<TalkWord, Error> {
        let until = limit.map(|limit| Instant::now() + limit);
        loop {
            match self.words.hear()? {
                Incoming::Word(word) => return Ok(word),
                Incoming::End => return Err(self.gone("it has ended without a word, or was killed")),
                Incoming::Nothing if until.is_some_and(|until| until <= Instant::now()) => {
                    return Err(self.gone("it is connected, and says nothing"));
                }
                Incoming::Nothing => wait(&mut [PollFd::new(&self.words, PollFlags::IN)], GLANCE)?,
            }
            self.check_interrupt()?;
        }
    }

    fn check_interrupt(&self) -> Result<(), Error> {
        self.interrupt.check().map_err(|_| Error::Cancelled)
    }

    fn told(&self, why: &str) -> Error {
        Error::Told(format!("{}: {why}", self.peer))
    }

    fn gone(&self, why: &str) -> Error {
        Error::Host { host: self.peer.clone(), why: why.to_owned() }
    }
}

/// Does work that takes time, and fires `cancel` once the user interrupts it.
pub fn attended<T: Send>(
    interrupt: &Interrupt,
    cancel: &Cancel,
    work: impl FnOnce() -> Result<T, Error> + Send,
) -> Result<T, Error> {
    let done = Cancel::new()?;
    thread::scope(|scope| {
        let fired = Fired(done.clone());
        let worker = thread::Builder::new().name("connecting".to_owned()).spawn_scoped(scope, move || {
            let _fired = fired;
            work()
        });
        let worker = worker.map_err(Error::system("a new thread"))?;
        while !done.is_fired() {
            wait(&mut [PollFd::new(&done, PollFlags::IN)], GLANCE)?;
            if interrupt.check().is_err() {
                cancel.fire();
            }
        }
        worker.join().unwrap_or(Err(Error::Cancelled))
    })
}

/// Fires its `Cancel` when it is dropped, on every path.
pub struct Fired(pub Cancel);

impl Drop for Fired {
    fn drop(&mut self) {
        self.0.fire();
    }
}

fn wait(set: &mut [PollFd<'_>], limit: Duration) -> Result<(), Error> {
    let limit = Timespec { tv_sec: limit.as_secs() as i64, tv_nsec: i64::from(limit.subsec_nanos()) };
    match poll(set, Some(&limit)) {
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(source) => Err(Error::system("poll")(source)),
    }
}

fn check(terms: &StreamTerms, takes_unsealed: bool) -> Result<(), Error> {
    let bytes = terms.hop.block_bytes;
    if !(1..=limits::BLOCK_BYTES).contains(&bytes) {
        return Err(Error::Protocol(format!("wants blocks of {bytes} bytes")));
    }
    match terms.hop.sealed || takes_unsealed {
        true => Ok(()),
        false => Err(Error::Usage(
            "the sending side wants to send unencrypted (--insecure), and the receiving side was not told to take \
             that: give --insecure on both, or on none"
                .to_owned(),
        )),
    }
}

fn out_of_turn() -> Error {
    Error::Protocol("says something out of turn".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use caravan_pipe::mover::DigestKind;

    #[test]
    fn unencrypted_data_are_taken_only_if_both_want_it() {
        let terms = |sealed, block_bytes| {
            let digest = DigestKind::Xxh3;
            StreamTerms {
                hop: HopOptions { digest, sealed, compression: None, block_bytes, silence: None },
                total: None,
            }
        };
        assert!(check(&terms(true, limits::BLOCK_BYTES), false).is_ok());
        assert!(check(&terms(true, 1), true).is_ok());
        assert!(check(&terms(false, 1), true).is_ok());
        let refusal = check(&terms(false, 1), false).expect_err("refused").to_string();
        assert!(refusal.contains("give --insecure on both, or on none"), "{refusal}");
        for bytes in [0, limits::BLOCK_BYTES + 1, u32::MAX] {
            assert!(matches!(check(&terms(true, bytes), false), Err(Error::Protocol(_))), "{bytes}");
        }
    }

    #[test]
    fn what_is_attended_to_ends_with_an_interrupt() {
        use std::sync::Arc;
        use std::sync::atomic::AtomicBool;
        let flag = Arc::new(AtomicBool::new(true));
        let cancel = Cancel::new().expect("an event");
        let waiting = cancel.clone();
        let outcome = attended(&Interrupt::by(flag), &cancel, move || {
            while !waiting.is_fired() {
                wait(&mut [PollFd::new(&waiting, PollFlags::IN)], Duration::from_secs(10))?;
            }
            Err::<(), _>(Error::Cancelled)
        });
        assert!(matches!(outcome, Err(Error::Cancelled)));
    }
}

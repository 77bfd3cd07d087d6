//! The agent of this host.
//!
//! Its standard input is one end of a socket pair, which carries the control channel both ways. Its
//! standard output is the caller's. The caller's standard input comes as a descriptor in the first message
//! over the socket, so that nothing but what wants it ever holds it as its own.

use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use caravan_pipe::Error;
use caravan_pipe::coordinator::{AgentSession, Guard};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, recvmsg, sendmsg,
};
use rustix::process::{Pid, Signal, kill_process};

use super::launcher::WORD;

/// The message that the descriptor comes with.
const GREETING: u8 = b'i';
/// How long the agent may take to end once its channel is closed.
const END_LIMIT: Duration = Duration::from_millis(200);
/// And once it was told to: its commands have half a second, then it kills them.
const TERM_LIMIT: Duration = Duration::from_millis(750);
/// Between two looks at whether it has ended.
const LOOK: Duration = Duration::from_millis(2);

/// Starts it.
pub fn launch() -> Result<AgentSession, Error> {
    let failed = |call| move |source| Error::System { call, source };
    let (ours, theirs) = UnixStream::pair().map_err(failed("socketpair"))?;
    let mut command = Command::new("/proc/self/exe");
    command.arg0("caravan").args([WORD, "--local"]).stdin(OwnedFd::from(theirs));
    let child = command.spawn().map_err(failed("start of /proc/self/exe"))?;
    let guard = Agent(child);
    // Its copy of the other end is closed: a write fails if it has ended.
    drop(command);
    give(&ours, io::stdin()).map_err(failed("sendmsg"))?;
    let from = ours.try_clone().map_err(failed("dup"))?;
    Ok(AgentSession { from: Box::new(from), to: Box::new(Sender(ours)), guard: Box::new(guard) })
}

/// Gives a descriptor to the other end.
fn give(to: &UnixStream, what: impl AsFd) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let what = [what.as_fd()];
    if !control.push(SendAncillaryMessage::ScmRights(&what)) {
        return Err(io::Error::other("the descriptor does not fit"));
    }
    sendmsg(to, &[IoSlice::new(&[GREETING])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Takes the descriptor that comes with the first message.
pub fn take(from: impl AsFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut parts = [IoSliceMut::new(&mut byte)];
    let received = recvmsg(from, &mut parts, &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut descriptors = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    match (received.bytes, byte, descriptors.next()) {
        (1, [GREETING], Some(descriptor)) => Ok(descriptor),
        _ => Err(io::Error::other("it is no agent's channel")),
    }
}

/// Closes the direction that it stands for, although the other one lives on.
struct Sender(UnixStream);

impl Write for Sender {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        // The agent may have closed it all.
        let _ = self.0.shutdown(Shutdown::Write);
    }
}

struct Agent(Child);

impl Agent {
    fn wait(&mut self, limit: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + limit;
        loop {
            match self.0.try_wait() {
                Ok(Some(status)) => return Some(status),
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                Ok(None) | Err(_) => return None,
            }
        }
    }
}

impl Guard for Agent {
    fn why_ended(&mut self) -> String {
        match self.wait(END_LIMIT) {
            Some(status) => format!("the agent of this host ended ({status})"),
            None => "the agent of this host closed its channel".to_owned(),
        }
    }

    fn end(&mut self) {
        if self.wait(END_LIMIT).is_some() {
            return;
        }
        let _ = kill_process(Pid::from_child(&self.0), Signal::TERM);
        if self.wait(TERM_LIMIT).is_none() {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_descriptor_passes() {
        let (ours, theirs) = UnixStream::pair().expect("a pair");
        let (reader, writer) = rustix::pipe::pipe().expect("a pipe");
        give(&ours, &writer).expect("given");
        drop(writer);
        let mut writer = std::fs::File::from(take(&theirs).expect("taken"));
        writer.write_all(b"through").expect("written");
        drop(writer);
        let mut said = String::new();
        std::fs::File::from(reader).read_to_string(&mut said).expect("read");
        assert_eq!(said, "through");
    }

    #[test]
    fn anything_else_is_refused() {
        let (mut ours, theirs) = UnixStream::pair().expect("a pair");
        ours.write_all(&[GREETING]).expect("written");
        assert!(take(&theirs).is_err(), "no descriptor");
        drop(ours);
        assert!(take(&theirs).is_err(), "the end");
    }

    #[test]
    fn the_agents_channel_ends_with_its_writer() {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair");
        let _from = ours.try_clone().expect("cloned");
        drop(Sender(ours));
        assert_eq!(theirs.read(&mut [0]).expect("read"), 0);
    }
}

//! A peer over TCP that is made by hand: it greets as it should, and then sends what a test or a fuzzer decides.

use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::time::{Duration, Instant};

use caravan_fabric::contract::{Endpoint, Local, Operation};
use caravan_fabric::seal::Seal;
use caravan_fabric::tcp::{self, TcpEndpoint, TcpSealing, TcpSide};
use caravan_fabric::{Error, Exposure};

/// How long a victim may take for anything.
const LIMIT: Duration = Duration::from_secs(60);

/// A peer made by hand: it greets as it should, and then writes what it likes.
pub struct Liar {
    pub socket: TcpStream,
    _seal: Seal,
}

/// What proves to the victim that the liar is its peer.
pub const SECRET: [u8; 32] = [7; 32];

/// Returns a greeting: what the side's arena is and exposes, and whether it wants records sealed.
pub fn greeting(exposed: [u64; 3], sealing: u8) -> Vec<u8> {
    let words = exposed.map(u64::to_be_bytes);
    [&b"caravTP\x01"[..], &[sealing], words.as_flattened(), &[1, 1]].concat()
}

/// Returns a record, sealed if there is a seal.
pub fn record(seal: Option<&mut Seal>, body: &[u8]) -> Vec<u8> {
    let head = (body.len() as u32).to_be_bytes();
    let mut body = body.to_vec();
    let tag = seal.map(|seal| seal.seal(&head, &mut body).unwrap());
    [&head[..], &body, tag.as_ref().map_or(&[], |tag| &tag[..])].concat()
}

/// Returns two connected sockets.
pub fn sockets() -> (TcpStream, TcpStream) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (near, listener.accept().unwrap().0)
}

/// Makes the victim of a socket, as the listening side: an arena of which the middle is exposed.
pub fn victim(socket: TcpStream, limit: Duration) -> Result<TcpEndpoint, Error> {
    let exposure = Exposure { exposed: 1024..2048, ..Exposure::all(4096) };
    tcp::over(socket.into(), TcpSide::Listening, &SECRET, TcpSealing::Plain, &exposure, limit)
}

/// Makes a victim and a liar, which has greeted.
pub fn victim_and_liar() -> (TcpEndpoint, Liar) {
    let (mut socket, theirs) = sockets();
    let mut seal = Seal::new(&SECRET, &[b"caravan tcp 1 connecting"]).unwrap();
    socket.write_all(&record(Some(&mut seal), &greeting([4096, 0, 4096], 0))).unwrap();
    let victim = victim(theirs, LIMIT).unwrap();
    (victim, Liar { socket, _seal: seal })
}

/// Polls until the connection has ended.
pub fn end(endpoint: &mut TcpEndpoint) -> Error {
    let (begun, mut events) = (Instant::now(), Vec::new());
    loop {
        if let Err(error) = endpoint.poll(&mut events, 16) {
            return error;
        }
        assert!(begun.elapsed() < LIMIT, "it goes on after {events:?}");
    }
}

/// Sends frames that `input` consists of behind its first byte, which says into how many records they are divided, and
/// whether the records have right lengths. The victim must end with an error, and change nothing that is not exposed.
pub fn as_frames(input: &[u8]) {
    let Some((choice, frames)) = input.split_first() else { return };
    let (mut victim, mut liar) = victim_and_liar();
    victim.arena().copy_in(8, &[0x11; 4088]);
    // Two operations are under way, of which the liar may answer any.
    let here = Local { offset: 0, bytes: 8 };
    for operation in [
        Operation::Read { from: 0, into: here, context: 1 },
        Operation::Write { from: here, to: 0, immediate: Some(1), context: 2 },
    ] {
        victim.post(operation).unwrap();
    }
    victim.doorbell().unwrap();
    let pieces = usize::from(choice / 2 % 8) + 1;
    for piece in frames.chunks(frames.len().div_ceil(pieces).max(1)) {
        let bytes = if choice % 2 == 0 { record(None, piece) } else { piece.to_vec() };
        // The victim may have ended the connection.
        if liar.socket.write_all(&bytes).is_err() {
            break;
        }
    }
    let _ = liar.socket.shutdown(Shutdown::Write);
    let error = end(&mut victim);
    assert!(matches!(error, Error::Protocol(..) | Error::PeerGone(..) | Error::Revoked(..)), "{error:?}");
    let mut bytes = vec![0; 4096];
    victim.arena().copy_out(0, &mut bytes);
    let outside = bytes[8..1024].iter().chain(&bytes[2048..]);
    assert!(outside.copied().all(|byte| byte == 0x11), "memory outside has changed");
}

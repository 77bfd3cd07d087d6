//! A blocking client, for the commands of the shell and for tests.

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::limits;
use crate::resp::answer::{AnswerError, StoreAnswer, parse};

/// A connection to a server of a store.
#[derive(Debug)]
pub struct StoreClient {
    stream: ClientStream,
    input: Vec<u8>,
    /// How long the server may say nothing, if that is limited.
    silence: Option<Duration>,
}

#[derive(Debug)]
enum ClientStream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl ClientStream {
    fn limit(&self, most: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_read_timeout(most).and_then(|()| stream.set_write_timeout(most)),
            Self::Tcp(stream) => stream.set_read_timeout(most).and_then(|()| stream.set_write_timeout(most)),
        }
    }
}

impl Read for ClientStream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(to),
            Self::Tcp(stream) => stream.read(to),
        }
    }
}

impl Write for ClientStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(from),
            Self::Tcp(stream) => stream.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Why a client got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket failed.
    #[error("the connection to the store failed: {0}")]
    Io(#[from] io::Error),
    /// The server has said nothing, or taken nothing, for as long as it may.
    #[error(
        "it has said nothing for {0:?}: its server is stopped, hangs, is busy or still loads. A write may have been done, or may still be done: look before you repeat it"
    )]
    Silent(Duration),
    /// The server closed the connection.
    #[error("the store closed the connection before it answered")]
    Closed,
    /// The server does not speak the Redis protocol.
    #[error("{0}")]
    Answer(#[from] AnswerError),
}

impl StoreClient {
    /// Connects to the server at this socket.
    pub fn connect(socket: &Path) -> io::Result<Self> {
        let stream = ClientStream::Unix(UnixStream::connect(socket)?);
        Ok(Self { stream, input: Vec::new(), silence: None })
    }

    /// Connects to the server at `HOST:PORT`, for which each of its addresses may take as long as this.
    pub fn connect_tcp(address: &str, most: Duration) -> io::Result<Self> {
        let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
        for address in address.to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, most) {
                Ok(stream) => {
                    return Ok(Self { stream: ClientStream::Tcp(stream), input: Vec::new(), silence: None });
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Limits how long the server may say nothing during a call.
    pub fn limit_silence(&mut self, most: Duration) -> io::Result<()> {
        self.silence = Some(most);
        self.stream.limit(self.silence)
    }

    fn failed(&self, error: io::Error) -> ClientError {
        match self.silence.filter(|_| error.kind() == io::ErrorKind::WouldBlock) {
            Some(most) => ClientError::Silent(most),
            None => error.into(),
        }
    }

    /// Sends a command and waits for its answer, which may be an error of the server.
    pub fn call(&mut self, words: &[&[u8]]) -> Result<StoreAnswer, ClientError> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&request).map_err(|error| self.failed(error))?;
        loop {
            if let Some((answer, bytes)) = parse(&self.input)? {
                self.input.drain(..bytes);
                return Ok(answer);
            }
            let before = self.input.len();
            self.input.resize(before + limits::READ_BYTES, 0);
            let read = self.stream.read(&mut self.input[before..]);
            self.input.truncate(before + *read.as_ref().unwrap_or(&0));
            match read {
                Ok(0) => return Err(ClientError::Closed),
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(self.failed(error)),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_silent_server_is_not_waited_for_any_longer() {
        let path = std::env::temp_dir().join(format!("caravan-silent-{}", std::process::id()));
        // It lets clients connect, and neither reads nor writes.
        let _listener = UnixListener::bind(&path).unwrap();
        let most = Duration::from_millis(50);
        for value in [vec![b'x'; 1], vec![b'x'; 8 << 20]] {
            let mut client = StoreClient::connect(&path).unwrap();
            client.limit_silence(most).unwrap();
            let error = client.call(&[b"SET", b"a", &value]).unwrap_err();
            assert!(matches!(error, ClientError::Silent(wait) if wait == most), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
    }
}

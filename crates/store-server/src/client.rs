//! A blocking client, for the commands of the shell and for tests.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use crate::limits;
use crate::resp::answer::{AnswerError, StoreAnswer, parse};

/// A connection to a store's UNIX socket.
#[derive(Debug)]
pub struct StoreClient {
    stream: UnixStream,
    input: Vec<u8>,
}

/// Why a client got no answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The socket failed.
    #[error("the connection to the store failed: {0}")]
    Io(#[from] io::Error),
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
        Ok(Self { stream: UnixStream::connect(socket)?, input: Vec::new() })
    }

    /// Sends a command and waits for its answer, which may be an error of the server.
    pub fn call(&mut self, words: &[&[u8]]) -> Result<StoreAnswer, ClientError> {
        let mut request = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            request.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            request.extend_from_slice(word);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.write_all(&request)?;
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
                Err(error) if error.kind() != io::ErrorKind::Interrupted => return Err(error.into()),
                _ => {}
            }
        }
    }
}

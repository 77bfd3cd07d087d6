//! Errors of commands, in Redis's words.

use caravan_store::StoreError;

/// Why a command failed. [`words`](Self::words) is what the client gets.
#[derive(Debug)]
pub(crate) enum CommandError {
    /// A sentence that begins with a code, such as `ERR`.
    Said(&'static str),
    /// The same, put together.
    Told(String),
    /// The same with bytes of the client in it.
    Quoted(Vec<u8>),
    /// The reply is longer than a reply may be.
    LongReply,
    /// The store refused.
    Store(StoreError),
}

pub(crate) const SYNTAX: CommandError = CommandError::Said("ERR syntax error");
pub(crate) const NOT_AN_INTEGER: CommandError =
    CommandError::Said("ERR value is not an integer or out of range");
pub(crate) const TOO_LONG: CommandError =
    CommandError::Said("ERR string exceeds maximum allowed size (proto-max-bulk-len)");

impl From<StoreError> for CommandError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl CommandError {
    /// Returns the error as the client gets it.
    pub(crate) fn words(&self) -> Vec<u8> {
        match self {
            Self::Said(text) => text.as_bytes().to_vec(),
            Self::Told(text) => text.as_bytes().to_vec(),
            Self::Quoted(text) => text.clone(),
            Self::LongReply => {
                b"ERR the reply is longer than 256 MiB: ask for less, for example with SCAN".to_vec()
            }
            Self::Store(StoreError::Full { .. }) => {
                b"OOM command not allowed when used memory > 'maxmemory'.".to_vec()
            }
            Self::Store(error) => format!("ERR {error}").into_bytes(),
        }
    }
}

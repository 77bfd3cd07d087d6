#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod balance;
mod client;
mod command;
mod commands;
mod connection;
mod error;
mod glob;
pub mod keeper;
pub mod limits;
mod links;
mod listen;
mod metrics;
mod number;
mod published;
mod resp;
mod server;
mod session;
mod socket;
mod state;
mod tally;
mod tls;
mod worker;

pub use client::{ClientError, StoreClient};
pub use error::ServeError;
pub use listen::ListeningSockets;
pub use resp::answer::{AnswerError, StoreAnswer, parse as parse_answer};
pub use resp::reply::{ReplyWriter, RespVersion};
pub use resp::request::{ProtocolError, RequestParser};
pub use resp::words::CommandWords;
pub use server::{ServerOptions, StoreServer, local_address};
pub use session::Session;
pub use state::{ClientSettings, ServerFacts, ServerState};
pub use tally::percentile_ns;
pub use tls::{TlsIdentity, TlsOptions};

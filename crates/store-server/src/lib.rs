#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod balance;
mod client;
mod command;
mod commands;
mod connection;
mod dialogue;
mod errands;
mod error;
mod glob;
pub mod keeper;
mod key_transaction;
pub mod limits;
mod links;
mod listen;
mod member;
mod metrics;
mod number;
mod parts;
mod published;
mod resp;
mod seat;
mod server;
mod slots;
mod socket;
mod state;
mod tally;
mod tls;
mod undecided;
mod worker;

pub use client::{ClientError, StoreClient};
pub use dialogue::Dialogue;
pub use error::ServeError;
pub use listen::ListeningSockets;
pub use member::{
    FeedReport, GoneReason, HeldForServer, MemberOptions, MemberStatus, Membership, RunningMember, host_name,
};
pub use parts::ServedParts;
pub use resp::answer::{AnswerError, StoreAnswer, parse as parse_answer};
pub use resp::reply::{ReplyWriter, RespVersion};
pub use resp::request::{ProtocolError, RequestParser};
pub use resp::words::CommandWords;
pub use server::{ServerOptions, StoreServer, local_address};
pub use state::{ClientSettings, ServerFacts, ServerState};
pub use tally::percentile_ns;
pub use tls::{TlsIdentity, TlsOptions};

#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

mod command;
mod commands;
mod error;
mod glob;
pub mod limits;
mod number;
mod resp;
mod session;
mod state;

pub use resp::answer::{AnswerError, StoreAnswer, parse as parse_answer};
pub use resp::reply::{ReplyWriter, RespVersion};
pub use resp::request::{ProtocolError, RequestParser};
pub use resp::words::CommandWords;
pub use session::Session;
pub use state::{ServerFacts, ServerState};

//! The Redis protocol, versions 2 and 3: requests, replies, and replies as a client reads them.
//!
//! The parser is our own. The crates for it either build a tree of owned values for each request, which costs an allocation for each
//! word, or have no limits that can be set; here a word is a place in the connection's buffer.

pub(crate) mod answer;
pub(crate) mod inline;
pub(crate) mod reply;
pub(crate) mod request;
pub(crate) mod words;

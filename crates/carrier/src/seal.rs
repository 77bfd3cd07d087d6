//! Records sealed with AES-256-GCM, for a fabric on which others can read or write.
//!
//! | step | who | what |
//! |---|---|---|
//! | hello | both, over the control channel | [`KeyExchange::public`]: a new X25519 key and a nonce |
//! | keys | both | [`KeyExchange::agree`]: from the shared secret, the cookie and the names |
//! | records | both, over the link | below |
//!
//! A plain record is `<<Length:32/little, Bytes>>`. A sealed one is the same length in the clear, then
//! the bytes in parts, each encrypted and with [`TAG_BYTES`] of tag behind it:
//!
//! | length of the record | its parts |
//! |---|---|
//! | 0 (a sign of life) | one, of no bytes: the tag alone |
//! | up to [`WHOLE_BYTES`] | one |
//! | more | one of [`HEAD_BYTES`], then as many of [`PART_BYTES`] as are full, then the rest |
//!
//! The first part also authenticates the four bytes of the length; so all parts do, since the length
//! says where each begins. The nonce is the part's number under its key, counted from 0, as 96 bits
//! big-endian. It is not sent: a part that is not the next one does not open. Each direction has keys
//! of its own, so a record does not open when it is sent back to its sender.
//!
//! The head of a large record is separate because it says where the rest belongs: the rest can then be
//! opened there, and nothing is allocated for a forged length. Parts are short so that
//! a change is noticed, and a core's cache left, after [`PART_BYTES`].
//!
//! A key serves until it has encrypted [`KEY_BLOCKS_MAX`] blocks. Both sides count, go on with
//! the next key, which is derived from it, and number parts from 0 again.
//!
//! Sources: RFC 5116 and NIST SP 800-38D (AES-GCM), RFC 7748 (X25519), RFC 5869 (HKDF).

mod direction;
mod exchange;

pub(crate) use direction::Direction;
#[cfg(test)]
pub(crate) use exchange::tests::vector_sealings;
pub use exchange::{HELLO_BYTES, KeyExchange, KeyRole, NodeNames};

/// The number of bytes of a tag, which follows each part.
pub const TAG_BYTES: usize = 16;
/// The number of bytes of the longest record that is one part.
pub const WHOLE_BYTES: usize = 2 << 10;
/// The number of bytes of the first part of a longer record: enough to know a message's kind.
pub const HEAD_BYTES: usize = 18;
/// The number of bytes of each further part, except the last.
pub const PART_BYTES: usize = 32 << 10;
/// The number of blocks of 16 bytes that one key encrypts before the next takes its place (64 GiB); the
/// part that reaches it may exceed it. An attacker tells AES-GCM from random bytes with a probability of at most the
/// square of the blocks over 2^129, which leaves 2^-65 here. Every part counts two blocks more than
/// its bytes fill, so a key's nonces end long before they could repeat.
pub const KEY_BLOCKS_MAX: u64 = 1 << 32;

/// Why a link cannot be sealed, or why a record cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The peer's half of the key exchange has the wrong size.
    #[error("the peer's half of the key exchange has {bytes} bytes, where {HELLO_BYTES} were due")]
    Hello {
        /// The number of its bytes.
        bytes: usize,
    },
    /// With the peer's public key, anybody would know the shared secret.
    #[error("the peer's public key is one that nobody may use (RFC 7748, section 6.1)")]
    WeakKey,
    /// Without a cookie the key exchange proves nothing.
    #[error("there is no cookie to prove the peer by; give the nodes one with -setcookie")]
    NoCookie,
    /// The first part did not open: the two sides have different keys.
    #[error(
        "what the peer sealed first does not open: it has another cookie, or knows the nodes by other \
         names, or something on the way answered in its place or changed what it sent"
    )]
    Stranger,
    /// A later part did not open.
    #[error(
        "part {part} of what the peer sealed does not open: on the way something was changed, left out, \
         repeated or reordered"
    )]
    Altered {
        /// The number of the part on this link.
        part: u64,
    },
    /// The cryptographic library failed.
    #[error("the cryptographic library could not {what}; please report it with the node's log")]
    Library {
        /// What the library was asked to do.
        what: &'static str,
    },
}

/// The keys of one link, one for each direction. Made by [`KeyExchange::agree`], once for each link: a second
/// link with the same keys would reveal them.
#[derive(Debug)]
pub struct Sealing {
    pub(crate) outbound: Direction,
    pub(crate) inbound: Direction,
}

/// Returns the number of bytes of the first part of a record of `length` bytes.
#[inline]
pub(crate) fn first_part(length: usize) -> usize {
    if length <= WHOLE_BYTES { length } else { HEAD_BYTES }
}

/// Returns the number of bytes of the next part of a record of which `left` bytes are left.
#[inline]
pub(crate) fn next_part(left: usize) -> usize {
    left.min(PART_BYTES)
}

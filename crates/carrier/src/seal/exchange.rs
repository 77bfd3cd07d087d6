//! How two nodes that share a cookie agree on keys that nobody else has.
//!
//! ```text
//! hello    = X25519 public key (32 bytes), nonce (32 bytes)
//! salt     = initiator's nonce, acceptor's nonce
//! prk      = HKDF-Extract(salt, X25519 shared secret, cookie)
//! names    = initiator's name, acceptor's name, each with its length in front (64 bits, big-endian)
//! secret_I = HKDF-Expand(prk, "caravan seal 1 initiator", both public keys, names; 32)
//! secret_A = HKDF-Expand(prk, "caravan seal 1 acceptor",  both public keys, names; 32)
//! key_n    = HKDF-Expand(secret_n, "caravan seal 1 key"; 32)
//! secret_n+1 = HKDF-Expand(secret_n, "caravan seal 1 next"; 32)
//! ```
//!
//! A comma is plain concatenation, the initiator's first; HKDF is over SHA-256. `secret_I` is for what
//! the initiator sends. A process that does not know the cookie, or stands between two nodes that do, gets
//! other keys, which nobody notices before the first part does not open.

use aead::agreement::{EphemeralPrivateKey, UnparsedPublicKey, X25519, agree_ephemeral};
use aead::hkdf::{HKDF_SHA256, Salt};
use aead::rand::{SecureRandom, SystemRandom};

use super::direction::{Direction, secret_of};
use super::{Error, Sealing};

const PUBLIC_BYTES: usize = 32;
const NONCE_BYTES: usize = 32;
/// The number of bytes of one side's half of the key exchange.
pub const HELLO_BYTES: usize = PUBLIC_BYTES + NONCE_BYTES;

const INITIATOR_INFO: &[u8] = b"caravan seal 1 initiator";
const ACCEPTOR_INFO: &[u8] = b"caravan seal 1 acceptor";

/// A side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyRole {
    /// The node that connected.
    Initiator,
    /// The node that was connected to.
    Acceptor,
}

/// The names of both nodes of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeNames<'a> {
    /// The node that connected.
    pub initiator: &'a str,
    /// The node that was connected to.
    pub acceptor: &'a str,
}

/// One side's half of a key exchange, for one link.
#[derive(Debug)]
pub struct KeyExchange {
    role: KeyRole,
    private: EphemeralPrivateKey,
    hello: [u8; HELLO_BYTES],
}

impl KeyExchange {
    /// Makes a new key and nonce.
    pub fn new(role: KeyRole) -> Result<Self, Error> {
        let random = SystemRandom::new();
        let private = EphemeralPrivateKey::generate(&X25519, &random)
            .map_err(|_| Error::Library { what: "make a private key" })?;
        let public =
            private.compute_public_key().map_err(|_| Error::Library { what: "make a public key" })?;
        let mut hello = [0; HELLO_BYTES];
        hello[..PUBLIC_BYTES].copy_from_slice(public.as_ref());
        random
            .fill(&mut hello[PUBLIC_BYTES..])
            .map_err(|_| Error::Library { what: "give random numbers" })?;
        Ok(Self { role, private, hello })
    }

    /// Returns the half that the peer needs. Not a secret: it goes over the control channel.
    pub fn public(&self) -> [u8; HELLO_BYTES] {
        self.hello
    }

    /// Derives the keys from the peer's [`public`](Self::public) and what both sides know: the cookie, and
    /// the names of the initiating and of the accepting node.
    pub fn agree(self, peer_public: &[u8], cookie: &[u8], names: NodeNames<'_>) -> Result<Sealing, Error> {
        let theirs: &[u8; HELLO_BYTES] =
            peer_public.try_into().map_err(|_| Error::Hello { bytes: peer_public.len() })?;
        if cookie.is_empty() {
            return Err(Error::NoCookie);
        }
        let hellos = match self.role {
            KeyRole::Initiator => [&self.hello, theirs],
            KeyRole::Acceptor => [theirs, &self.hello],
        };
        let peer = UnparsedPublicKey::new(&X25519, &theirs[..PUBLIC_BYTES]);
        // The call fails if the result is all zero, and so for every public key of low order.
        agree_ephemeral(self.private, &peer, |shared| sealing(self.role, shared, cookie, hellos, names))
            .map_err(|_| Error::WeakKey)?
    }
}

/// Derives the keys from X25519's shared secret; of each pair the initiator's comes first.
fn sealing(
    role: KeyRole,
    shared: &[u8],
    cookie: &[u8],
    hellos: [&[u8; HELLO_BYTES]; 2],
    names: NodeNames<'_>,
) -> Result<Sealing, Error> {
    let [(key_i, nonce_i), (key_a, nonce_a)] = hellos.map(|hello| hello.split_at(PUBLIC_BYTES));
    let prk = Salt::new(HKDF_SHA256, &[nonce_i, nonce_a].concat()).extract(&[shared, cookie].concat());
    let [name_i, name_a] = [names.initiator, names.acceptor].map(str::as_bytes);
    let [length_i, length_a] = [name_i, name_a].map(|name| (name.len() as u64).to_be_bytes());
    let direction = |info: &[u8]| {
        let info = [info, key_i, key_a, &length_i, name_i, &length_a, name_a];
        secret_of(&prk, &info).and_then(Direction::new)
    };
    let (initiators, acceptors) = (direction(INITIATOR_INFO)?, direction(ACCEPTOR_INFO)?);
    Ok(match role {
        KeyRole::Initiator => Sealing { outbound: initiators, inbound: acceptors },
        KeyRole::Acceptor => Sealing { outbound: acceptors, inbound: initiators },
    })
}

#[cfg(test)]
pub(crate) mod tests;

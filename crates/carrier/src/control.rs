//! The operations that `caravan_dist` asks of a port, by `erlang:port_control/3`. Integers are big-endian.
//!
//! The reply begins with 0 and the result, or with 1 and a sentence; POLL's is empty (armed) or
//! has one byte (poll again). OFFER and the operations called RDMA only begin a job; its
//! result comes in the same form, as the message `{Port, done, Reply}`.

use std::time::Duration;

use caravan_fabric::SpinMode;
use caravan_fabric::byte_reader::ByteReader;

use crate::error::Error;
use crate::limits::LABEL_BYTES_MAX;

/// An operation with its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PortControl {
    /// 1: `<<RingBytes:64, BusyBytes:64, Spin:8, Fragments:8, MeLen:16, Me, PeerLen:16, Peer,
    /// Seal:8, CookieLen:16, Cookie>>`.
    Configure(Configuration),
    /// 2: opens the doorway; the result is the descriptor for the peer.
    Listen,
    /// 3: makes the memory and hands it over; the argument is the peer's descriptor.
    Connect(Vec<u8>),
    /// 4: takes the memory that the peer has handed over.
    Accept,
    /// 5: `<<Fd:32>>`: the connection whose end is the end of the link.
    Lifeline(i32),
    /// 6: starts the connection, because the node is up; the caller becomes the poller.
    Start,
    /// 7: does the poller's turn.
    Poll,
    /// 8: sends a sign of life.
    Tick,
    /// 9: returns `<<Received:64, Sent:64, PendingBytes:64>>`.
    Stat,
    /// 10: returns `<<NameLen:8, Name, Value:64>>` for each counter.
    Info,
    /// 11: `<<ReasonLen:16, Reason>>`: makes a port that only has the counters of a TCP connection.
    TcpRow(String),
    /// 12: four counts of a TCP connection.
    TcpCounts([u64; 4]),
    /// 13: gives up a half-made link.
    Cancel,
    /// 14: sets the reason for this transport.
    Reason(String),
    /// 15: returns what the peer must know to make its half of an RDMA link.
    Offer,
    /// 16: makes this half, from the peer's offer; the result is for the peer.
    RdmaConnect(Vec<u8>),
    /// 17: makes the half of the side that has offered, from the result of the peer's RDMA_CONNECT; the result is for
    /// the peer.
    RdmaAccept(Vec<u8>),
    /// 18: `<<LimitMs:32, Answer>>`: connects the halves; the initiating side has the answer of the
    /// peer's RDMA_ACCEPT.
    RdmaFinish {
        /// The time limit.
        limit: Duration,
        /// The last message of the peer.
        answer: Vec<u8>,
    },
    /// 19: returns what carries the link, as users see it.
    Device,
}

/// A secret, which no log shows.
#[derive(Clone, PartialEq, Eq)]
pub struct Cookie(Vec<u8>);

impl Cookie {
    /// Returns the bytes of the secret.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for Cookie {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Cookie(..)")
    }
}

/// The properties of one connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Configuration {
    /// The number of bytes of each ring.
    pub ring_bytes: u64,
    /// The number of bytes queued at which the port is busy.
    pub busy_bytes: u64,
    /// When the connection spins.
    pub spin: SpinMode,
    /// The name of this node.
    pub me: String,
    /// The name of the peer's node.
    pub peer: String,
    /// The cookie that seals an RDMA link, if it is to be sealed.
    pub seal: Option<Cookie>,
}

impl PortControl {
    /// Parses an operation.
    pub fn parse(operation: u32, data: &[u8]) -> Result<Self, Error> {
        let mut reader = ArgumentReader { operation, bytes: ByteReader::new(data) };
        let parsed = match operation {
            1 => Self::Configure(Configuration {
                ring_bytes: reader.u64()?,
                busy_bytes: reader.u64()?,
                spin: match reader.u8()? {
                    0 => SpinMode::Off,
                    1 => SpinMode::Auto,
                    2 => SpinMode::On,
                    _ => return Err(reader.error("spin is 0, 1 or 2")),
                },
                // The nodes agree on fragments in the handshake; the driver only sees the messages.
                me: reader.u8().and_then(|_| reader.text())?,
                peer: reader.text()?,
                seal: match (reader.u8()?, reader.bytes()?) {
                    (0, _) => None,
                    (1, cookie) => Some(Cookie(cookie.to_vec())),
                    _ => return Err(reader.error("seal is 0 or 1")),
                },
            }),
            2 => Self::Listen,
            3 => Self::Connect(reader.rest()),
            4 => Self::Accept,
            5 => Self::Lifeline(reader.u32()? as i32),
            6 => Self::Start,
            7 => return Ok(Self::Poll),
            8 => Self::Tick,
            9 => Self::Stat,
            10 => Self::Info,
            11 => Self::TcpRow(reader.text()?),
            12 => Self::TcpCounts([reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?]),
            13 => Self::Cancel,
            14 => Self::Reason(String::from_utf8_lossy(&reader.rest()).into_owned()),
            15 => Self::Offer,
            16 => Self::RdmaConnect(reader.rest()),
            17 => Self::RdmaAccept(reader.rest()),
            18 => {
                Self::RdmaFinish { limit: Duration::from_millis(reader.u32()?.into()), answer: reader.rest() }
            }
            19 => Self::Device,
            _ => return Err(reader.error("there is no such operation")),
        };
        if reader.bytes.is_empty() { Ok(parsed) } else { Err(reader.error("there are bytes left over")) }
    }
}

/// Reads the arguments of one operation.
struct ArgumentReader<'a> {
    operation: u32,
    bytes: ByteReader<'a>,
}

impl<'a> ArgumentReader<'a> {
    fn error(&self, what: &'static str) -> Error {
        Error::Control { operation: self.operation, what }
    }

    fn missing(&self) -> Error {
        self.error("there are bytes missing")
    }

    fn u8(&mut self) -> Result<u8, Error> {
        self.bytes.u8().ok_or_else(|| self.missing())
    }

    fn u32(&mut self) -> Result<u32, Error> {
        self.bytes.u32().ok_or_else(|| self.missing())
    }

    fn u64(&mut self) -> Result<u64, Error> {
        self.bytes.u64().ok_or_else(|| self.missing())
    }

    fn rest(&mut self) -> Vec<u8> {
        self.bytes.rest().to_vec()
    }

    fn bytes(&mut self) -> Result<&'a [u8], Error> {
        let length = usize::from(self.bytes.u16().ok_or_else(|| self.missing())?);
        if length > LABEL_BYTES_MAX {
            return Err(self.error("a text is too long"));
        }
        self.bytes.bytes(length).ok_or_else(|| self.error("a text is cut off"))
    }

    fn text(&mut self) -> Result<String, Error> {
        Ok(String::from_utf8_lossy(self.bytes()?).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_configuration_is_read() {
        let mut data = [&[0; 6][..], &[1, 0], &[0; 7], &[9, 1, 1]].concat();
        data.extend_from_slice(b"\0\x03a@h\0\x03b@h\x01\0\x04mint");
        let read = match PortControl::parse(1, &data).unwrap() {
            PortControl::Configure(read) => read,
            other => panic!("{other:?} is not a configuration"),
        };
        assert_eq!((read.ring_bytes, read.busy_bytes, read.spin), (256, 9, SpinMode::Auto));
        assert_eq!((read.me.as_str(), read.peer.as_str()), ("a@h", "b@h"));
        assert_eq!(read.seal.as_ref().map(Cookie::bytes), Some(&b"mint"[..]));
        assert!(!format!("{read:?}").contains("mint") && !format!("{read:?}").contains("109"), "{read:?}");
        data.push(0);
        assert!(PortControl::parse(1, &data).unwrap_err().to_string().contains("left over"));
        assert!(PortControl::parse(1, &data[..10]).unwrap_err().to_string().contains("missing"));
        assert!(PortControl::parse(99, &[]).unwrap_err().to_string().contains("no such operation"));
    }

    #[test]
    fn a_finish_has_a_limit_and_an_answer() {
        let limit = Duration::from_millis(258);
        let read = PortControl::parse(18, b"\0\0\x01\x02rest").unwrap();
        assert_eq!(read, PortControl::RdmaFinish { limit, answer: b"rest".to_vec() });
        assert!(PortControl::parse(18, b"\0\0\x01").unwrap_err().to_string().contains("missing"));
    }

    proptest! {
        #[test]
        fn nothing_panics(operation in 0u32..24, data in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = PortControl::parse(operation, &data);
        }
    }
}

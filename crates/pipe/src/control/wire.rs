//! Messages as bytes.

use std::io::{self, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::limits::{MESSAGE_BYTES_MAX, RELAY_BYTES_MAX};

const JSON: u8 = 0;
const DATA: u8 = 1;

/// What comes out of a control channel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ControlMessage<T> {
    /// An order or a report.
    Word(T),
    /// Data of a relayed hop.
    Data {
        /// Which hop's.
        hop: u32,
        /// At most [`RELAY_BYTES_MAX`](crate::limits::RELAY_BYTES_MAX) of them.
        bytes: Vec<u8>,
    },
}

/// Writes a message, in one call where `to` takes it whole.
pub fn write<T: Serialize>(to: &mut (impl Write + ?Sized), message: &ControlMessage<T>) -> io::Result<()> {
    let mut bytes = vec![0; 4];
    match message {
        ControlMessage::Word(word) => {
            bytes.push(JSON);
            serde_json::to_writer(&mut bytes, word)?;
        }
        ControlMessage::Data { hop, bytes: data } => {
            bytes.push(DATA);
            bytes.extend_from_slice(&hop.to_be_bytes());
            bytes.extend_from_slice(data);
        }
    }
    let length = u32::try_from(bytes.len() - 5).ok().filter(|length| *length <= MESSAGE_BYTES_MAX);
    let length = length.ok_or_else(|| io::Error::other("a message is too long"))?;
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    to.write_all(&bytes)?;
    to.flush()
}

/// Reads a message; `UnexpectedEof` where there are no more.
pub fn read<T: DeserializeOwned>(from: &mut (impl Read + ?Sized)) -> io::Result<ControlMessage<T>> {
    let mut head = [0; 5];
    from.read_exact(&mut head)?;
    let [a, b, c, d, sort] = head;
    let length = u32::from_be_bytes([a, b, c, d]);
    if length > MESSAGE_BYTES_MAX {
        return Err(malformed("a message is too long"));
    }
    let mut body = Vec::new();
    from.take(length.into()).read_to_end(&mut body)?;
    if body.len() < length as usize {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    match sort {
        JSON => Ok(ControlMessage::Word(serde_json::from_slice(&body)?)),
        DATA => {
            let (hop, bytes) = body.split_first_chunk().ok_or_else(|| malformed("data of no hop"))?;
            if bytes.is_empty() || bytes.len() > RELAY_BYTES_MAX {
                return Err(malformed("data of a length that is none"));
            }
            Ok(ControlMessage::Data { hop: u32::from_be_bytes(*hop), bytes: bytes.to_vec() })
        }
        _ => Err(malformed("a message of no known sort")),
    }
}

fn malformed(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

#[cfg(test)]
mod tests {
    use super::super::{AgentOrder, AgentReport};
    use super::*;

    #[test]
    fn messages_come_as_they_were_written() {
        let mut bytes = Vec::new();
        write(&mut bytes, &ControlMessage::Word(AgentOrder::Relay { hop: 7, attempt: 1 })).expect("written");
        write(&mut bytes, &ControlMessage::<AgentOrder>::Data { hop: 9, bytes: vec![0, 1, 255] })
            .expect("written");
        let mut rest = &bytes[..];
        assert!(matches!(
            read::<AgentOrder>(&mut rest),
            Ok(ControlMessage::Word(AgentOrder::Relay { hop: 7, attempt: 1 }))
        ));
        assert!(
            matches!(read::<AgentOrder>(&mut rest), Ok(ControlMessage::Data { hop: 9, bytes }) if bytes == [0, 1, 255])
        );
        assert_eq!(read::<AgentOrder>(&mut rest).expect_err("the end").kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn what_is_none_is_an_error() {
        let mut bytes = Vec::new();
        write(&mut bytes, &ControlMessage::Word(AgentReport::Gone)).expect("written");
        for cut in 0..bytes.len() {
            assert!(read::<AgentReport>(&mut &bytes[..cut]).is_err(), "{cut}");
        }
        let long = [&0x0002_0000_u32.to_be_bytes()[..], &[1], &[0; 0x2_0000]].concat();
        let empty = [0, 0, 0, 4, 1, 0, 0, 0, 7];
        for bad in [
            &long[..],
            &empty,
            &[0xff; 8],
            &[0, 0, 0, 2, 0, b'{', b'}'],
            &[0, 0, 0, 0, 2],
            &[0, 0, 0, 3, 1, 0, 0, 0],
        ] {
            assert!(read::<AgentReport>(&mut &bad[..]).is_err(), "{bad:?}");
        }
    }
}

//! Bytes that a client, a server or a keeper makes up. The tests call this with random bytes, and the fuzzer with its
//! own (`fuzz/`).

use std::os::unix::net::UnixDatagram;
use std::sync::Arc;

use caravan_store::{Store, StoreOptions};
use caravan_store_server::keeper::channel::{
    ChannelEnd, KeeperAnswer, KeeperChannel, KeeperOrder, ServerAnswer, ServerOrder,
};
use caravan_store_server::{
    Dialogue, ProtocolError, RequestParser, ServedParts, ServerFacts, ServerState, limits, parse_answer,
};

type ParsedRequests = (Vec<Vec<Vec<u8>>>, Option<ProtocolError>);

/// Parses the bytes, which arrive in parts of this size.
fn requests(input: &[u8], part_bytes: usize) -> ParsedRequests {
    let (mut parser, mut buffer, mut found) = (RequestParser::default(), Vec::new(), Vec::new());
    for part in input.chunks(part_bytes) {
        buffer.extend_from_slice(part);
        loop {
            match parser.parse(&buffer, true) {
                Ok(Some(bytes)) => {
                    found.push(parser.words(&buffer).from(0).map(<[u8]>::to_vec).collect());
                    buffer.drain(..bytes);
                }
                Ok(None) => break,
                Err(error) => return (found, Some(error)),
            }
        }
    }
    (found, None)
}

/// A stream of requests: how it is divided into parts makes no difference.
pub fn as_requests(input: &[u8]) {
    let whole = requests(input, input.len().max(1));
    for part_bytes in [1, 7] {
        assert_eq!(requests(input, part_bytes), whole, "in parts of {part_bytes} bytes");
    }
}

/// A client of a server with a small store: it gets whole replies of a bounded length, and the store stays sound.
pub fn as_dialogue(input: &[u8]) {
    let store = Arc::new(Store::embedded(StoreOptions::new(8 << 20)).expect("a store"));
    let state = Arc::new(ServerState::new(
        ServedParts::whole(Arc::clone(&store)).expect("parts"),
        ServerFacts::new("test"),
        None,
    ));
    let mut dialogue = Dialogue::new(state, "test".to_owned(), 1000);
    store.publish_now(1000);
    let mut left = input;
    while !dialogue.is_closing() {
        let taken = dialogue.serve(left, 1000);
        left = &left[taken..];
        dialogue.take_pause();
        let output = std::mem::take(dialogue.output());
        assert!(output.len() <= limits::OUTPUT_PAUSE_BYTES + limits::REPLY_BYTES_MAX);
        let mut rest = &output[..];
        while !rest.is_empty() {
            let (_, bytes) = parse_answer(rest).expect("a reply").expect("a whole reply");
            rest = &rest[bytes..];
        }
        if taken == 0 {
            break;
        }
    }
    drop(dialogue);
    store.audit().expect("sound");
}

/// The replies of a server: one is whole with its last byte and not before.
pub fn as_answers(input: &[u8]) {
    let mut rest = input;
    while let Ok(Some((answer, bytes))) = parse_answer(rest) {
        assert!(bytes <= rest.len());
        assert_eq!(parse_answer(&rest[..bytes]), Ok(Some((answer, bytes))));
        assert_eq!(parse_answer(&rest[..bytes - 1]), Ok(None));
        rest = &rest[bytes..];
    }
}

/// A message of a keeper, a server or a command, of which the receiver may be of another version: it is one that can be
/// sent on, or refused.
pub fn as_keeper_message(input: &[u8]) {
    fn receive<M: serde::Serialize + serde::de::DeserializeOwned>(input: &[u8]) {
        let (sender, receiver) = UnixDatagram::pair().expect("a pair");
        let receiver = KeeperChannel::of(receiver.into());
        if sender.send(input).is_err() {
            // It is longer than a message can be.
            return;
        }
        match receiver.try_receive::<M>() {
            Ok((message, descriptors)) => {
                assert_eq!(descriptors.len(), 0);
                let text = serde_json::to_vec(&message).expect("JSON");
                let again: M = serde_json::from_slice(&text).expect("what was sent");
                assert_eq!(serde_json::to_vec(&again).expect("JSON"), text);
            }
            Err(ChannelEnd::Unknown(why)) => assert!(!why.is_empty()),
            Err(end) => assert!(input.is_empty(), "{end:?}"),
        }
    }
    receive::<ServerOrder>(input);
    receive::<ServerAnswer>(input);
    receive::<KeeperOrder>(input);
    receive::<KeeperAnswer>(input);
}

/// The words of commands that read numbers and patterns: three words, divided by zero bytes.
pub fn as_numbers_and_patterns(input: &[u8]) {
    let mut words = input.splitn(3, |byte| *byte == 0);
    let (a, b, c) = (words.next(), words.next(), words.next());
    let (a, b, c) = (a.unwrap_or_default(), b.unwrap_or_default(), c.unwrap_or_default());
    let commands: [&[&[u8]]; 15] = [
        &[b"SET", b"n", a],
        &[b"INCRBYFLOAT", b"n", b],
        &[b"INCRBY", b"n", c],
        &[b"DECRBY", b"n", b],
        &[b"SETRANGE", b"n", a, c],
        &[b"GETRANGE", b"n", b, c],
        &[b"SET", b"t", a, b"PX", b],
        &[b"SET", b"t", a, b"EXAT", c],
        &[b"EXPIRE", b"n", b],
        &[b"PEXPIREAT", b"n", c],
        &[b"SET", a, b],
        &[b"KEYS", c],
        &[b"SCAN", b, b"MATCH", a, b"COUNT", c],
        &[b"CONFIG", b"GET", a],
        &[b"CONFIG", b"SET", b"latency-tracking-info-percentiles", b],
    ];
    let mut bytes = Vec::new();
    for words in commands {
        bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
        for word in words {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
    }
    as_dialogue(&bytes);
}

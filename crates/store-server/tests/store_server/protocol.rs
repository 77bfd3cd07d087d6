//! The protocol: requests against an encoder of the tests' own, malformed ones, and random bytes.

use std::sync::Arc;

use caravan_store::{Store, StoreOptions};
use caravan_store_server::{
    Dialogue, ProtocolError, RequestParser, ServedParts, ServerFacts, ServerState, StoreAnswer, limits,
    parse_answer,
};
use proptest::prelude::*;

use crate::hostile;

fn encoded(words: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
        bytes.extend_from_slice(word);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// Feeds the bytes in parts, as a connection does, and returns the requests.
fn parsed(bytes: &[u8], part_bytes: usize) -> Result<Vec<Vec<Vec<u8>>>, ProtocolError> {
    let (mut parser, mut buffer, mut found) = (RequestParser::default(), Vec::new(), Vec::new());
    for part in bytes.chunks(part_bytes) {
        buffer.extend_from_slice(part);
        while let Some(taken) = parser.parse(&buffer, true)? {
            found.push(parser.words(&buffer).from(0).map(<[u8]>::to_vec).collect());
            buffer.drain(..taken);
        }
    }
    Ok(found)
}

fn dialogue() -> Dialogue {
    let store = Arc::new(Store::embedded(StoreOptions::new(64 << 20)).expect("a store"));
    let state =
        Arc::new(ServerState::new(ServedParts::whole(store).expect("parts"), ServerFacts::new("test"), None));
    Dialogue::new(state, "test".to_owned(), 1000)
}

/// Returns the replies to these bytes.
fn replies(dialogue: &mut Dialogue, bytes: &[u8]) -> String {
    dialogue.serve(bytes, 1000);
    String::from_utf8_lossy(&std::mem::take(dialogue.output())).into_owned()
}

proptest! {
    #[test]
    fn requests_arrive_as_they_were_sent(
        requests in prop::collection::vec(
            prop::collection::vec(prop::collection::vec(any::<u8>(), 0..40), 1..6), 0..8),
        part_bytes in 1_usize..100,
    ) {
        let bytes: Vec<u8> = requests.iter().flat_map(|words| encoded(words)).collect();
        prop_assert_eq!(parsed(&bytes, part_bytes), Ok(requests));
    }

    #[test]
    fn no_bytes_make_the_dialogue_panic(
        parts in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..60),
            "[*$0-9a-zA-Z\r\n\"' -]{0,40}".prop_map(String::into_bytes),
            prop::sample::select(vec!["*2\r\n$3\r\nGET\r\n$1\r\na\r\n", "MULTI\r\n", "EXEC\r\n", "INFO\n", "COMMAND\n"])
                .prop_map(|text| text.as_bytes().to_vec()),
        ], 0..12),
    ) {
        hostile::as_dialogue(&parts.concat());
        hostile::as_requests(&parts.concat());
    }

    #[test]
    fn no_numbers_and_patterns_make_the_dialogue_panic(
        words in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..20),
            "[-+.0-9eE]{0,45}".prop_map(String::into_bytes),
            r"[\[\]\\*?^a-c-]{0,12}".prop_map(String::into_bytes),
            any::<i64>().prop_map(|number| number.to_string().into_bytes()),
            any::<f64>().prop_map(|number| number.to_string().into_bytes()),
        ], 3),
    ) {
        hostile::as_numbers_and_patterns(&words.join(&0));
    }

    #[test]
    fn no_bytes_make_the_client_panic(
        parts in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..40),
            "[-*$:+%~_]{1}[0-9]{0,3}\r\n".prop_map(String::into_bytes),
        ], 0..12),
    ) {
        hostile::as_answers(&parts.concat());
    }

    #[test]
    fn no_message_makes_a_keeper_panic(
        parts in prop::collection::vec(prop_oneof![
            prop::collection::vec(any::<u8>(), 0..4),
            "[{}\\[\\]:,\"a-z0-9]{0,20}".prop_map(String::into_bytes),
            prop::sample::select(vec!["\"Running\"", "{\"End\":{\"saves\":", "true}}", "{\"Failed\":", "\"Upgrade\""])
                .prop_map(|text| text.as_bytes().to_vec()),
        ], 0..6),
    ) {
        hostile::as_keeper_message(&parts.concat());
    }
}

#[test]
fn malformed_requests_get_the_words_of_redis() {
    let long = "x".repeat(limits::LINE_BYTES_MAX + 1);
    for (bytes, expected) in [
        ("*x\r\n".to_owned(), "invalid multibulk length"),
        ("*1048577\r\n".to_owned(), "invalid multibulk length"),
        ("*1\r\n+OK\r\n".to_owned(), "expected '$', got '+'"),
        ("*1\r\n$-1\r\n".to_owned(), "invalid bulk length"),
        ("*1\r\n$536870913\r\n".to_owned(), "invalid bulk length"),
        ("*1\r\n$x\r\n".to_owned(), "invalid bulk length"),
        ("set \"a\r\n".to_owned(), "unbalanced quotes in request"),
        (long.clone(), "too big inline request"),
        (format!("*{long}"), "too big mbulk count string"),
        (format!("*1\r\n${long}"), "too big bulk count string"),
    ] {
        let mut dialogue = dialogue();
        assert_eq!(replies(&mut dialogue, bytes.as_bytes()), format!("-ERR Protocol error: {expected}\r\n"));
        assert!(dialogue.is_closing(), "{expected}");
    }
}

#[test]
fn a_request_of_a_browser_ends_the_dialogue() {
    for (bytes, before) in [
        ("POST / HTTP/1.1\r\nHost: a\r\n\r\nFLUSHALL\r\n", ""),
        ("PING\r\nhost: a\r\nFLUSHALL\r\n", "+PONG\r\n"),
        ("MULTI\r\npost a\r\nFLUSHALL\r\nEXEC\r\n", "+OK\r\n"),
    ] {
        let mut dialogue = dialogue();
        assert_eq!(replies(&mut dialogue, b"SET k 1\r\n"), "+OK\r\n");
        assert_eq!(replies(&mut dialogue, bytes.as_bytes()), before);
        assert!(dialogue.is_closing(), "{bytes}");
    }
}

#[test]
fn a_request_has_a_largest_size() {
    // The second word need not arrive: its length is enough.
    let first = 2 << 20;
    let mut bytes = format!("*2\r\n${first}\r\n").into_bytes();
    bytes.resize(bytes.len() + first, b'x');
    bytes.extend_from_slice(format!("\r\n${}\r\n", limits::BULK_BYTES_MAX).as_bytes());
    assert_eq!(RequestParser::default().parse(&bytes, true), Err(ProtocolError::LongRequest));
}

#[test]
fn a_client_without_the_password_sends_short_requests_only() {
    let mut parser = RequestParser::default();
    assert_eq!(parser.parse(b"*11\r\n", false), Err(ProtocolError::CountUnauthenticated));
    for request in [&b"*1\r\n$16385\r\n"[..], b"*1\r\n$1000000000\r\n"] {
        let mut parser = RequestParser::default();
        assert_eq!(parser.parse(request, false), Err(ProtocolError::LengthUnauthenticated));
    }
}

#[test]
fn empty_requests_are_ignored_and_all_of_a_batch_is_answered() {
    let mut dialogue = dialogue();
    assert_eq!(
        replies(&mut dialogue, b"\r\n*0\r\n*-1\r\nPING\r\n*1\r\n$4\r\nping\r\n"),
        "+PONG\r\n+PONG\r\n"
    );
}

#[test]
fn long_output_pauses_the_dialogue() {
    let mut dialogue = dialogue();
    let value = "x".repeat(limits::OUTPUT_PAUSE_BYTES / 2);
    dialogue.serve(&encoded(&[b"SET".to_vec(), b"k".to_vec(), value.into_bytes()]), 1000);
    let requests = b"GET k\r\n".repeat(10);
    let mut left = &requests[..];
    let (mut turns, mut bytes) = (0, 0);
    while !left.is_empty() {
        left = &left[dialogue.serve(left, 1000)..];
        let output = std::mem::take(dialogue.output());
        assert!(output.len() < 2 * limits::OUTPUT_PAUSE_BYTES);
        bytes += output.len();
        turns += 1;
    }
    assert!(turns > 2 && bytes > 5 * limits::OUTPUT_PAUSE_BYTES - 100, "{turns} {bytes}");
}

#[test]
fn a_client_refuses_deep_nesting() {
    let deep = b"*1\r\n".repeat(limits::NESTING_MAX + 1);
    assert!(parse_answer(&deep).is_err());
    assert_eq!(
        parse_answer(b"*2\r\n:1\r\n$-1\r\n"),
        Ok(Some((StoreAnswer::Array(vec![StoreAnswer::Integer(1), StoreAnswer::Null]), 13)))
    );
}

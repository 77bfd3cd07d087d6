//! Inline commands: words in a line, as a person types them with telnet.

use crate::resp::request::ProtocolError;
use crate::resp::words::WordPlace;

/// Splits a line into words with the quotes and escapes of redis-cli: `"a\n\x00"`, `'it\'s'`. The words are appended to `bytes`.
pub(crate) fn split(
    line: &[u8],
    bytes: &mut Vec<u8>,
    places: &mut Vec<WordPlace>,
) -> Result<(), ProtocolError> {
    // As in Redis, a zero byte ends the line.
    let mut rest = line.split(|byte| *byte == 0).next().unwrap_or_default();
    loop {
        let Some(begin) = rest.iter().position(|byte| !is_space(*byte)) else { return Ok(()) };
        rest = &rest[begin..];
        let from = bytes.len() as u32;
        while let Some((first, after)) = rest.split_first() {
            match first {
                b'"' => rest = double_quoted(after, bytes)?,
                b'\'' => rest = single_quoted(after, bytes)?,
                first if is_space(*first) => break,
                first => {
                    bytes.push(*first);
                    rest = after;
                }
            }
            // A quote ends its word.
            if matches!(first, b'"' | b'\'') {
                break;
            }
        }
        places.push((from, bytes.len() as u32));
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\r' | b'\n' | 0x0b | 0x0c)
}

/// Only a space may follow the closing quote.
fn closed(rest: &[u8]) -> Result<&[u8], ProtocolError> {
    match rest.first() {
        Some(byte) if !is_space(*byte) => Err(ProtocolError::UnbalancedQuotes),
        _ => Ok(rest),
    }
}

fn double_quoted<'a>(mut rest: &'a [u8], bytes: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [b'"', after @ ..] => return closed(after),
            [b'\\', b'x', high, low, after @ ..] if high.is_ascii_hexdigit() && low.is_ascii_hexdigit() => {
                bytes.push(digit(*high) << 4 | digit(*low));
                rest = after;
            }
            [b'\\', escaped, after @ ..] => {
                bytes.push(match escaped {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => *other,
                });
                rest = after;
            }
            [byte, after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
}

fn single_quoted<'a>(mut rest: &'a [u8], bytes: &mut Vec<u8>) -> Result<&'a [u8], ProtocolError> {
    loop {
        match rest {
            [] => return Err(ProtocolError::UnbalancedQuotes),
            [b'\'', after @ ..] => return closed(after),
            [b'\\', b'\'', after @ ..] => {
                bytes.push(b'\'');
                rest = after;
            }
            [byte, after @ ..] => {
                bytes.push(*byte);
                rest = after;
            }
        }
    }
}

/// Returns the value of a hexadecimal digit.
fn digit(letter: u8) -> u8 {
    match letter {
        b'0'..=b'9' => letter - b'0',
        b'a'..=b'f' => letter - b'a' + 10,
        _ => letter.wrapping_sub(b'A') + 10,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Result<Vec<Vec<u8>>, ProtocolError> {
        let (mut bytes, mut places) = (Vec::new(), Vec::new());
        split(line.as_bytes(), &mut bytes, &mut places)?;
        Ok(places.iter().map(|(from, to)| bytes[*from as usize..*to as usize].to_vec()).collect())
    }

    #[test]
    fn words_are_split_and_unquoted_as_by_redis() {
        let split = words(r#"  set "a \x41\n\"" 'it''s' "#);
        assert!(matches!(split, Err(ProtocolError::UnbalancedQuotes)));
        assert_eq!(
            words(r#"  set "a \x41\n\"" 'it\'s' ""  "#).expect("words"),
            [&b"set"[..], b"a A\n\"", b"it's", b""]
        );
        for line in ["", " \x0b\x0c\t ", "\0a"] {
            assert!(words(line).expect("no words").is_empty());
        }
        assert_eq!(words("a\x0bb\0c").expect("words"), [&b"a"[..], b"b"]);
        for line in [r#""open"#, "'open", r#""a"b"#, r#""a\"#] {
            assert!(words(line).is_err(), "{line}");
        }
        assert_eq!(words(r#"a"b" c"#).expect("words"), [&b"ab"[..], b"c"]);
    }
}

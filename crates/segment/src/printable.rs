use std::fmt::Write;

/// Makes another process's or host's text safe for a terminal, a log or a picture: nothing in it can move a cursor,
/// end the line or turn the direction of writing. Such letters, and bytes that are not UTF-8, are escaped as in Rust's
/// string literals.
///
/// ```
/// assert_eq!(caravan_segment::printable("a\n\x1b[2Jb"), r"a\n\u{1b}[2Jb");
/// assert_eq!(caravan_segment::printable(b"na\xffme"), r"na\xffme");
/// assert_eq!(caravan_segment::printable("na\u{308}ive \"name\""), "na\u{308}ive \"name\"");
/// ```
pub fn printable(text: impl AsRef<[u8]>) -> String {
    let mut shown = String::new();
    for chunk in text.as_ref().utf8_chunks() {
        for letter in chunk.valid().chars() {
            match steers(letter) {
                true => shown.extend(letter.escape_default()),
                false => shown.push(letter),
            }
        }
        for byte in chunk.invalid() {
            // Writing to a String cannot fail.
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// True for control characters, and those that change the direction of writing (Unicode Standard Annex 9).
fn steers(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{2028}' | '\u{2029}')
}

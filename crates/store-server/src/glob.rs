//! The patterns of KEYS, SCAN and CONFIG GET: `*`, `?`, `[a-c]`, `[^a]`, `\` before a letter that means itself.

/// Returns whether the whole text matches. The time is at most the product of the two lengths: of several `*`, only the last one
/// is ever tried again.
pub(crate) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut place) = (0, 0);
    // Where to go on after a mismatch: behind the last star, one letter later than the last time.
    let mut star = None;
    while place < text.len() {
        if pattern.get(at) == Some(&b'*') {
            at += 1;
            star = Some((at, place));
            continue;
        }
        if let Some(next) = match_letter(pattern, at, text[place]) {
            (at, place) = (next, place + 1);
            continue;
        }
        let Some((behind, from)) = star else { return false };
        star = Some((behind, from + 1));
        (at, place) = (behind, from + 1);
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Returns where the pattern goes on if the part of it that begins at `at` matches the letter.
fn match_letter(pattern: &[u8], at: usize, letter: u8) -> Option<usize> {
    match pattern[at..] {
        [] => None,
        [b'?', ..] => Some(at + 1),
        [b'[', ..] => match_class(pattern, at + 1, letter),
        [b'\\', escaped, ..] => (escaped == letter).then_some(at + 2),
        [plain, ..] => (plain == letter).then_some(at + 1),
    }
}

/// A class that is not closed ends with the pattern.
fn match_class(pattern: &[u8], mut at: usize, letter: u8) -> Option<usize> {
    let is_inverted = pattern.get(at) == Some(&b'^');
    at += usize::from(is_inverted);
    let mut is_member = false;
    loop {
        match pattern[at..] {
            [] => break,
            [b']', ..] => {
                at += 1;
                break;
            }
            [b'\\', escaped, ..] => {
                is_member |= escaped == letter;
                at += 2;
            }
            [first, b'-', last, ..] => {
                is_member |= (first.min(last)..=first.max(last)).contains(&letter);
                at += 3;
            }
            [plain, ..] => {
                is_member |= plain == letter;
                at += 1;
            }
        }
    }
    (is_member != is_inverted).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_in_redis() {
        for (pattern, text) in [
            ("", ""),
            ("*", ""),
            ("h?llo", "hallo"),
            ("h*o", "ho"),
            ("h[ae]llo", "hello"),
            ("h[^e]llo", "hallo"),
            ("h[a-c]llo", "hbllo"),
            ("h[c-a]llo", "hbllo"),
            ("a\\*b", "a*b"),
            ("a*b*c", "axxbyyc"),
            ("[\\]]", "]"),
            ("[a", "a"),
            ("\\", "\\"),
        ] {
            assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
        for (pattern, text) in
            [("", "a"), ("a", ""), ("h?llo", "hllo"), ("h[^e]llo", "hello"), ("a\\*b", "axb"), ("a*b", "axc")]
        {
            assert!(!matches(pattern.as_bytes(), text.as_bytes()), "{pattern} {text}");
        }
    }

    #[test]
    fn many_stars_take_no_exponential_time() {
        let pattern = "a*".repeat(5000) + "b";
        assert!(!matches(pattern.as_bytes(), "a".repeat(20_000).as_bytes()));
    }
}

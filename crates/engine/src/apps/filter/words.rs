//! An expression cut into words, and what is said about one that is wrong.

/// Bytes of an expression at most.
pub const EXPRESSION_BYTES_MAX: usize = 16 << 10;

/// A word, and where it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterWord<'a> {
    pub text: &'a str,
    /// In characters, from 1.
    pub at: usize,
}

impl FilterWord<'_> {
    /// A sentence about this word.
    pub fn wrong(&self, what: impl std::fmt::Display) -> String {
        match self.text {
            "" => format!("it ends at character {}, {what}", self.at),
            text => format!("`{text}` at character {}: {what}", self.at),
        }
    }
}

/// The words of an expression, from the first to the last; then empty ones.
#[derive(Clone, Debug)]
pub struct FilterWords<'a> {
    rest: &'a str,
    at: usize,
}

impl<'a> FilterWords<'a> {
    /// Refuses what is too long.
    pub fn new(expression: &'a str) -> Result<Self, String> {
        match expression.len() {
            0..=EXPRESSION_BYTES_MAX => Ok(Self { rest: expression, at: 1 }),
            bytes => Err(format!("{bytes} bytes: {EXPRESSION_BYTES_MAX} are the most")),
        }
    }

    /// The next word, which stays.
    pub fn peek(&self) -> FilterWord<'a> {
        self.clone().next()
    }

    /// The next word; behind the last one an empty one. Symbols mean what their words mean.
    pub fn next(&mut self) -> FilterWord<'a> {
        let start = self.rest.trim_start();
        self.skip(self.rest.len() - start.len());
        let symbols = [("(", "("), (")", ")"), ("!", "not"), ("&&", "and"), ("||", "or")];
        if let Some((symbol, text)) = symbols.into_iter().find(|(symbol, _)| start.starts_with(symbol)) {
            let word = FilterWord { text, at: self.at };
            self.skip(symbol.len());
            return word;
        }
        let end = start.find(|c: char| c.is_whitespace() || "()!&|".contains(c)).unwrap_or(start.len());
        // A lone `&` or `|` is a word that nobody knows.
        let end = if end == 0 { start.chars().next().map_or(0, char::len_utf8) } else { end };
        let word = FilterWord { text: &start[..end], at: self.at };
        self.skip(end);
        word
    }

    /// Takes the next word if it is this one.
    pub fn take(&mut self, text: &str) -> bool {
        let found = self.peek().text == text;
        if found {
            self.next();
        }
        found
    }

    fn skip(&mut self, bytes: usize) {
        self.at += self.rest[..bytes].chars().count();
        self.rest = &self.rest[bytes..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_know_where_they_stand() {
        let mut words = FilterWords::new("  tcp&&!(é port\t80)| ").expect("words");
        let mut all = Vec::new();
        while !words.peek().text.is_empty() {
            let word = words.next();
            all.push((word.text, word.at));
        }
        let expected =
            [("tcp", 3), ("and", 6), ("not", 8), ("(", 9), ("é", 10), ("port", 12), ("80", 17), (")", 19)];
        assert_eq!(all[..8], expected);
        assert_eq!(all[8..], [("|", 20)]);
        assert_eq!(words.next(), FilterWord { text: "", at: 22 });
    }

    #[test]
    fn one_that_is_too_long_is_refused() {
        let long = " ".repeat(EXPRESSION_BYTES_MAX + 1);
        assert_eq!(FilterWords::new(&long).expect_err("too long"), "16385 bytes: 16384 are the most");
    }
}

//! The lines that a node of `bench/erlang` writes: `@caravan ok key=value ...`.

use std::fmt::Display;
use std::str::FromStr;

const MARK: &str = "@caravan mark";
const OK: &str = "@caravan ok";
const FAILED: &str = "@caravan error ";

/// What a line is.
#[derive(Clone, Debug, PartialEq)]
pub enum Line {
    /// A measured span begins or ends.
    Mark,
    /// A command is done.
    Answer(Answer),
    /// A command failed, and why.
    Failed(String),
    /// Not for us: the node's log.
    Log(String),
}

/// The words of an answer, in their order; a key may come more than once.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer(Vec<(String, String)>);

impl Line {
    pub fn parse(line: &str) -> Self {
        if line == MARK {
            return Self::Mark;
        }
        if let Some(reason) = line.strip_prefix(FAILED) {
            return Self::Failed(reason.to_owned());
        }
        match line.strip_prefix(OK) {
            Some(words) => Self::Answer(Answer(words.split_whitespace().map(pair).collect())),
            None => Self::Log(line.to_owned()),
        }
    }
}

impl Answer {
    /// All values of a key.
    pub fn all<'a>(&'a self, key: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The value of a key, read as a number or whatever is asked for.
    pub fn read<T: FromStr>(&self, key: &str) -> Option<T> {
        self.all(key).next()?.parse().ok()
    }
}

impl Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let words: Vec<_> = self.0.iter().map(|(key, value)| format!("{key}={value}")).collect();
        f.write_str(&words.join(" "))
    }
}

fn pair(word: &str) -> (String, String) {
    let (key, value) = word.split_once('=').unwrap_or((word, ""));
    (key.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_told_apart() {
        assert_eq!(Line::parse("@caravan mark"), Line::Mark);
        assert_eq!(Line::parse("@caravan ok"), Line::Answer(Answer::default()));
        let reason = "{error,{cannot_connect_to,'b@127.0.0.1'}}";
        assert_eq!(Line::parse(&format!("@caravan error {reason}")), Line::Failed(reason.into()));
        let log = "=ERROR REPORT==== caravan ok";
        assert_eq!(Line::parse(log), Line::Log(log.into()));
    }

    #[test]
    fn values_are_found_by_their_key() {
        let Line::Answer(answer) = Line::parse("@caravan ok rpcs=12 link=a,shm link=b,tcp name=x") else {
            panic!("an answer")
        };
        assert_eq!(answer.read::<u64>("rpcs"), Some(12));
        assert_eq!(answer.read::<u64>("name"), None);
        assert_eq!(answer.read::<u64>("absent"), None);
        assert_eq!(answer.all("link").collect::<Vec<_>>(), ["a,shm", "b,tcp"]);
    }
}

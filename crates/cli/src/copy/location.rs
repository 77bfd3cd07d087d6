//! Where something is: a path here, or `[user@]host:path`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::error::Error;

/// A path of a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Location {
    /// As ssh takes it; nothing is this host.
    pub host: Option<String>,
    /// Relative to the home directory on another host.
    pub path: Vec<u8>,
}

impl Location {
    /// As scp and rsync read it: a colon before any slash ends a host. `:path` is here as well.
    pub fn parse(text: &OsStr) -> Result<Self, Error> {
        let bytes = text.as_bytes();
        if bytes.is_empty() {
            return Err(Error::Sentence("an empty path leads nowhere: . is this directory".to_owned()));
        }
        let Some((host, path)) = split(bytes) else {
            return Ok(Self { host: None, path: bytes.to_vec() });
        };
        let shown = text.to_string_lossy();
        if path.contains(&0) {
            return Err(Error::Sentence(format!("{shown}: no path has a zero byte in it")));
        }
        if host.is_empty() {
            return Ok(Self { host: None, path: path.to_vec() });
        }
        let Ok(host) = String::from_utf8(host) else {
            return Err(Error::Sentence(format!("{shown}: the host's name is no text; a file is ./{shown}")));
        };
        if host.contains(',') {
            return Err(Error::Sentence(format!("{shown}: a copy goes from one host to one host")));
        }
        // Or ssh would take it for an option.
        if host.starts_with('-') || host.contains(char::is_whitespace) || host.contains(char::is_control) {
            return Err(Error::Sentence(format!("{shown}: {host} is no host; a file is ./{shown}")));
        }
        Ok(Self { host: Some(host), path: from_home(path).to_vec() })
    }

    /// What it is called in a directory that it is copied to; nothing if that is its content (`dir/.`).
    pub fn name(&self) -> Option<Vec<u8>> {
        let end = self.path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let name = self.path.get(..end)?.rsplit(|byte| *byte == b'/').next()?;
        (!matches!(name, b"" | b"." | b"..")).then(|| name.to_vec())
    }

    /// Whether only a directory can be meant.
    pub fn names_directory(&self) -> bool {
        let last = self.path.rsplit(|byte| *byte == b'/').next();
        matches!(last, Some(b"" | b"." | b"..") | None)
    }

    /// For people.
    pub fn shown(&self) -> String {
        let path = String::from_utf8_lossy(&self.path);
        self.host.as_ref().map_or_else(|| path.to_string(), |host| format!("{host}:{path}"))
    }
}

/// A host, without the brackets around an address of IPv6, and a path.
fn split(bytes: &[u8]) -> Option<(Vec<u8>, &[u8])> {
    let first = bytes.iter().position(|byte| matches!(byte, b'[' | b':' | b'/'))?;
    let is_bracket = bytes.get(first) == Some(&b'[');
    if is_bracket && (first == 0 || bytes.get(first - 1) == Some(&b'@')) {
        let close = bytes.iter().position(|byte| *byte == b']')?;
        let path = bytes.get(close + 1..)?.strip_prefix(b":")?;
        return Some(([bytes.get(..first)?, bytes.get(first + 1..close)?].concat(), path));
    }
    let end = bytes.iter().position(|byte| matches!(byte, b':' | b'/'))?;
    let (host, rest) = bytes.split_at_checked(end)?;
    Some((host.to_vec(), rest.strip_prefix(b":")?))
}

/// No shell sees the path: `~/x` is what it would make of it.
fn from_home(path: &[u8]) -> &[u8] {
    match path {
        b"" | b"~" | b"~/" => b".",
        path => match path.strip_prefix(b"~/") {
            Some(rest) => rest.get(rest.iter().take_while(|byte| **byte == b'/').count()..).unwrap_or(rest),
            None => path,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Option<String>, String) {
        let location = Location::parse(OsStr::new(text)).expect(text);
        (location.host, String::from_utf8(location.path).expect("text"))
    }

    #[test]
    fn a_colon_before_any_slash_ends_a_host() {
        for (text, host, path) in [
            ("file", None, "file"),
            ("./a:b", None, "./a:b"),
            ("/x/a:b", None, "/x/a:b"),
            (":a", None, "a"),
            ("host:file", Some("host"), "file"),
            ("me@host:/x:y", Some("me@host"), "/x:y"),
            ("host:", Some("host"), "."),
            ("host:~", Some("host"), "."),
            ("host:~/x", Some("host"), "x"),
            ("host:~//x", Some("host"), "x"),
            ("host:~x", Some("host"), "~x"),
            ("[2001:db8::7]:x", Some("2001:db8::7"), "x"),
            ("me@[::1]:/", Some("me@::1"), "/"),
            ("[a", None, "[a"),
            ("host:a[1]", Some("host"), "a[1]"),
            ("a[1]", None, "a[1]"),
            ("dir/[1]:y", None, "dir/[1]:y"),
        ] {
            assert_eq!(parse(text), (host.map(str::to_owned), path.to_owned()), "{text}");
        }
    }

    #[test]
    fn no_host_is_an_option_of_ssh() {
        for text in ["-oProxyCommand=x:y", "a b:c", "a,b:c", ""] {
            Location::parse(OsStr::new(text)).expect_err(text);
        }
    }

    #[test]
    fn names_are_those_of_cp() {
        for (text, name, is_directory) in [
            ("a/b", Some("b"), false),
            ("a/b//", Some("b"), true),
            ("a/.", None, true),
            ("..", None, true),
            ("/", None, true),
            ("h:", None, true),
            ("h:x", Some("x"), false),
            ("a/...", Some("..."), false),
        ] {
            let location = Location::parse(OsStr::new(text)).expect(text);
            assert_eq!(location.name(), name.map(|name| name.as_bytes().to_vec()), "{text}");
            assert_eq!(location.names_directory(), is_directory, "{text}");
        }
    }
}

//! A stage as the user writes it: `[user@]host[,host...]:'CMD'`, or `:'CMD'` for this host.

use std::fmt;
use std::path::PathBuf;

use caravan_segment::printable;

use crate::Error;
use crate::limits::{COMMAND_BYTES_MAX, HOSTS_MAX, PATH_BYTES_MAX};

/// A stage of a pipeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stage {
    /// The hosts as ssh takes them (`host`, `user@host`, `user@::1`). None: the stage runs on this host. Several:
    /// each gets the whole stream.
    pub hosts: Vec<String>,
    /// What the stage does.
    pub kind: StageKind,
    /// The stage as the user wrote it, without the hosts.
    pub text: String,
}

/// What a stage does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageKind {
    /// A command for the login shell.
    Shell(String),
    /// This program itself, with these arguments: one half of `caravan cp`.
    Program(Vec<String>),
    /// `<file`: gives the bytes of the file; its input is discarded.
    Read(PathBuf),
    /// `>file` or `>>file`: writes its input to the file, and gives nothing.
    Write {
        /// The path of the file.
        path: PathBuf,
        /// Whether the operator is `>>`.
        append: bool,
    },
}

/// The form of a stage, for messages about arguments that do not have it.
const FORM: &str = "a stage is HOST:'CMD', or :'CMD' for this host, such as db2:'gzip -d'";

impl Stage {
    /// Parses an argument of the command line.
    ///
    /// The shell gets what only it can interpret. Caravan opens a file with a plain name (`</srv/a.img`) itself: it
    /// then knows the file's size, and no `cat` has to copy the bytes.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let shown = shown(text);
        if text.starts_with("ssh://") {
            return Err(Error::Usage(format!(
                "stage `{shown}`: hosts are named as for ssh, without ssh://; a port goes into ~/.ssh/config, \
                 or is given with -o Port=N"
            )));
        }
        let (hosts, command) =
            split(text).ok_or_else(|| Error::Usage(format!("`{shown}` has no host and no colon: {FORM}")))?;
        let hosts = parse(hosts).map_err(|why| Error::Usage(format!("stage `{shown}`: {why}")))?;
        let kind = kind(command).map_err(|why| Error::Usage(format!("stage `{shown}`: {why}")))?;
        Ok(Self { hosts, kind, text: command.to_owned() })
    }
}

/// Writes the stage as on the command line, without the shell's quotes: `a,user@[::1]:tr a-z A-Z`.
impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, host) in self.hosts.iter().enumerate() {
            let comma = if i == 0 { "" } else { "," };
            write!(f, "{comma}{}", written(host))?;
        }
        write!(f, ":{}", self.text)
    }
}

fn kind(text: &str) -> Result<StageKind, String> {
    if text.trim().is_empty() {
        return Err(
            "it has no command; give one behind the colon, such as db2:'gzip -d' or db2:'>/srv/a.img'"
                .to_owned(),
        );
    }
    if text.contains('\0') {
        return Err("a command cannot hold a NUL byte".to_owned());
    }
    if text.len() > COMMAND_BYTES_MAX {
        return Err(format!(
            "the command has {} bytes, and no program can be given an argument of more than \
             {COMMAND_BYTES_MAX}; put it into a script",
            text.len()
        ));
    }
    let start = start(text)?;
    if let CommandStart::Read(path) | CommandStart::Write { path, .. } = &start {
        if path.len() > PATH_BYTES_MAX {
            return Err(format!(
                "the file's name has {} bytes, and no file can be opened by a name of more than {PATH_BYTES_MAX}",
                path.len()
            ));
        }
    }
    Ok(match start {
        CommandStart::Command => StageKind::Shell(text.to_owned()),
        CommandStart::Alone => StageKind::Shell(format!("exec cat {}", text.trim())),
        CommandStart::Read(path) => StageKind::Read(path.into()),
        CommandStart::Write { path, append } => StageKind::Write { path: path.into(), append },
    })
}

/// The most characters of an argument that a message repeats.
const SHOWN_CHARS_MAX: usize = 80;

/// Returns an argument for a message: on one line, and cut if it is long.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => printable(&text[..end]) + "...",
        None => printable(text),
    }
}

/// Splits a stage into hosts and command. The colons of an address in brackets do not end the hosts.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut is_in_brackets = false;
    for (at, c) in text.char_indices() {
        match c {
            '[' => is_in_brackets = true,
            ']' => is_in_brackets = false,
            ':' if !is_in_brackets => return Some((&text[..at], &text[at + 1..])),
            _ => {}
        }
    }
    None
}

/// Returns the hosts as ssh takes them; no host means this one.
fn parse(text: &str) -> Result<Vec<String>, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let count = text.split(',').count();
    if count > HOSTS_MAX {
        return Err(format!("it has {count} hosts, and a stage takes at most {HOSTS_MAX}"));
    }
    let mut hosts = Vec::new();
    for text in text.split(',') {
        let host = host(text)?;
        if hosts.contains(&host) {
            return Err(format!("it names {host} twice; a host gets the stream once"));
        }
        hosts.push(host);
    }
    Ok(hosts)
}

/// Returns a host as a stage has it: an address with colons is in brackets.
fn written(host: &str) -> String {
    match host.rsplit_once('@') {
        _ if !host.contains(':') => host.to_owned(),
        Some((user, address)) => format!("{user}@[{address}]"),
        None => format!("[{host}]"),
    }
}

fn host(text: &str) -> Result<String, String> {
    let (user, name) = match text.rsplit_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, text),
    };
    let address = name.strip_prefix('[').map(|rest| rest.strip_suffix(']').unwrap_or(""));
    let bare = address.unwrap_or(name);
    match user {
        Some("") => return Err(format!("a user has no name in `{text}`; leave out the @, or give one")),
        _ if name.is_empty() => {
            return Err(
                "a host has no name; they are separated by single commas, such as a,b:'CMD'".to_owned()
            );
        }
        _ if address.is_some_and(|address| address.is_empty() || address.contains(['[', ']']))
            || address.is_none() && name.contains(['[', ']'])
            || user.is_some_and(|user| user.contains(['[', ']'])) =>
        {
            return Err(format!("`{text}` is no address in brackets; write it like root@[2001:db8::1]"));
        }
        _ if text.starts_with('-') || bare.starts_with('-') => {
            return Err(format!("`{text}` begins with a dash, which ssh would take for an option"));
        }
        _ if text.contains(is_refused) => {
            return Err(format!(
                "`{text}` has a character that no host's name has; quote the command, not the host: db2:'CMD'"
            ));
        }
        _ => {}
    }
    Ok(match user {
        Some(user) => format!("{user}@{bare}"),
        None => bare.to_owned(),
    })
}

/// True for characters that ssh itself refuses, because a user's configuration may hand the name to a shell.
fn is_refused(c: char) -> bool {
    c.is_whitespace() || c.is_control() || "'`\"$\\;&<>|(){}*?!#~".contains(c)
}

/// The beginning of a command.
#[derive(Debug, PartialEq, Eq)]
enum CommandStart<'a> {
    /// A command, with or without redirections in front.
    Command,
    /// Only redirections, which a shell has to interpret.
    Alone,
    /// One file to read, with a plain name.
    Read(&'a str),
    /// One file to write, with a plain name.
    Write { path: &'a str, append: bool },
}

/// Returns how a command begins. Fails if a redirection names no file.
fn start(command: &str) -> Result<CommandStart<'_>, String> {
    let command = command.trim();
    for operator in [">>", ">", "<"] {
        let Some(rest) = command.strip_prefix(operator) else { continue };
        let path = rest.trim_start();
        return match path {
            "" => Err(format!(
                "there is no file behind `{operator}`; name one, such as db2:'{operator}/srv/a.img'"
            )),
            _ if !path.contains(|c| !is_plain(c)) => Ok(match operator {
                "<" => CommandStart::Read(path),
                _ => CommandStart::Write { path, append: operator == ">>" },
            }),
            _ if is_alone(command) => Ok(CommandStart::Alone),
            _ => Ok(CommandStart::Command),
        };
    }
    Ok(CommandStart::Command)
}

/// True for characters that no shell interprets.
fn is_plain(c: char) -> bool {
    c.is_alphanumeric() || "._/+,:@%=-".contains(c)
}

/// True if the command has only redirections. A doubtful text counts as a command: the shell reports what is wrong
/// with it.
fn is_alone(command: &str) -> bool {
    let mut rest = command;
    while !rest.is_empty() {
        let Some(behind) = redirection(rest) else { return false };
        rest = behind.trim_start_matches([' ', '\t']);
    }
    true
}

/// Returns the text behind the redirection at the start.
fn redirection(text: &str) -> Option<&str> {
    let text = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let operators = [">>", ">&", ">|", ">", "<&", "<"];
    // Here-documents, and files opened both ways, need a command that can use them.
    if text.starts_with("<<") || text.starts_with("<>") {
        return None;
    }
    let text = operators.iter().find_map(|operator| text.strip_prefix(operator))?;
    let word = text.trim_start_matches([' ', '\t']);
    let length = word_length(word)?;
    (length > 0).then(|| &word[length..])
}

/// Returns the length in bytes of the shell word at the start; `None` if a quote or bracket in it is not closed.
fn word_length(text: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at + c.len_utf8()..];
        at += c.len_utf8()
            + match c {
                ' ' | '\t' | '\n' | '\r' | ';' | '&' | '|' | '<' | '>' | '(' | ')' => return Some(at),
                '\\' => rest.chars().next()?.len_utf8(),
                '\'' => rest.find('\'')? + 1,
                '"' | '`' => closed_length(rest, None, c)?,
                '$' if rest.starts_with('(') => closed_length(rest, Some('('), ')')?,
                '$' if rest.starts_with('{') => closed_length(rest, Some('{'), '}')?,
                _ => 0,
            };
    }
    Some(at)
}

/// Returns the number of bytes up to and including `close`, where each `open` needs one more `close`. Quotes count
/// within parentheses and braces, not within double quotes.
fn closed_length(text: &str, open: Option<char>, close: char) -> Option<usize> {
    let mut depth = usize::from(open.is_none());
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '\\' => _ = chars.next(),
            '\'' if open.is_some() => _ = chars.find(|(_, c)| *c == '\'')?,
            _ if c == close => {
                depth = depth.checked_sub(1)?;
                if depth == 0 {
                    return Some(at + c.len_utf8());
                }
            }
            _ if Some(c) == open => depth += 1,
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn parsed(text: &str) -> Stage {
        Stage::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn shell(text: &str) -> StageKind {
        StageKind::Shell(text.to_owned())
    }

    #[test]
    fn hosts_and_commands_are_told_apart() {
        for (text, hosts, command) in [
            ("host1:tr [:lower:] [:upper:]", &["host1"][..], "tr [:lower:] [:upper:]"),
            (":rev", &[], "rev"),
            ("backup@fileserver:zfs send -I a@b a@c", &["backup@fileserver"], "zfs send -I a@b a@c"),
            ("a,b,root@c:cat", &["a", "b", "root@c"], "cat"),
            ("[::1]:cat", &["::1"], "cat"),
            ("root@[fe80::1%eth0],b:cat", &["root@fe80::1%eth0", "b"], "cat"),
            ("me@example.org@jump:cat", &["me@example.org@jump"], "cat"),
            ("host:'quoted: yes'", &["host"], "'quoted: yes'"),
            ("host::", &["host"], ":"),
        ] {
            let stage = parsed(text);
            assert_eq!(stage.hosts, hosts, "{text}");
            assert_eq!(stage.kind, shell(command), "{text}");
            assert_eq!(parsed(&stage.to_string()), stage, "{text}");
        }
    }

    #[test]
    fn files_with_plain_names_are_opened_without_a_shell() {
        let write = |path: &str, append| StageKind::Write { path: path.into(), append };
        for (text, kind) in [
            (":</scratch/zeroes", StageKind::Read("/scratch/zeroes".into())),
            (": < a-b_c.d+e,f:g@h%i=j ", StageKind::Read("a-b_c.d+e,f:g@h%i=j".into())),
            ("h:>/dev/null", write("/dev/null", false)),
            ("h:>> log", write("log", true)),
            ("h:>größe", write("größe", false)),
        ] {
            assert_eq!(parsed(text).kind, kind, "{text}");
        }
    }

    #[test]
    fn a_redirection_that_needs_the_shell_gets_a_cat() {
        for text in [
            "<~/a",
            "<'a b'",
            "<\"a b\"",
            "<a\\ b",
            "<~/\"my disk.img\"",
            ">$HOME/x",
            ">\"$(date +'%F (%a)')\".log",
            ">$(date +'%F ) %a').log",
            ">${x:-a b}",
            "<`ls | head -1`",
            ">>*.log",
            ">|a",
            "<a >b",
            "<a 2>/dev/null",
            ">&2",
            "> a 2>&1",
        ] {
            assert_eq!(parsed(&format!("h:{text}")).kind, shell(&format!("exec cat {text}")), "{text}");
        }
    }

    #[test]
    fn everything_else_is_left_to_the_shell() {
        for text in [
            "</in tr a-z A-Z",
            "<~/in sort",
            "<'a b' sort",
            "<a | b",
            "<a;b",
            ">a &",
            "<<EOF\nx\nEOF",
            "<<<word",
            "<(ls)",
            ">(cat)",
            "<>file",
            "<'unclosed",
            "<$(unclosed",
            "cat <a >b",
        ] {
            assert_eq!(parsed(&format!("h:{text}")).kind, shell(text), "{text}");
        }
    }

    #[test]
    fn what_is_no_stage_is_refused_with_the_form() {
        for (text, expected) in [
            ("tr a-z A-Z", "`tr a-z A-Z` has no host and no colon: a stage is HOST:'CMD'"),
            ("", "a stage is HOST:'CMD'"),
            ("[::1", "a stage is HOST:'CMD'"),
            ("db2:", "stage `db2:`: it has no command; give one behind the colon, such as db2:'gzip -d'"),
            (": \t", "it has no command"),
            ("db2:>", "no file behind `>`"),
            ("db2:>> ", "no file behind `>>`"),
            ("db2:<", "no file behind `<`"),
            ("a,,b:cat", "a host has no name"),
            ("a,:cat", "a host has no name"),
            ("root@:cat", "a host has no name"),
            ("@a:cat", "a user has no name"),
            ("a,b,a:cat", "it names a twice"),
            ("-oProxyCommand=x:cat", "`-oProxyCommand=x` begins with a dash"),
            ("root@-x:cat", "begins with a dash"),
            ("a b:cat", "`a b` has a character that no host's name has"),
            ("a;b:cat", "no host's name has"),
            ("$(x):cat", "no host's name has"),
            ("[a@b:c]:cat", "no address"),
            ("[::1]x:cat", "no address"),
            ("ssh://db2:22/:cat", "without ssh://"),
            ("a:b\0c", "NUL"),
        ] {
            let error = Stage::parse(text).expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let hosts: Vec<String> = (0..65).map(|i| format!("h{i}")).collect();
        let error = Stage::parse(&format!("{}:cat", hosts.join(","))).expect_err("too many").to_string();
        assert!(error.contains("65 hosts") && error.contains("at most 64") && error.len() < 300, "{error}");
        let error = Stage::parse(&format!(":{}", "x".repeat(200_000))).expect_err("too long").to_string();
        assert!(error.contains("200000 bytes") && error.len() < 300, "{error}");
        let error = Stage::parse(&format!("a:>{}", "x".repeat(4096))).expect_err("too long").to_string();
        assert!(error.contains("4096 bytes") && error.contains("4095") && error.len() < 300, "{error}");
    }

    proptest! {
        #[test]
        fn any_text_is_a_stage_or_an_error(text in "(?s).{0,40}") {
            let _ = Stage::parse(&text);
        }

        #[test]
        fn what_is_shown_is_the_same_stage(text in "[a-c@\\[\\]:,<>'\"$()`{} 1/%~\\\\-]{0,24}") {
            if let Ok(stage) = Stage::parse(&text) {
                prop_assert_eq!(&parsed(&stage.to_string()), &stage);
                prop_assert!(stage.hosts.iter().all(|host| !host.starts_with('-') && !host.is_empty()));
            }
        }
    }
}

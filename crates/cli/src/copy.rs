//! `caravan cp`: a pipeline of two commands of this program, the source and the sink.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write, stdin, stdout};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use caravan_bench::Error as Shared;
use caravan_bench::interrupt::endings;
use caravan_pipe::coordinator::{self, PipelineRequest};
use caravan_pipe::stage::{Stage, StageKind};
use caravan_pipe::tree;
use caravan_pipe::tree::options::{Name, SinkOptions, SourceOptions};
use caravan_segment::printable;
use rustix::event::{PollFd, PollFlags, poll};
use serde::Serialize;

use crate::args::{Copy, CopyHalf};
use crate::error::Error;

/// The number of bytes of options in one argument: the system has a limit of 128 KiB for each.
const ARGUMENT_BYTES_MAX: usize = 64 << 10;
/// The number of bytes of options in all: they have to fit into a message to an agent, which escapes them once more.
const OPTIONS_BYTES_MAX: usize = 384 << 10;
/// The number of letters of a path that are shown in the name of a half.
const SHOWN_LETTERS_MAX: usize = 60;

/// Exit statuses.
const USAGE: u8 = 2;
const INTERRUPTED: u8 = 130;

/// Copies, and returns the exit status, which says whether everything was copied.
pub fn run(args: &Copy) -> Result<ExitCode, Error> {
    let request = match request(args) {
        Ok(request) => request,
        // This is also the status of errors that the command line's own rules find.
        Err(error) => {
            eprintln!("caravan: {error}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    if args.dry_run {
        writeln!(stdout(), "{}", planned(args, &request)?).map_err(Shared::Output)?;
        return Ok(ExitCode::SUCCESS);
    }
    let status = crate::pipe::conduct(&request, &args.reach, &args.telling)?;
    if status == ExitCode::from(INTERRUPTED) {
        eprintln!(
            "caravan: the same command goes on with this copy: a large file of which only a part has come is \
             .NAME.part until then, and can be removed if it is no longer wanted"
        );
    }
    Ok(status)
}

/// Describes what would be copied, and over which transport.
fn planned(args: &Copy, request: &PipelineRequest) -> Result<String, Error> {
    let shown: Vec<_> = args.paths.iter().map(|path| path.to_string_lossy()).collect();
    let Some((destination, sources)) = shown.split_last() else { return Ok(String::new()) };
    let mut lines: Vec<_> = sources.iter().map(|source| format!("{source} -> {destination}")).collect();
    // The user did not write the stages, nor the hop back to the source.
    let hop = coordinator::describe(request)?.into_iter().rfind(|line| !line.starts_with("stage "));
    lines.extend(hop);
    Ok(lines.join("\n"))
}

/// Returns the pipeline: a ring of stages, because the sink tells the source which files it has.
fn request(args: &Copy) -> Result<PipelineRequest, Error> {
    let locations: Result<Vec<_>, _> = args.paths.iter().map(|path| CopyLocation::parse(path)).collect();
    let locations = locations?;
    let Some((destination, sources @ [first, ..])) = locations.split_last() else {
        return Err(Error::Sentence("a copy takes a source and a destination".to_owned()));
    };
    if let Some(other) = sources.iter().find(|source| source.host != first.host) {
        return Err(Error::Sentence(format!(
            "{} and {} are on different hosts: copy from one host at a time",
            first.shown(),
            other.shown()
        )));
    }
    let names: Vec<_> = sources.iter().map(CopyLocation::name).collect();
    for (index, name) in names.iter().enumerate() {
        let twin = names.iter().take(index).position(|other| name.is_some() && other == name);
        if let Some((twin, source)) = twin.and_then(|twin| sources.get(twin)).zip(sources.get(index)) {
            return Err(Error::Sentence(format!(
                "{} and {} would get the same name: copy them one after the other",
                twin.shown(),
                source.shown()
            )));
        }
    }
    let into_directory = sources.len() > 1 || destination.names_directory();
    let source = SourceOptions {
        paths: sources.iter().map(|source| Name(source.path.clone())).collect(),
        recursive: args.recursive,
        update: args.update,
        jobs: args.jobs,
    };
    let sink = SinkOptions {
        destination: Name(destination.path.clone()),
        names: names.into_iter().map(|name| name.map(Name)).collect(),
        into_directory,
        recursive: args.recursive,
        jobs: args.jobs,
        verbose: args.telling.verbose > 0,
        fsync: args.fsync,
    };
    let read = format!("read {}", several(sources));
    let write = format!("write {}", short(destination));
    Ok(PipelineRequest {
        stages: vec![
            stage(first.host.as_deref(), "copy-source", &source, read)?,
            stage(destination.host.as_deref(), "copy-sink", &sink, write)?,
        ],
        is_ring: true,
        options: args.reach.options(&args.moving, args.telling.progress),
    })
}

fn stage(host: Option<&str>, command: &str, options: &impl Serialize, text: String) -> Result<Stage, Error> {
    let options = serde_json::to_string(options).map_err(|error| Error::Sentence(error.to_string()))?;
    if options.len() > OPTIONS_BYTES_MAX {
        return Err(Error::Sentence(
            "these are too many paths for one command: name the directory that they are in".to_owned(),
        ));
    }
    let mut arguments = vec![command.to_owned(), "--".to_owned()];
    let mut rest = options.as_str();
    while !rest.is_empty() {
        let mut end = rest.len().min(ARGUMENT_BYTES_MAX);
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (piece, more) = rest.split_at(end);
        arguments.push(piece.to_owned());
        rest = more;
    }
    let hosts = host.map(|host| vec![host.to_owned()]).unwrap_or_default();
    Ok(Stage { hosts, kind: StageKind::Program(arguments), text })
}

fn several(sources: &[CopyLocation]) -> String {
    match sources {
        [only] => short(only),
        [first, rest @ ..] => format!("{} and {} more", short(first), rest.len()),
        [] => String::new(),
    }
}

fn short(location: &CopyLocation) -> String {
    let shown = printable(&location.path);
    match shown.char_indices().nth(SHOWN_LETTERS_MAX) {
        Some((cut, _)) => format!("{}...", shown.get(..cut).unwrap_or(&shown)),
        None => shown,
    }
}

/// Runs the source half. The sink half reports its own errors.
pub fn source(args: &CopyHalf) -> Result<ExitCode, Error> {
    let (input, output) = (descriptor(stdin())?, descriptor(stdout())?);
    match tree::source(&args.options.concat(), input, output) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(caravan_pipe::Error::Truncated { .. } | caravan_pipe::Error::Told(_)) => Err(Error::Said),
        Err(error) => Err(Error::Sentence(error.to_string())),
    }
}

/// Runs the sink half. A signal ends it as the end of its input does, so the only incomplete files that stay behind
/// are those that the next copy continues.
pub fn sink(args: &CopyHalf) -> Result<ExitCode, Error> {
    let (told, signals) = UnixStream::pair().map_err(Shared::Signals)?;
    for signal in endings() {
        let told = told.try_clone().map_err(Shared::Signals)?;
        signal_hook::low_level::pipe::register(signal, told).map_err(Shared::Signals)?;
    }
    let input = Attentive { input: descriptor(stdin())?, signals, is_told: false };
    match tree::sink(&args.options.concat(), input, descriptor(stdout())?) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        // A pipeline's own failures have another exit status.
        Err(error) => Err(Error::Sentence(error.to_string())),
    }
}

/// Returns the stream without the buffer of the standard library.
fn descriptor(stream: impl AsFd) -> Result<File, Error> {
    let owned = stream.as_fd().try_clone_to_owned();
    owned
        .map(File::from)
        .map_err(|error| Error::Sentence(format!("cannot use the standard streams: {error}")))
}

/// An input that ends when a signal comes.
struct Attentive {
    input: File,
    signals: UnixStream,
    is_told: bool,
}

impl Read for Attentive {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.is_told {
                return Err(io::Error::other("it was told to end"));
            }
            let mut set =
                [PollFd::new(&self.input, PollFlags::IN), PollFd::new(&self.signals, PollFlags::IN)];
            match poll(&mut set, None) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            if !set[1].revents().is_empty() {
                self.is_told = true;
                continue;
            }
            return self.input.read(buffer);
        }
    }
}

/// A path on a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CopyLocation {
    /// The host as ssh takes it; `None` is this host.
    pub host: Option<String>,
    /// The path; on another host it is relative to the home directory.
    pub path: Vec<u8>,
}

impl CopyLocation {
    /// Parses a location as scp and rsync do: a colon before any slash ends a host. `:path` is on this host too.
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
        // Otherwise ssh would take it for an option.
        if host.starts_with('-') || host.contains(char::is_whitespace) || host.contains(char::is_control) {
            return Err(Error::Sentence(format!("{shown}: {host} is no host; a file is ./{shown}")));
        }
        Ok(Self { host: Some(host), path: from_home(path).to_vec() })
    }

    /// Returns the name in a directory that this is copied to; `None` if the content itself is meant (`dir/.`).
    pub fn name(&self) -> Option<Vec<u8>> {
        let end = self.path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
        let name = self.path.get(..end)?.rsplit(|byte| *byte == b'/').next()?;
        (!matches!(name, b"" | b"." | b"..")).then(|| name.to_vec())
    }

    /// True if only a directory can be meant.
    pub fn names_directory(&self) -> bool {
        let last = self.path.rsplit(|byte| *byte == b'/').next();
        matches!(last, Some(b"" | b"." | b"..") | None)
    }

    /// Returns the location as users see it.
    pub fn shown(&self) -> String {
        let path = String::from_utf8_lossy(&self.path);
        self.host.as_ref().map_or_else(|| path.to_string(), |host| format!("{host}:{path}"))
    }
}

/// Splits into a host, without the brackets around an IPv6 address, and a path.
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

/// Returns the path relative to the home directory. No shell sees the path, so this expands `~/x`.
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
    use crate::args::{Args, Command};
    use clap::Parser;
    use std::os::unix::ffi::OsStringExt;

    fn parsed(words: &[&str]) -> Copy {
        let args = Args::parse_from(["caravan", "cp"].iter().chain(words));
        let Command::Cp(copy) = args.command else { panic!("{args:?}") };
        *copy
    }

    fn options<T: serde::de::DeserializeOwned>(stage: &Stage, command: &str) -> T {
        let StageKind::Program(arguments) = &stage.kind else { panic!("{stage:?}") };
        assert_eq!(arguments[..2], [command, "--"]);
        serde_json::from_str(&arguments[2..].concat()).expect("options")
    }

    #[test]
    fn both_halves_are_told_what_the_user_wants() {
        let request =
            request(&parsed(&["-r", "-u", "-j", "3", "a:x/", "a:y/.", "bob@b:dst"])).expect("a request");
        assert!(request.is_ring);
        assert_eq!(
            (&request.stages[0].hosts, &request.stages[1].hosts),
            (&vec!["a".to_owned()], &vec!["bob@b".to_owned()])
        );
        let source: SourceOptions = options(&request.stages[0], "copy-source");
        assert_eq!(source.paths, [Name(b"x/".to_vec()), Name(b"y/.".to_vec())]);
        assert!(source.recursive && source.update && source.jobs == Some(3));
        let sink: SinkOptions = options(&request.stages[1], "copy-sink");
        assert_eq!(sink.names, [Some(Name(b"x".to_vec())), None]);
        assert_eq!(sink.destination, Name(b"dst".to_vec()));
        assert!(sink.into_directory && sink.recursive);
    }

    #[test]
    fn what_cannot_be_is_refused_before_anything_starts() {
        for (words, expected) in [
            (&["a:x", "b:y", "dst"][..], "different hosts"),
            (&["a/x", "b/x", "dst"], "the same name"),
            (&["--", "-oProxyCommand=x:y", "dst"], "-oProxyCommand=x is no host"),
            (&["a b:c", "dst"], "a b is no host"),
            (&["", "dst"], "an empty path leads nowhere"),
            (&["a,b:x", "dst"], "one host"),
        ] {
            let copy = Args::try_parse_from(["caravan", "cp"].iter().chain(words))
                .map_err(|error| error.to_string())
                .and_then(|args| match args.command {
                    Command::Cp(copy) => request(&copy).map_err(|error| error.to_string()),
                    other => panic!("{other:?}"),
                });
            let refusal = copy.expect_err("refused");
            assert!(refusal.contains(expected), "{words:?}: {refusal}");
        }
    }

    #[test]
    fn many_paths_are_cut_into_arguments() {
        let paths = (0..9000).map(|number| format!("säule/{number}").into());
        let mut copy = parsed(&["x", "y"]);
        copy.paths = paths.chain(["dst".into()]).collect();
        let request = request(&copy).expect("a request");
        let StageKind::Program(arguments) = &request.stages[0].kind else { panic!() };
        assert!(arguments.len() > 3 && arguments.iter().all(|argument| argument.len() <= ARGUMENT_BYTES_MAX));
        let source: SourceOptions = options(&request.stages[0], "copy-source");
        assert_eq!(source.paths.len(), 9000);
        copy.paths = (0..9000).map(|number| format!("{number}{}", "x".repeat(100)).into()).collect();
        assert!(super::request(&copy).expect_err("refused").to_string().contains("too many paths"));
    }

    #[test]
    fn names_that_are_no_text_reach_the_other_side() {
        let mut copy = parsed(&["x", "y"]);
        copy.paths = vec![std::ffi::OsString::from_vec(b"h:\xff\n".to_vec()), "dst".into()];
        let request = request(&copy).expect("a request");
        let source: SourceOptions = options(&request.stages[0], "copy-source");
        assert_eq!(source.paths, [Name(b"\xff\n".to_vec())]);
        assert!(!request.stages[0].text.contains('\n'));
    }

    fn parse(text: &str) -> (Option<String>, String) {
        let location = CopyLocation::parse(OsStr::new(text)).expect(text);
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
            let location = CopyLocation::parse(OsStr::new(text)).expect(text);
            assert_eq!(location.name(), name.map(|name| name.as_bytes().to_vec()), "{text}");
            assert_eq!(location.names_directory(), is_directory, "{text}");
        }
    }
}

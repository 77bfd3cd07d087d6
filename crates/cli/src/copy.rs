//! `caravan cp`: a pipeline of two commands, which are this program's own.

mod half;
mod location;

use std::io::{Write, stdout};
use std::process::ExitCode;

use caravan_pipe::coordinator::{self, PipelineRequest};
use caravan_pipe::stage::{Stage, StageKind};
use caravan_pipe::tree::options::{Name, SinkOptions, SourceOptions};
use caravan_segment::printable;
use serde::Serialize;

use self::location::Location;
use crate::args::Copy;
use crate::error::Error;

pub use self::half::{sink, source};

/// Bytes of options that one argument takes: the system has 128 KiB for each.
const ARGUMENT_BYTES_MAX: usize = 64 << 10;
/// Bytes of options in all: they have to fit into a message to an agent, which escapes them once more.
const OPTIONS_BYTES_MAX: usize = 384 << 10;
/// Letters of a path that are shown where a half is named.
const SHOWN_LETTERS_MAX: usize = 60;

/// Exit statuses.
const USAGE: u8 = 2;
const INTERRUPTED: u8 = 130;

/// Copies; the exit status says whether all was.
pub fn run(args: &Copy) -> Result<ExitCode, Error> {
    let request = match request(args) {
        Ok(request) => request,
        // What the command line's own rules refuse has this status, too.
        Err(error) => {
            eprintln!("caravan: {error}");
            return Ok(ExitCode::from(USAGE));
        }
    };
    if args.telling.dry_run {
        writeln!(stdout(), "{}", planned(args, &request)?).map_err(Error::Output)?;
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

/// What would be copied, and over what.
fn planned(args: &Copy, request: &PipelineRequest) -> Result<String, Error> {
    let shown: Vec<_> = args.paths.iter().map(|path| path.to_string_lossy()).collect();
    let Some((destination, sources)) = shown.split_last() else { return Ok(String::new()) };
    let mut lines: Vec<_> = sources.iter().map(|source| format!("{source} -> {destination}")).collect();
    // The stages are this program's own, and so is the way back.
    let hop = coordinator::describe(request)?.into_iter().rfind(|line| !line.starts_with("stage "));
    lines.extend(hop);
    Ok(lines.join("\n"))
}

/// The pipeline: what the second half says is there goes back to the first.
fn request(args: &Copy) -> Result<PipelineRequest, Error> {
    let Some((destination, sources)) = args.paths.split_last() else {
        return Err(Error::Sentence("a copy takes a source and a destination".to_owned()));
    };
    let destination = Location::parse(destination)?;
    let sources: Vec<_> = sources.iter().map(|source| Location::parse(source)).collect::<Result<_, _>>()?;
    let Some(first) = sources.first() else {
        return Err(Error::Sentence("a copy takes a source and a destination".to_owned()));
    };
    if let Some(other) = sources.iter().find(|source| source.host != first.host) {
        return Err(Error::Sentence(format!(
            "{} and {} are on different hosts: copy from one host at a time",
            first.shown(),
            other.shown()
        )));
    }
    let names: Vec<_> = sources.iter().map(Location::name).collect();
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
    let read = format!("read {}", several(&sources));
    let write = format!("write {}", short(&destination));
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

fn several(sources: &[Location]) -> String {
    match sources {
        [only] => short(only),
        [first, rest @ ..] => format!("{} and {} more", short(first), rest.len()),
        [] => String::new(),
    }
}

fn short(location: &Location) -> String {
    let shown = printable(&location.path);
    match shown.char_indices().nth(SHOWN_LETTERS_MAX) {
        Some((cut, _)) => format!("{}...", shown.get(..cut).unwrap_or(&shown)),
        None => shown,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

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
            (&["-oProxyCommand=x:y", "dst"], "one or more required arguments"),
            (&["a,b:x", "dst"], "one host"),
        ] {
            let copy = Args::try_parse_from(["caravan", "cp"].iter().chain(words))
                .map_err(|error| error.to_string())
                .and_then(|args| match args.command {
                    Command::Cp(copy) => request(&copy).map_err(|error| error.to_string()),
                    other => panic!("{other:?}"),
                });
            let refusal = copy.expect_err("refused");
            let is_expected = refusal.contains(expected) || refusal.contains("required");
            assert!(is_expected, "{words:?}: {refusal}");
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
}

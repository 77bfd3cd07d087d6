//! The names under which the program may be started besides its own: `rdpipe` is `caravan pipe`.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use clap::{CommandFactory, Parser};

use super::Args;

/// The name of the program's file, and the command that it is.
const NAMES: [(&str, &str); 4] = [("rdpipe", "pipe"), ("rdsend", "send"), ("rdrecv", "recv"), ("rdcp", "cp")];

impl Args {
    /// From the words that the process was started with; ends it where they are none.
    pub fn of_process(words: impl Iterator<Item = OsString>) -> Self {
        let words: Vec<OsString> = words.collect();
        let Some((name, command)) = words.first().and_then(|word| alias(word)) else {
            return Self::parse_from(words);
        };
        let rest = words.get(1..).unwrap_or_default();
        if let Some(command) = renamed(name, command) {
            // For its help and its refusals, which show the name; what it accepts, the line below accepts.
            command.get_matches_from([&[OsString::from(name)], rest].concat());
        }
        Self::parse_from([&["caravan".into(), command.into()], rest].concat())
    }
}

fn alias(word: &OsStr) -> Option<(&'static str, &'static str)> {
    let file = Path::new(word).file_name()?;
    NAMES.into_iter().find(|(name, _)| file == *name)
}

/// The command as one of its own, with its name in the examples, too.
fn renamed(name: &'static str, command: &str) -> Option<clap::Command> {
    let command = Args::command().find_subcommand(command)?.clone();
    let [long, short] = [format!("caravan {}", command.get_name()), name.to_owned()];
    let help = command.get_after_help().map(|help| help.to_string().replace(&long, &short));
    let command = command.name(name).bin_name(name).display_name(name).version(env!("CARGO_PKG_VERSION"));
    Some(match help {
        Some(help) => command.after_help(help),
        None => command,
    })
}

#[cfg(test)]
mod tests {
    use super::super::Command;
    use super::*;

    #[test]
    fn a_name_is_a_command() {
        let words = ["/usr/local/bin/rdpipe", "-v", "a:cat", ":rev"].map(OsString::from);
        let Command::Pipe(pipe) = Args::of_process(words.into_iter()).command else { panic!("no pipe") };
        assert_eq!((pipe.stages.len(), pipe.telling.verbose), (2, 1));
        assert_eq!(alias(OsStr::new("caravan")), None);
    }

    #[test]
    fn usage_and_examples_show_the_name() {
        let mut command = renamed("rdpipe", "pipe").expect("a command");
        let help = command.render_long_help().to_string();
        assert!(
            help.contains("Usage: rdpipe [OPTIONS] <STAGE>...") && help.contains("\n  rdpipe -v host1"),
            "{help}"
        );
        assert!(!help.contains("caravan pipe"), "{help}");
    }
}

//! The arguments of `caravan pipe`.

use std::path::PathBuf;

use caravan_pipe::coordinator::{self, PipelineOptions};
use caravan_pipe::mover;
use caravan_pipe::stage::Stage;
use clap::{ArgAction, ValueEnum};

use super::{Moving, Reach};

/// Join commands on several hosts by pipes
///
/// What the first stage writes, the second one reads, and so on, as in a shell's pipe. The first reads this
/// command's standard input, the last writes its standard output. A stage is HOST:'CMD', or :'CMD' for this
/// host; HOST is what ssh takes. A,B,C:'CMD' runs CMD on each of these hosts, and each gets the whole stream.
/// A stage that is '<FILE', '>FILE' or '>>FILE' is that file on its host.
///
/// ssh starts this program there, copies it there first where it is missing, and carries commands and messages.
/// The data go past it: over RDMA where both hosts have it, else encrypted over TCP, and over ssh itself where
/// nothing else leads from host to host. Commands of one host that follow each other get a plain pipe.
// The brackets are what users type.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  echo hello | caravan pipe host1:'tr [:lower:] [:upper:]' host2:'rev'
  caravan pipe backup@fileserver:'zfs send -I tank/media@last_backup tank/media@head' \\
      backup_server:'zfs recv tank-backup/media'
  ffmpeg -i sintel.mpg -pix_fmt yuv420p -f rawvideo - | \\
      caravan pipe playback_host:'ffplay -f rawvideo -pix_fmt yuv420p -s 720x480 -'
  caravan pipe -v host1:'</scratch/zeroes' host2:'>/dev/null'
  caravan pipe --progress :'<disk.img' a,b,c:'>/srv/disk.img'
  caravan pipe -n a:'pg_dump -Fc shop' b:'pg_restore -d shop'

Exit status:
  0      every stage succeeded, and every byte arrived
  1-254  the rightmost failing stage's: its own, or 128 + n if signal n ended it
  130    interrupted
  255    not set up, or a host or a connection was lost; standard error says what
  2      also: the command line cannot be understood

Standard output is the stream alone. Each line of a stage's standard error comes to ours, behind [host].")]
pub struct Pipe {
    /// What runs where: [user@]host[,host...]:'CMD', or :'CMD' for this host
    #[arg(value_name = "STAGE", required = true, value_parser = stage)]
    pub stages: Vec<Stage>,
    /// What is told
    #[command(flatten)]
    pub telling: Telling,
    /// What happens to the data
    #[command(flatten)]
    pub moving: Moving,
    /// One to many
    #[command(flatten)]
    pub spreading: Spreading,
    /// How hosts are reached
    #[command(flatten)]
    pub reach: Reach,
}

impl Pipe {
    /// What the coordinator is to know.
    pub fn options(&self) -> PipelineOptions {
        let spreading = &self.spreading;
        PipelineOptions {
            fan_out: match (spreading.chain, spreading.star) {
                (true, _) => coordinator::FanOut::Chain,
                (_, true) => coordinator::FanOut::Star,
                (false, false) => coordinator::FanOut::Default,
            },
            on_slow: match spreading.on_slow {
                OnSlow::Wait => mover::SlowOutlet::Wait,
                OnSlow::Drop => mover::SlowOutlet::Drop,
            },
            on_dead: match spreading.on_dead {
                OnDead::Fail => mover::DeadOutlet::Fail,
                OnDead::Continue => mover::DeadOutlet::Continue,
            },
            ..self.reach.options(&self.moving, self.telling.progress)
        }
    }
}

/// What the user is told of.
#[derive(Clone, Debug, clap::Args)]
pub struct Telling {
    /// Say what carries the data and what is encrypted, and the figures at the end
    #[arg(short = 'v', long, action = ArgAction::Count)]
    pub verbose: u8,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub dry_run: bool,
    /// How much has passed, how fast, and what it waits for, on standard error
    #[arg(long)]
    pub progress: bool,
    /// The final figures as a JSON object, on standard error or into FILE
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub json: Option<PathBuf>,
}

/// How a stream gets to several hosts.
#[derive(Clone, Debug, clap::Args)]
#[command(next_help_heading = "One to many")]
pub struct Spreading {
    /// Each host passes the stream on to the next, so that the source sends it once; the default
    #[arg(long, conflicts_with = "star")]
    pub chain: bool,
    /// The source sends the stream to each host; the default where hosts may drop out
    #[arg(long)]
    pub star: bool,
    /// What happens to a host that holds up the others
    #[arg(long, value_name = "WHAT", default_value = "wait")]
    pub on_slow: OnSlow,
    /// What happens when one of several hosts fails
    #[arg(long, value_name = "WHAT", default_value = "fail")]
    pub on_dead: OnDead,
}

/// What happens to a host that holds up the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnSlow {
    /// All go at its pace
    Wait,
    /// It is cut off once the buffer (-m) has been full of what it has not taken for a second
    Drop,
}

/// What happens when one of several hosts fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OnDead {
    /// All end
    Fail,
    /// The others get the whole stream; the exit status still tells
    Continue,
}

fn stage(text: &str) -> Result<Stage, String> {
    Stage::parse(text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use caravan_pipe::coordinator::{Encryption, FanOut};
    use clap::Parser;

    use super::super::{Args, Command};
    use super::*;

    fn parsed(words: &[&str]) -> Pipe {
        let args = Args::parse_from(["caravan", "pipe"].iter().chain(words));
        let Command::Pipe(pipe) = args.command else { panic!("{args:?}") };
        *pipe
    }

    #[test]
    fn every_option_reaches_the_coordinator_or_ssh() {
        let options = parsed(&[":true"]).options();
        assert_eq!((options.sealing, options.fan_out), (Encryption::Default, FanOut::Default));
        assert_eq!((options.streams, options.silence), (1, caravan_pipe::limits::SILENCE_MAX));
        let words = "-v -v -n -p 4000:4010 -H lab -t tcp --encrypt --hash sha256 -c lz4 -L 10M -m 1Mi -P 4 \
                     --progress --json --star --on-slow drop --on-dead continue --no-bootstrap -F f -J j -o A=b \
                     -o C=d -i k --ssh other --silence 10 a:x";
        let pipe = parsed(&words.split_whitespace().collect::<Vec<_>>());
        let options = pipe.options();
        assert_eq!(options.transport, Some(coordinator::HopTransport::Tcp));
        assert_eq!(options.ports.map(|ports| (ports.first, ports.last)), Some((4000, 4010)));
        assert_eq!(options.here.as_deref(), Some("lab"));
        assert_eq!((options.sealing, options.digest), (Encryption::Always, mover::DigestKind::Sha256));
        assert_eq!(options.compression, Some(mover::Compression::Lz4));
        assert_eq!((options.streams, options.rate, options.buffer_bytes), (4, Some(10_000_000), 1 << 20));
        assert_eq!((options.fan_out, options.on_slow), (FanOut::Star, mover::SlowOutlet::Drop));
        assert_eq!((options.on_dead, options.progress), (mover::DeadOutlet::Continue, true));
        assert_eq!(options.silence, Duration::from_secs(10));
        let ssh = pipe.reach.ssh;
        assert_eq!((ssh.options.len(), ssh.program), (2, "other".into()));
        assert_eq!(
            (ssh.identity, ssh.config, ssh.jump),
            (Some("k".into()), Some("f".into()), Some("j".into()))
        );
        assert!(pipe.telling.dry_run && pipe.reach.no_bootstrap && pipe.telling.verbose == 2);
        assert_eq!((pipe.telling.json, pipe.stages.len()), (Some("-".into()), 1));
    }

    #[test]
    fn a_bad_value_names_the_option_and_what_it_takes() {
        for (words, expected) in [
            (&["-t", "udp", ":true"][..], "[possible values: rdma, tcp, ssh]"),
            (&["--silence", "1", ":true"], "'--silence <SECONDS>': it takes seconds from 2"),
            (&["-H", "a b", ":true"], "'--here <NAME>': it takes a name or an address"),
            (&["--chain", "--star", ":true"], "'--chain' cannot be used with '--star'"),
            (&["--on-slow", "skip", ":true"], "[possible values: wait, drop]"),
            (&["--on-dead", "skip", ":true"], "[possible values: fail, continue]"),
            (&["-p", "9:7", ":true"], "the lower one first"),
            (&["true"], "'<STAGE>...': `true` has no host and no colon: a stage is HOST:'CMD'"),
            (&["a:"], "it has no command"),
            (&[], "required arguments were not provided"),
        ] {
            let words = ["caravan", "pipe"].iter().chain(words);
            let refused = Args::try_parse_from(words.clone()).expect_err("refused").to_string();
            assert!(refused.contains(expected), "{words:?}: {refused}");
        }
    }
}

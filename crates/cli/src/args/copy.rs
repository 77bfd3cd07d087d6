//! The arguments of `caravan cp`, and of its two halves.

use std::ffi::OsString;

use caravan_pipe::tree::options::JOBS_MAX;
use clap::builder::RangedU64ValueParser;

use super::{Moving, Reach, Telling};

/// Copy files and directories between hosts, and go on where a copy was cut off
///
/// SRC and DST are paths, of this host or, as [USER@]HOST:PATH, of another; both may be of others, and
/// then the data go from one to the other. A path with a colon in it is ./a:b. With several SRC, DST is a directory.
/// Where names end up is as with cp -r.
///
/// Kept are permissions, times of modification, symbolic and hard links, holes, and, where the superuser writes,
/// owners by number. Extended attributes and ACLs are not. Sockets and devices in a directory are left out, with
/// a word. A SRC that is a device or a FIFO is read until its end, and a DST that is one is written to.
///
/// There is no --exclude and no --delete. -p is for ports, since permissions and times are kept anyway.
///
/// Each file is complete before it appears under its name. A file of more than 1 MiB is .NAME.part until
/// then; after a cut the same command goes on with it, if it is the beginning of what is to be copied.
// The brackets are what users type.
#[allow(rustdoc::broken_intra_doc_links)]
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan cp disk.img fs2:/srv/images/
  caravan cp -r fs1:/home/ann/photos fs2:/backup/ann
  caravan cp -r --update --progress projects backup@fs2:projects
  caravan cp -r fs1:/etc/. etc-of-fs1
  caravan cp -v big_file fs2:/dev/null
  caravan cp -c zstd -L 20M dump.sql jump@far.example.org:

Exit status:
  0    all was copied
  1    some was not: a file, or all of it; standard error says which and why
  2    the command line cannot be understood
  130  interrupted
  255  not set up, or a host or a connection was lost; standard error says what")]
pub struct Copy {
    /// What is copied, and last where to: PATH or [USER@]HOST:PATH
    #[arg(value_names = ["SRC", "DST"], required = true, num_args = 2..)]
    pub paths: Vec<OsString>,
    /// Directories with all that is in them
    #[arg(short, long, visible_short_aliases = ['R', 'a'], alias = "archive")]
    pub recursive: bool,
    /// Leave files alone that are there with the same size and time of modification
    #[arg(short, long, visible_alias = "resume")]
    pub update: bool,
    /// Threads on each side that read or write; by default one a core, and at least 4
    #[arg(short, long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..=JOBS_MAX as u64))]
    pub jobs: Option<usize>,
    /// Write each file to the disk before it gets its name, so that it outlasts a power cut
    #[arg(long)]
    pub fsync: bool,
    /// What users of scp and rsync type, and what is so anyway
    #[arg(long, hide = true, aliases = ["times", "perms", "links", "sparse", "partial"])]
    pub preserve: bool,
    /// What is told
    #[command(flatten)]
    pub telling: Telling,
    /// What happens to the data
    #[command(flatten)]
    pub moving: Moving,
    /// How hosts are reached
    #[command(flatten)]
    pub reach: Reach,
}

/// The half that sends: reads what is there, writes the stream.
#[derive(Clone, Debug, clap::Args)]
pub struct CopySource {
    /// JSON, in pieces that an argument may be long
    #[arg(required = true)]
    pub options: Vec<String>,
}

/// The half that receives: reads the stream, writes what is there.
#[derive(Clone, Debug, clap::Args)]
pub struct CopySink {
    /// JSON, in pieces that an argument may be long
    #[arg(required = true)]
    pub options: Vec<String>,
}

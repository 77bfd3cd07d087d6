//! The arguments of `caravan frames`.

use std::path::PathBuf;
use std::time::Duration;

use caravan_bench::{FramesBench, seconds};
use caravan_frames::limits::{CONSUMERS_MAX, SLOTS_DEFAULT, SLOTS_MAX, SLOTS_MIN};
use caravan_frames::{PixelFormat, Rate};
use clap::Subcommand;

/// Uncompressed video between processes of this host.
#[derive(Debug, Subcommand)]
pub enum FramesCommand {
    Send(FramesSend),
    Recv(FramesRecv),
    Top(FramesTop),
    Bench(FramesBench),
}

/// Send a test pattern, or frames from standard input or a file
///
/// Makes the stream NAME, which any number of processes of this host and user take with `caravan frames recv NAME` or the
/// library. Without --input it sends a moving test pattern that carries its number and time. Frames are sent at the
/// rate of the stream, and the newest comes first: a slow consumer loses frames, and holds nobody up. With --lossless,
/// this command waits for every consumer that takes every frame. Ends with its input, after --frames or --seconds, or
/// with Ctrl-C.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan frames send cam --size 3840x2160
  ffmpeg -i film.mp4 -f yuv4mpegpipe -pix_fmt yuv420p - | caravan frames send film --input -
  caravan frames send raw --input frames.rgba --size 1280x720 --format rgba --rate 30
  caravan frames send cut --lossless --input film.y4m")]
pub struct FramesSend {
    /// The name of the stream
    pub name: String,
    /// A file with frames, or - for standard input: y4m, or raw frames if --size says how large they are
    #[arg(long, short, value_name = "FILE")]
    pub input: Option<PathBuf>,
    /// The size of the test pattern [default: 1920x1080] or of raw frames
    #[arg(long, value_name = "WxH", value_parser = size)]
    pub size: Option<(u32, u32)>,
    /// The pixel format of the test pattern or of raw frames: rgba or yuv420p
    #[arg(long, value_name = "FORMAT", default_value = "rgba")]
    pub format: PixelFormat,
    /// Frames a second, such as 60 or 30000/1001; y4m says its own [default: 60]
    #[arg(long, value_name = "RATE")]
    pub rate: Option<Rate>,
    /// Wait for every consumer that takes every frame
    #[arg(long)]
    pub lossless: bool,
    /// Begin once there are so many consumers [default: 0, with --lossless 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(0..=CONSUMERS_MAX as i64))]
    pub consumers: Option<u16>,
    /// With --lossless: give up a consumer that takes longer for a frame
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub patience: Duration,
    /// Frame slots in shared memory
    #[arg(long, value_name = "N", default_value_t = SLOTS_DEFAULT,
        value_parser = clap::value_parser!(u32).range(i64::from(SLOTS_MIN)..=i64::from(SLOTS_MAX)))]
    pub slots: u32,
    /// Compute a digest of each frame, which `recv --check` compares
    #[arg(long)]
    pub digest: bool,
    /// Send as fast as the source and, with --lossless, the consumers go; the rate is only said
    #[arg(long)]
    pub unpaced: bool,
    #[command(flatten)]
    pub end: FramesEnd,
}

/// Take the frames of a stream: write them, check them, or count them
///
/// Takes the newest frame each time, and counts those that it did not come to. With --every it takes each frame in
/// turn; if the stream is lossless, its producer waits. With --output it writes the frames as y4m (yuv420p) or raw. A
/// frame that was overwritten while it was read is counted, and never written. Exit status: 1 if --check has found a
/// torn or wrong frame, or if the producer was killed; 0 at the end of the stream.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan frames recv cam
  caravan frames recv cam --check --seconds 10 --json
  caravan frames recv film --output - | ffplay -
  caravan frames recv film --every --output copy.y4m
  caravan pipe host1:'caravan frames recv film -o -' :'caravan frames send film -i -'")]
pub struct FramesRecv {
    /// The name of the stream
    pub name: String,
    /// Write the frames to a file, or - for standard output
    #[arg(long, short, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write raw frames, also of yuv420p
    #[arg(long, requires = "output")]
    pub raw: bool,
    /// Check every byte of frames of the test pattern, and digests if the stream has them
    #[arg(long)]
    pub check: bool,
    /// Take each frame in turn, and not only the newest
    #[arg(long)]
    pub every: bool,
    /// Wait so many seconds for the stream
    #[arg(long, value_name = "S", default_value = "10", value_parser = seconds)]
    pub wait: Duration,
    /// When the producer ends, wait for the next one of the same name
    #[arg(long)]
    pub follow: bool,
    #[command(flatten)]
    pub end: FramesEnd,
}

/// When a side ends, and what it tells.
#[derive(Debug, clap::Args)]
pub struct FramesEnd {
    /// End after so many frames
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub frames: Option<u64>,
    /// End after so many seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    pub seconds: Option<Duration>,
    /// Print the figures as one JSON object at the end
    #[arg(long)]
    pub json: bool,
    /// Print no figures and no progress
    #[arg(long, short, conflicts_with = "json")]
    pub quiet: bool,
}

/// Show every stream of frames of your user on this host
///
/// Shows producers and consumers with their rates over the last interval. DROPPED are frames that a consumer did not
/// come to; OVERTAKEN are those that were overwritten while it read them, which it has thrown away; AGE is how old the
/// last frame was when the consumer found it.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan frames top
  caravan frames top --once
  caravan frames top --json | jq '.frames[] | {stream, side, frames_per_s, dropped}'")]
pub struct FramesTop {
    /// Print one table and end
    #[arg(long)]
    pub once: bool,
    /// Print one JSON object per refresh, each on a line
    #[arg(long)]
    pub json: bool,
    /// Seconds between refreshes
    #[arg(long, value_name = "S", default_value = "1", value_parser = seconds)]
    pub interval: Duration,
}

fn size(text: &str) -> Result<(u32, u32), String> {
    let edges =
        text.split_once('x').and_then(|(width, height)| Some((width.parse().ok()?, height.parse().ok()?)));
    edges.ok_or_else(|| "it takes width x height in pixels, such as 1920x1080".to_owned())
}

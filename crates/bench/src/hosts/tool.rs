//! The tools that move a stream from host a to host b, and the command line of each.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::chart::{CARAVAN, PEER, VARIANT};
use crate::error::Error;
use crate::hosts::bed;
use crate::hosts::bed::{Bed, BenchHost};
use crate::hosts::cpu::{CpuReading, CpuSpan};
use crate::interrupt::Interrupt;
use crate::process::{ChildProgram, failed, is_installed};
use crate::report::Sample;
use crate::scratch::Scratch;

/// How long a stream may take beyond the time of its bytes at [`SLOWEST`].
const STREAM_LIMIT: Duration = Duration::from_secs(60);
/// The slowest acceptable rate, in bytes per second.
const SLOWEST: u64 = 20_000_000;
/// The usual settings of mbuffer for fast streams (`-s`, `-m`).
const MBUFFER: [&str; 5] = ["-q", "-s", "128k", "-m", "256M"];
/// The bytes of a block of socat.
const SOCAT_BLOCK: &str = "1048576";

/// The number of bytes that a connection's sockets may hold at both ends.
const SOCKETS_BYTES: u64 = 32 << 20;

/// A contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PipeTool {
    CaravanInsecure,
    Caravan,
    /// Not encrypted, and without a digest.
    CaravanBare,
    Nc,
    Socat,
    Mbuffer,
    Ssh,
    /// iperf3 that sends the file, as all others do.
    Iperf3File,
    /// iperf3 that sends one buffer over and over.
    Iperf3,
}

impl PipeTool {
    /// All tools; the first is the one that the others are compared with.
    pub const ALL: [Self; 9] = [
        Self::CaravanInsecure,
        Self::Caravan,
        Self::CaravanBare,
        Self::Nc,
        Self::Socat,
        Self::Mbuffer,
        Self::Ssh,
        Self::Iperf3File,
        Self::Iperf3,
    ];

    pub fn key(self) -> &'static str {
        match self {
            Self::CaravanInsecure => "caravan-insecure",
            Self::Caravan => "caravan",
            Self::CaravanBare => "caravan-bare",
            Self::Nc => "nc",
            Self::Socat => "socat",
            Self::Mbuffer => "mbuffer",
            Self::Ssh => "ssh",
            Self::Iperf3File => "iperf3-file",
            Self::Iperf3 => "iperf3",
        }
    }

    pub fn title(self) -> &'static str {
        match self {
            Self::CaravanInsecure => "caravan, not encrypted",
            Self::Caravan => "caravan, encrypted",
            Self::CaravanBare => "caravan, not encrypted, no digest",
            Self::Nc => "nc",
            Self::Socat => "socat, 1 MiB blocks",
            Self::Mbuffer => "mbuffer",
            Self::Ssh => "ssh, aes128-gcm",
            Self::Iperf3File => "iperf3 of the file, cubic",
            Self::Iperf3 => "iperf3 of one buffer, cubic",
        }
    }

    /// Returns its colour in the chart.
    pub fn colour(self) -> usize {
        match self {
            Self::CaravanInsecure | Self::CaravanBare => CARAVAN,
            Self::Caravan => VARIANT,
            _ => PEER,
        }
    }

    /// Returns the package to install, if the tool is missing.
    pub fn missing(self) -> Option<&'static str> {
        let (program, package) = match self {
            Self::CaravanInsecure | Self::Caravan | Self::CaravanBare | Self::Ssh => return None,
            Self::Nc => ("nc", "netcat-openbsd"),
            Self::Socat => ("socat", "socat"),
            Self::Mbuffer => ("mbuffer", "mbuffer"),
            Self::Iperf3File | Self::Iperf3 => ("iperf3", "iperf3"),
        };
        (!is_installed(program)).then_some(package)
    }

    /// Returns the receiving program, if the tool has one, and the sending one.
    fn programs(self, bed: &Bed, port: u16) -> Result<(Option<Command>, Command), Error> {
        let (a, b) = (&bed.net.a, &bed.net.b);
        let (address, number) = (b.address.to_string(), port.to_string());
        let file = bed.input.path();
        let on = |host: &BenchHost, program, words: &[&str]| {
            let mut command = host.command(program);
            command.args(words).stdin(Stdio::null()).stdout(Stdio::null());
            command
        };
        let there = |program, words: &[&str]| Some(on(b, program, words));
        let here = |program, words: &[&str]| on(a, program, words);
        let from_file = |mut command: Command| {
            command.stdin(File::open(&file).map_err(Error::file("open", &file))?);
            Ok::<_, Error>(command)
        };
        let at = format!("{address}:{number}");
        Ok(match self {
            Self::CaravanInsecure | Self::Caravan | Self::CaravanBare => {
                let mut command = bed.caravan("pipe");
                command.args(match self {
                    Self::Caravan => &["-v"][..],
                    Self::CaravanBare => &["-v", "--insecure", "--digest", "off"],
                    _ => &["-v", "--insecure"],
                });
                command.arg(format!("a:<{}", file.display())).arg("b:>/dev/null");
                (None, command)
            }
            Self::Nc => {
                (there("nc", &["-l", &address, &number]), from_file(here("nc", &["-N", &address, &number]))?)
            }
            Self::Socat => (
                there(
                    "socat",
                    &["-u", "-b", SOCAT_BLOCK, &format!("TCP-LISTEN:{number},bind={address}"), "STDOUT"],
                ),
                from_file(here("socat", &["-u", "-b", SOCAT_BLOCK, "STDIN", &format!("TCP:{at}")]))?,
            ),
            Self::Mbuffer => (
                there("mbuffer", &[&MBUFFER[..], &["-I", &number, "-o", "/dev/null"]].concat()),
                from_file(here("mbuffer", &[&MBUFFER[..], &["-O", &at]].concat()))?,
            ),
            Self::Ssh => {
                let mut command = here("ssh", &["-F"]);
                command.arg(&bed.daemons.config).args(["b", "cat > /dev/null"]);
                (None, from_file(command)?)
            }
            Self::Iperf3File | Self::Iperf3 => {
                let bytes = bed.input.bytes.to_string();
                let mut client =
                    here("iperf3", &["-c", &address, "-p", &number, "-C", "cubic", "-n", &bytes, "-J"]);
                if self == Self::Iperf3File {
                    client.arg("-F").arg(&file);
                }
                let path = bed.log("iperf3-client.json");
                client.stdout(File::create(&path).map_err(Error::file("make", &path))?);
                (there("iperf3", &["-s", "-1", "-B", &address, "-p", &number]), client)
            }
        })
    }

    /// Returns the rate that the tool itself reports.
    fn own_gb_per_s(self, bed: &Bed, said: &str) -> Result<Option<f64>, Error> {
        match self {
            Self::CaravanInsecure | Self::Caravan | Self::CaravanBare => match bandwidth(said) {
                Some(gb_per_s) => Ok(Some(gb_per_s)),
                None => Err(failed(self.key(), &format!("it names no bandwidth: {said}"))),
            },
            Self::Iperf3File | Self::Iperf3 => match iperf3_gb_per_s(&bed.log("iperf3-client.json")) {
                Some(gb_per_s) => Ok(Some(gb_per_s)),
                None => Err(failed(self.key(), &"its JSON has no end.sum_received.bits_per_second")),
            },
            Self::Nc | Self::Socat | Self::Mbuffer | Self::Ssh => Ok(None),
        }
    }
}

/// Moves the input from a to b.
pub fn stream(tool: PipeTool, bed: &Bed) -> Result<Vec<Sample>, Error> {
    let port = bed.net.free_port()?;
    let (receiver, sender) = tool.programs(bed, port)?;
    let limit = STREAM_LIMIT + Duration::from_secs(bed.input.bytes / SLOWEST);
    let received = || bed.net.received_bytes(bed.daemons.b.pid());
    let (spent, received_before) = (CpuSpan::begin(), received());
    let mut receiver = match receiver {
        Some(command) => {
            let mut receiver = ChildProgram::logged(tool.key(), command, &bed.log("receiver.log"))?;
            receiver.until_listening(port, &bed.interrupt)?;
            Some(receiver)
        }
        None => None,
    };
    let start = Instant::now();
    let mut sender = ChildProgram::logged(tool.key(), sender, &bed.log("sender.log"))?;
    sender.end(start + limit, &bed.interrupt)?;
    if let Some(receiver) = &mut receiver {
        receiver.end(start + limit, &bed.interrupt)?;
    }
    let wall_s = start.elapsed().as_secs_f64();
    let spent = spent.end();
    let carried = received() - received_before;
    // iperf3 ends once all is sent, and drops what has not arrived by then.
    let left = if matches!(tool, PipeTool::Iperf3File | PipeTool::Iperf3) { SOCKETS_BYTES } else { 0 };
    let least = bed.input.bytes.saturating_sub(left);
    if carried < least {
        let reason =
            format!("{carried} bytes came by the interface, and {} were to be sent", bed.input.bytes);
        return Err(failed(tool.key(), &reason));
    }
    let gigabytes = bed.input.bytes as f64 / 1e9;
    let own = tool.own_gb_per_s(bed, &sender.said())?;
    // The rate that the tool itself reports, or else all bytes divided by the seconds until both programs have ended.
    let gb_per_s = own.unwrap_or(gigabytes / wall_s);
    Ok(stream_samples(gb_per_s, wall_s, &spent, gigabytes))
}

/// Returns the samples of a stream: its rate, and the processor time of each gigabyte.
fn stream_samples(gb_per_s: f64, wall_s: f64, spent: &CpuReading, gigabytes: f64) -> Vec<Sample> {
    vec![
        Sample::new("gb_per_s", gb_per_s),
        Sample::new("cpu_s_per_gb", spent.processes / gigabytes),
        Sample::new("machine_cpu_s_per_gb", spent.machine / gigabytes),
        Sample::new("wall_s", wall_s),
    ]
}

/// Parses `Bandwidth 2.872 GB/s`, as `caravan pipe -v` prints it.
fn bandwidth(said: &str) -> Option<f64> {
    let words: Vec<_> = said.split_whitespace().collect();
    let at = words.windows(3).rposition(|three| three[0] == "Bandwidth")?;
    let (figure, unit) = (words.get(at + 1)?.parse::<f64>().ok()?, *words.get(at + 2)?);
    let scale = match unit.trim_end_matches([',', '.', ';']) {
        "TB/s" => 1e3,
        "GB/s" => 1.0,
        "MB/s" => 1e-3,
        "kB/s" => 1e-6,
        "B/s" => 1e-9,
        _ => return None,
    };
    Some(figure * scale)
}

fn iperf3_gb_per_s(path: &Path) -> Option<f64> {
    let value: Value = serde_json::from_str(&std::fs::read_to_string(path).ok()?).ok()?;
    Some(value["end"]["sum_received"]["bits_per_second"].as_f64()? / 8e9)
}

/// The limit of a line: many times what it takes.
const LINE_LIMIT: Duration = Duration::from_secs(120);
/// The line that goes through two hosts.
const WORD: &str = "hello";

/// A shell line whose start, or whose throughput, is measured.
pub struct ShellLine {
    pub key: &'static str,
    pub title: &'static str,
    /// The number of bytes that it moves, if those count.
    pub bytes: Option<u64>,
    /// The expected output.
    prints: String,
    command: Box<dyn Fn() -> Command>,
}

impl ShellLine {
    /// Returns the lines of two commands on this host.
    pub fn same_host(bytes: u64) -> [Self; 2] {
        let caravan = move || {
            let mut command = Command::new(bed::program());
            command.args(["pipe", &format!(":head -c {bytes} /dev/zero"), ":cat > /dev/null"]);
            command
        };
        let bare = move || {
            let mut command = Command::new("sh");
            command.args(["-c", &format!("head -c {bytes} /dev/zero | cat > /dev/null")]);
            command
        };
        let line =
            |key, title, command| Self { key, title, bytes: Some(bytes), prints: String::new(), command };
        [
            line("caravan", "caravan pipe :head :cat", Box::new(caravan)),
            line("shell", "head | cat", Box::new(bare)),
        ]
    }

    /// Returns the lines that send text through two hosts.
    pub fn start(bed: &Bed) -> [Self; 2] {
        let config = bed.daemons.config.display().to_string();
        let transport = if bed.net.is_veth() { "" } else { "-t tcp" };
        let through = |script: String| {
            let shell = bed.net.a.command("sh");
            let words = std::iter::once(shell.get_program()).chain(shell.get_args());
            let words: Vec<_> = words.map(ToOwned::to_owned).collect();
            Box::new(move || {
                let mut words = words.iter();
                let mut command = Command::new(words.next().cloned().unwrap_or_default());
                command.args(words).args(["-c", &script]);
                command
            })
        };
        let line = |key, title, script: String| Self {
            key,
            title,
            bytes: None,
            prints: format!("{WORD}\n"),
            command: through(script),
        };
        let program = bed::program();
        [
            line(
                "caravan",
                "echo | caravan pipe a:cat b:cat",
                format!("echo {WORD} | {program} pipe -F {config} {transport} a:cat b:cat"),
            ),
            line(
                "ssh",
                "echo | ssh a cat | ssh b cat",
                format!("echo {WORD} | ssh -F {config} a cat | ssh -F {config} b cat"),
            ),
        ]
    }

    /// Runs the line.
    pub fn run(&self, interrupt: &Interrupt) -> Result<Vec<Sample>, Error> {
        let scratch = Scratch::create()?;
        let path = scratch.path().join("printed");
        let printed = File::create(&path).map_err(Error::file("make", &path))?;
        let mut command = (self.command)();
        command.stdin(Stdio::null()).stdout(printed);
        let spent = CpuSpan::begin();
        let start = Instant::now();
        let mut running = ChildProgram::logged(self.key, command, &scratch.path().join("log"))?;
        running.end(start + LINE_LIMIT, interrupt)?;
        let wall_s = start.elapsed().as_secs_f64();
        let spent = spent.end();
        let printed = std::fs::read_to_string(&path).unwrap_or_default();
        if printed != self.prints {
            return Err(failed(self.key, &format!("it printed {printed:?} instead of {:?}", self.prints)));
        }
        let Some(bytes) = self.bytes else {
            return Ok(vec![
                Sample::new("wall_s", wall_s),
                Sample::new("cpu_s", spent.processes),
                Sample::new("machine_cpu_s", spent.machine),
            ]);
        };
        let gigabytes = bytes as f64 / 1e9;
        Ok(stream_samples(gigabytes / wall_s, wall_s, &spent, gigabytes))
    }
}

/// Copies Caravan to both hosts, and opens ssh's sessions.
pub fn warm(bed: &Bed) -> Result<(), Error> {
    let [caravan, ssh] = ShellLine::start(bed);
    ssh.run(&bed.interrupt)?;
    caravan.run(&bed.interrupt).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bandwidth_is_found_among_other_words() {
        let said = "caravan: a -> b: TCP 10.0.0.2:4011, encrypted\nBandwidth 2.872 GB/s\n";
        assert_eq!(bandwidth(said), Some(2.872));
        assert!((bandwidth("x Bandwidth 640 MB/s, 3 s").expect("a figure") - 0.64).abs() < 1e-12);
        assert_eq!(bandwidth("Bandwidth unknown"), None);
        assert_eq!(bandwidth(""), None);
    }
}

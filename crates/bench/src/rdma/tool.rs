//! The programs of perftest and rdma-core, on the device that the link uses.

use std::net::{IpAddr, TcpListener};
use std::process::{Command, Stdio};
use std::time::Duration;

use caravan_fabric::verbs::Port;
use caravan_fabric::verbs::device::Fabric;
use serde::{Deserialize, Serialize};

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::{self, ChildProgram};
use crate::rdma::failed;

/// The limit of a sample: many times what it takes.
pub const SAMPLE_LIMIT: Duration = Duration::from_secs(100);

/// A program that a link is measured beside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PerftestTool {
    #[serde(rename = "ib_write_lat")]
    WriteLatency,
    #[serde(rename = "ib_send_lat")]
    SendLatency,
    #[serde(rename = "ibv_rc_pingpong")]
    PingPong,
    #[serde(rename = "ib_write_bw")]
    WriteBandwidth,
}

/// The figures that a program prints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Printed {
    /// Microseconds one way (the mean for ibv_rc_pingpong, the median for the others), or MiB/s.
    pub value: f64,
    /// The 99th percentile, in microseconds one way.
    pub p99: Option<f64>,
}

/// One run of a program, as both sides of it need to know it.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct ToolRun {
    pub tool: PerftestTool,
    pub bytes: usize,
    pub messages: u64,
}

impl PerftestTool {
    pub const ALL: [Self; 4] = [Self::WriteLatency, Self::SendLatency, Self::PingPong, Self::WriteBandwidth];

    pub fn program(self) -> &'static str {
        match self {
            Self::WriteLatency => "ib_write_lat",
            Self::SendLatency => "ib_send_lat",
            Self::PingPong => "ibv_rc_pingpong",
            Self::WriteBandwidth => "ib_write_bw",
        }
    }

    /// True if the program can use such a port. ibv_rc_pingpong does not support the connection manager.
    pub fn fits(self, fabric: Fabric) -> bool {
        self != Self::PingPong || fabric != Fabric::Iwarp
    }

    pub fn is_installed(self) -> bool {
        process::is_installed(self.program())
    }

    /// Parses the output of the client's side.
    fn parse(self, text: &str, bytes: usize) -> Option<Printed> {
        if self == Self::PingPong {
            let line = text.lines().find(|line| line.contains("usec/iter"))?;
            let round_trip: f64 = line.rsplit_once(" usec/iter")?.0.rsplit_once(' ')?.1.parse().ok()?;
            return Some(Printed { value: round_trip / 2.0, p99: None });
        }
        let mut rows = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = rows.find(|row| row.first() == Some(&bytes.to_string().as_str()))?;
        let field = |place: usize| row.get(place)?.parse().ok().filter(|value: &f64| value.is_finite());
        Some(match self {
            // bytes, iterations, peak, average, messages
            Self::WriteBandwidth => Printed { value: field(3).filter(|&value| value > 0.0)?, p99: None },
            // bytes, iterations, least, most, median, mean, deviation, 99 %, 99.9 %
            _ => Printed { value: field(4)?, p99: field(7) },
        })
    }
}

impl ToolRun {
    fn command(&self, port: &Port, tcp_port: u16) -> Command {
        let mut command = Command::new(self.tool.program());
        command.args(["-d", &port.device, "-i", &port.number.to_string(), "-p", &tcp_port.to_string()]);
        command.args(["-s", &self.bytes.to_string(), "-n", &self.messages.to_string()]);
        let index = port.gid_index.to_string();
        match (self.tool, port.fabric) {
            (PerftestTool::PingPong, Fabric::InfiniBand) => {}
            (PerftestTool::PingPong, _) => drop(command.args(["-g", &index])),
            // -F: no complaint if the processor changes its speed.
            (_, Fabric::InfiniBand) => drop(command.arg("-F")),
            (_, Fabric::Roce) => drop(command.args(["-F", "-x", &index])),
            (_, Fabric::Iwarp) => drop(command.args(["-F", "-R"])),
        }
        command.stdin(Stdio::null());
        command
    }

    /// Starts the server's side, and returns the port at which it listens.
    pub fn serve(&self, port: &Port, interrupt: &Interrupt) -> Result<(ChildProgram, u16), Error> {
        let free = TcpListener::bind(("0.0.0.0", 0)).and_then(|listener| listener.local_addr());
        let tcp_port = free.map_err(|why| failed(&why))?.port();
        let mut command = self.command(port, tcp_port);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut running = ChildProgram::start(self.tool.program(), command)?;
        running.until_listening(tcp_port, interrupt)?;
        Ok((running, tcp_port))
    }

    /// Runs the client's side to its end.
    pub fn call(
        &self,
        port: &Port,
        host: IpAddr,
        tcp_port: u16,
        interrupt: &Interrupt,
    ) -> Result<Printed, Error> {
        let mut command = self.command(port, tcp_port);
        command.arg(host.to_string());
        let text = process::output(self.tool.program(), command, SAMPLE_LIMIT, interrupt)?;
        self.tool.parse(&text, self.bytes).ok_or_else(|| match text.contains(" inf ") {
            true => self.failed(&"it found no speed of the processor (\"cpu MHz\" in /proc/cpuinfo)"),
            false => self.failed(&text),
        })
    }

    fn failed(&self, why: &dyn std::fmt::Display) -> Error {
        process::failed(self.tool.program(), why)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LATENCY: &str = "\
 #bytes #iterations    t_min[usec]    t_max[usec]  t_typical[usec]    t_avg[usec]    t_stdev[usec]   99% percentile[usec]   99.9% percentile[usec]
 8       5000          10.50          900.25       12.25               13.50         4.00            40.75                  99.00
---------------------------------------------------------------------------------------";
    const BANDWIDTH: &str = "\
 #bytes     #iterations    BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]
 65536      2000             310.50             290.25               0.004644";
    const PING_PONG: &str = "\
80000 bytes in 0.66 seconds = 0.96 Mbit/sec
5000 iters in 0.66 seconds = 132.50 usec/iter";

    #[test]
    fn what_the_programs_print_is_read() {
        let read = |tool: PerftestTool, text: &str, bytes| {
            tool.parse(text, bytes).map(|printed| (printed.value, printed.p99))
        };
        assert_eq!(read(PerftestTool::WriteLatency, LATENCY, 8), Some((12.25, Some(40.75))));
        assert_eq!(read(PerftestTool::WriteBandwidth, BANDWIDTH, 65536), Some((290.25, None)));
        assert_eq!(read(PerftestTool::PingPong, PING_PONG, 8), Some((66.25, None)));
        assert_eq!(read(PerftestTool::WriteLatency, &LATENCY.replace("12.25", "inf"), 8), None);
        assert_eq!(read(PerftestTool::WriteLatency, "", 8), None);
    }
}

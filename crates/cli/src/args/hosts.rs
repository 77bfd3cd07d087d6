//! The arguments of the commands about hosts and what is between them.

use std::path::PathBuf;
use std::time::Duration;

use caravan_bench::{ring_bytes, seconds};

/// Show what this host has for RDMA, what is in its way, and what would be used towards HOST
///
/// Prints what this host has for RDMA (rdma-core, devices, ports, addresses, limits), what is in the
/// way of it and how to remove that, and what would carry a link towards HOST. Sends nothing.
/// Exit status: 0, or 1 if there is a HOST and neither shared memory nor RDMA leads there.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan fabric
  caravan fabric db2.example.org
  caravan fabric --json 192.0.2.7 | jq .towards.transport
  sudo caravan fabric                 sees the firewall's rules, too

Whether HOST has a device as well, only HOST knows: `caravan selftest HOST` tries it.")]
pub struct Fabric {
    /// A name or an address
    pub host: Option<String>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

/// Verify shared memory and RDMA between this host and HOST, over ssh
///
/// Verifies RDMA, and on this host shared memory, between this host and HOST: starts itself there over
/// ssh, connects every pair of ports that can reach each other, checks contents and promises, and
/// measures round trips and throughput. Prints a report to attach to an issue. Where HOST's PATH has
/// no caravan of this version, this program is copied to a temporary file there, which is gone as soon
/// as it runs. Exit status: 0 if everything passed, 1 if not.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  caravan selftest db2.example.org
  caravan selftest -p 2222 -i ~/.ssh/lab admin@192.0.2.7
  caravan selftest db2 --output report.txt
  caravan selftest db2 --json | jq '.failures'

HOST is what ssh takes, with your ~/.ssh/config. Without a password to type, use keys or an agent.")]
pub struct SelfTest {
    /// As for ssh: host, or user@host, or a name of ~/.ssh/config
    #[arg(value_parser = ssh_host)]
    pub host: String,
    /// ssh's options
    #[command(flatten)]
    pub ssh: Ssh,
    /// The port of sshd
    #[arg(short = 'p', value_name = "PORT")]
    pub port: Option<u16>,
    /// Seconds for each figure
    #[arg(long, value_name = "S", default_value = "0.2", value_parser = seconds)]
    pub seconds: Duration,
    /// Bytes of each ring: a power of two
    #[arg(long, value_name = "BYTES", default_value_t = crate::fabric::survey::RING_BYTES, value_parser = ring_bytes)]
    pub ring_bytes: u64,
    /// The report as one JSON object
    #[arg(long)]
    pub json: bool,
    /// The report goes to this file, and only its last line to the terminal
    #[arg(long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

/// Passed on to ssh.
#[derive(Clone, Debug, clap::Args)]
pub struct Ssh {
    /// An option of ssh_config(5), such as ConnectTimeout=5 or Port=2222; again for more
    #[arg(short = 'o', value_name = "OPTION")]
    pub options: Vec<String>,
    /// The file of a private key
    #[arg(short = 'i', value_name = "FILE")]
    pub identity: Option<PathBuf>,
    /// Another file than ~/.ssh/config
    #[arg(short = 'F', value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Hosts to jump over
    #[arg(short = 'J', value_name = "HOSTS")]
    pub jump: Option<String>,
    /// The program that is called as ssh
    #[arg(long = "ssh", value_name = "PROGRAM", default_value = "ssh")]
    pub program: PathBuf,
}

/// The other side of `caravan selftest`, on the standard input and output.
#[derive(Debug, clap::Args)]
pub struct SelfTestPeer {
    /// Only say what this program is
    #[arg(long)]
    pub probe: bool,
    /// A folder to remove first: this program was copied to it
    #[arg(long)]
    pub remove: Option<PathBuf>,
}

/// Anything but an option of ssh.
fn ssh_host(text: &str) -> Result<String, String> {
    match text.is_empty() || text.starts_with('-') || text.contains(char::is_whitespace) {
        true => Err("it takes what ssh takes, such as db2.example.org or admin@192.0.2.7".into()),
        false => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::{Args, Command};

    #[test]
    fn options_of_ssh_are_taken_and_hosts_that_are_options_are_not() {
        let line = "caravan selftest -o A=b -o C=d -p 22 -i k -F f -J j root@db2";
        let args = Args::parse_from(line.split(' '));
        let Command::Selftest(test) = args.command else { panic!("{args:?}") };
        assert_eq!((test.host.as_str(), test.ssh.options.len(), test.port), ("root@db2", 2, Some(22)));
        for host in ["--", "-oProxyCommand=x", "a b", ""] {
            let refused = Args::try_parse_from(["caravan", "selftest", "--", host]).expect_err(host);
            assert!(refused.to_string().contains("it takes what ssh takes"), "{refused}");
        }
    }
}

//! `caravan fabric`: what this host has for RDMA, what is in the way, and what would be used towards
//! another.

pub mod firewall;
pub mod survey;
pub mod towards;
pub mod view;

use std::io::Write;

use serde::Serialize;

use self::survey::{Findings, Survey};
use self::towards::Towards;
use crate::args::Fabric;
use crate::error::Error;

#[derive(Debug, Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    survey: &'a Survey,
    towards: Option<&'a Towards>,
}

/// Prints it. An error if there is a host that only TCP leads to.
pub fn run(args: &Fabric) -> Result<(), Error> {
    let found = Findings::of_this_host()?;
    let towards = args.host.as_ref().map(|host| Towards::find(host, &found)).transpose()?;
    let text = match args.json {
        true => {
            let report = Report { survey: &found.survey, towards: towards.as_ref() };
            let json = serde_json::to_string_pretty(&report).map_err(|error| Error::Output(error.into()))?;
            format!("{json}\n")
        }
        false => {
            let mut text = view::survey(&found.survey);
            text.extend(towards.iter().map(|towards| format!("\n{}", view::towards(towards))));
            text
        }
    };
    std::io::stdout().write_all(text.as_bytes()).map_err(Error::Output)?;
    match towards {
        Some(Towards { transport: "tcp", host, .. }) => Err(Error::OnlyTcp { host }),
        _ => Ok(()),
    }
}

//! The clients of the demonstration at a store that runs already.

use std::time::{Duration, Instant};

use caravan_bench::interrupt::Interrupt;
use caravan_bench::number::number;
use caravan_cluster::{Configuration, PartId};
use serde_json::json;

use super::bank::Bank;
use super::times::WellTimes;
use super::{GLANCE, LINE, end, named, print_begin, print_verdict};
use crate::args::StoreDemo;
use crate::error::Error;
use crate::store::{password, sentence, status};

/// Runs clients until the time is over or Ctrl-C, and judges what they find then.
pub fn run(args: &StoreDemo, address: &str) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let secret = args.password_file.as_deref().map(password).transpose()?;
    let before = configuration(address, secret.as_deref())?;
    let bank = Bank::open(&before, args.clients, args.rate, secret.clone())?;
    print_begin(args, &before)?;
    let threads = bank.start()?;
    let begin = Instant::now();
    let (mut lined, mut commits) = (begin, bank.commits_by_part());
    while begin.elapsed() < args.seconds && interrupt.check().is_ok() {
        std::thread::sleep(GLANCE.min(args.seconds.saturating_sub(begin.elapsed())));
        if lined.elapsed() >= LINE {
            let (before, since) = (std::mem::replace(&mut commits, bank.commits_by_part()), lined.elapsed());
            lined = Instant::now();
            print_second(args, begin.elapsed(), &before, &commits, since, bank.counts().is_right)?;
        }
    }
    // A second signal ends this process.
    let never = Interrupt::by(std::sync::Arc::default());
    let mut mistakes: Vec<String> = end(&bank, &threads, &never)?.into_iter().collect();
    mistakes.extend(bank.audit());
    let after = bank.addresses().iter().find_map(|address| configuration(address, secret.as_deref()).ok());
    let lost: Vec<PartId> = after
        .map(|after| after.parts.iter().filter(|part| part.lost.is_some()).map(|part| part.id).collect())
        .unwrap_or_default();
    if mistakes.is_empty() {
        bank.clear();
    }
    print_verdict(args, &bank.counts(), &mistakes, 0, &WellTimes::default(), &lost)
}

/// Says what was done since the line before. What stopped a part is not known here.
fn print_second(
    args: &StoreDemo,
    at: Duration,
    before: &[(PartId, u64)],
    after: &[(PartId, u64)],
    since: Duration,
    is_right: bool,
) -> Result<(), Error> {
    let sum = |commits: &[(PartId, u64)]| commits.iter().map(|(_, commits)| commits).sum::<u64>();
    let rate = (sum(after) - sum(before)) as f64 / since.as_secs_f64();
    let silent = before.iter().zip(after).filter(|(before, after)| before == after);
    let silent: Vec<PartId> = silent.map(|((part, _), _)| *part).collect();
    if args.json {
        return crate::print_json(&json!({
            "event": "second", "seconds": at.as_secs_f64(), "commits_per_s": rate, "silent_parts": silent, "sums_are_right": is_right,
        }));
    }
    let sums = if is_right { "right" } else { "WRONG" };
    let silent = if silent.is_empty() { String::new() } else { named(&silent) };
    let rate = number(rate.round());
    let rate = rate.trim_end_matches(".00").trim_end_matches(".0");
    crate::print(&format!("{:4.0}  {rate:>10}  {sums}  {silent}\n", at.as_secs_f64()))
}

/// Asks a server for the configuration of its store.
fn configuration(address: &str, secret: Option<&[u8]>) -> Result<Configuration, Error> {
    let told = status::ask(address, secret);
    let told = told.map_err(|error| Error::Sentence(format!("the server at {address}: {error}")))?;
    told.configuration.check().map_err(sentence)?;
    Ok(told.configuration)
}

//! `caravan bench erlang`: Erlang nodes calling each other, over TCP and over Caravan.

mod answer;
mod carried;
mod cluster;
mod home;
mod modules;
mod node;
mod picture;
mod plan;
mod results;
mod round;
mod table;

use std::path::Path;
use std::time::Instant;

use self::modules::Modules;
use self::node::Recipe;
use self::plan::Plan;
use self::results::Results;
use self::round::Round;
use crate::args::{Erlang, Transport};
use crate::chart;
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::machine::Machine;
use crate::output;
use crate::progress::Progress;

/// Measures all rounds, then prints the table and writes the files.
pub fn run(args: &Erlang) -> Result<(), Error> {
    let plan = Plan::of(args);
    for (i, &transport) in plan.transports.iter().enumerate() {
        if plan.transports[..i].contains(&transport) {
            return Err(Error::TransportTwice(transport));
        }
    }
    let modules = Modules::find(plan.transports.iter().any(|&transport| transport != Transport::Tcp))?;
    let interrupt = Interrupt::watch()?;
    let machine = Machine::here();
    let begin = Instant::now();
    let rounds = measure_all(args, &plan, &modules, &interrupt)?;
    let results = Results::of(args, &plan, machine, &rounds, begin.elapsed());
    output::table(&table::text(&results), &args.json)?;
    write_files(args, &results)
}

fn measure_all(
    args: &Erlang,
    plan: &Plan,
    modules: &Modules,
    interrupt: &Interrupt,
) -> Result<Vec<(Transport, Round)>, Error> {
    let turns = plan.rounds * plan.transports.len();
    let mut progress = Progress::new(turns * plan.step_count());
    let mut rounds = Vec::with_capacity(turns);
    for number in 0..plan.rounds {
        for transport in plan.order(number) {
            progress.round(format!("round {} of {}, {}", number + 1, plan.rounds, transport.name()));
            let recipe = Recipe {
                erl: args.erl.clone(),
                modules: modules.clone(),
                transport,
                schedulers: args.schedulers.get(),
                flags: args.erl_flags.clone(),
            };
            rounds.push((transport, round::measure(plan, &recipe, interrupt, &progress)?));
        }
    }
    Ok(rounds)
}

fn write_files(args: &Erlang, results: &Results) -> Result<(), Error> {
    let picture = picture::draw(results);
    output::json(results, &args.json)?;
    if !output::is_none(&args.svg) {
        output::file(&args.svg, chart::svg(&picture).as_bytes())?;
    }
    if !output::is_none(&args.png) {
        let png = chart::png(&picture).map_err(|source| Error::Chart { path: args.png.clone(), source })?;
        output::file(&args.png, &png)?;
    }
    let files: Vec<_> = [&args.json, &args.svg, &args.png]
        .into_iter()
        .filter(|path| !output::is_none(path) && path.as_path() != Path::new("-"))
        .map(|path| path.display().to_string())
        .collect();
    if !files.is_empty() {
        output::table(&format!("\nWritten: {}\n", files.join(", ")), &args.json)?;
    }
    Ok(())
}

//! `caravan bench erlang`: Erlang nodes calling each other, over TCP and over Caravan.

mod answer;
mod carried;
mod cluster;
mod home;
mod modules;
mod node;
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
    let chart = results.chart();
    output::all(&table::text(&results), &results, &chart, &args.json, &args.svg, Path::new(""))
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

//! Probes: functions with names of their own, inside which `tests/callgrind/run` has valgrind count the instructions.
//!
//!     caravan-callgrind PROBE     runs a probe as often as is to be counted
//!     caravan-callgrind           prints the names of the probes, each with that number

#![deny(unsafe_code)]

#[macro_use]
mod probes;
mod carrier;
mod engine;
mod server;
mod store;
mod unmapped;

/// The probes of a module.
struct Probes {
    names: &'static [&'static str],
    /// How often each of them is called.
    calls: u32,
    /// Runs one by its name.
    run: fn(&str),
}

const MODULES: [Probes; 4] = [carrier::PROBES, engine::PROBES, store::PROBES, server::PROBES];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some(probe) = words.first() else {
        for Probes { names, calls, .. } in MODULES {
            names.iter().for_each(|name| println!("{name} {calls}"));
        }
        return;
    };
    match MODULES.iter().find(|probes| probes.names.contains(&probe.as_str())) {
        Some(probes) => (probes.run)(probe),
        None => {
            eprintln!(
                "caravan-callgrind: there is no probe {probe}; without a word, it prints those that there are"
            );
            std::process::exit(2);
        }
    }
}

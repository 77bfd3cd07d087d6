//! A custom app, in a network of three apps in two processes:
//! `cargo run --release --package caravan-engine --example my_app`

use std::time::Duration;

use caravan_engine::{App, AppError, Config, Engine, EngineOptions, Error, Io, Registry};

/// Counts the bytes that pass.
struct Meter(u64);

impl App for Meter {
    type Config = ();

    fn start((): (), _: Option<Vec<u8>>) -> Result<Self, AppError> {
        Ok(Self(0))
    }

    fn push(&mut self, io: &mut Io) {
        io.pass(0, 0, |packet| {
            self.0 += packet.length() as u64;
            Ok(())
        });
    }

    fn report(&self) -> Vec<(&'static str, u64)> {
        vec![("bytes", self.0)]
    }
}

fn main() -> Result<(), Error> {
    let mut registry = Registry::standard();
    registry.add::<Meter>("meter");
    let mut config = Config::new();
    config.app_in("left", "source", "source", ()).app_in("right", "meter", "meter", ());
    config.app_in("right", "sink", "sink", ());
    config.link("source.output -> meter.input")?.link("meter.output -> sink.input")?;

    let mut engine = Engine::start(registry, EngineOptions::default())?;
    println!("{}", engine.configure(&config)?);
    engine.run_for(Duration::from_secs(1), |event| println!("{event:?}"))?;
    println!("{:?}", engine.reports()?);
    engine.stop()
}

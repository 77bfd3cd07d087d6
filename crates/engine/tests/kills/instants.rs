//! At which instants workers were killed.

use std::collections::BTreeMap;

use caravan_engine::EngineEvent;
use caravan_engine::layout::WorkerStage;

/// What a kill interrupted, counted.
#[derive(Debug, Default)]
pub struct Instants {
    pub kills: u64,
    pub half_sent: u64,
    pub half_received: u64,
    pub in_configure: u64,
    pub in_growth: u64,
    pub stages: BTreeMap<WorkerStage, u64>,
    pub signals: BTreeMap<String, u64>,
    pub reclaimed: u64,
    pub unpublished: u64,
    pub lost: u64,
    pub restarts_ns: Vec<u64>,
}

impl Instants {
    /// Takes note of a crash; `configuring`: it was noticed in a change of the configuration.
    pub fn crashed(&mut self, event: &EngineEvent, configuring: bool) {
        let EngineEvent::Crashed { how, stage, growing, half_received, recovered, .. } = event else {
            return;
        };
        self.kills += 1;
        self.half_sent += u64::from(recovered.unpublished > 0);
        self.half_received += u64::from(*half_received > 0);
        self.in_configure += u64::from(configuring || *stage == WorkerStage::Configuring);
        self.in_growth += u64::from(*growing);
        *self.stages.entry(*stage).or_default() += 1;
        *self.signals.entry(how.clone()).or_default() += 1;
        self.reclaimed += recovered.reclaimed;
        self.unpublished += recovered.unpublished;
        self.lost += recovered.lost;
    }

    /// Instants that no kill has hit.
    pub fn missed(&self) -> Vec<&'static str> {
        let hit = [
            ("half-sent", self.half_sent),
            ("half-received", self.half_received),
            ("in configure", self.in_configure),
            ("in growth", self.in_growth),
        ];
        hit.into_iter().filter(|(_, count)| *count == 0).map(|(name, _)| name).collect()
    }
}

impl std::fmt::Display for Instants {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut row = |name: &str, count: u64| {
            writeln!(f, "  {name:<22} {count:>8}  {:>5.1} %", 100.0 * count as f64 / self.kills.max(1) as f64)
        };
        row("kills", self.kills)?;
        row("half-sent", self.half_sent)?;
        row("half-received", self.half_received)?;
        row("in configure", self.in_configure)?;
        row("in growth", self.in_growth)?;
        for stage in WorkerStage::ALL {
            let name = format!("{stage:?}").to_lowercase();
            row(&format!("stage {name}"), self.stages.get(&stage).copied().unwrap_or(0))?;
        }
        for (signal, count) in &self.signals {
            row(signal, *count)?;
        }
        let mut restarts = self.restarts_ns.clone();
        restarts.sort_unstable();
        let at = |part: usize| restarts.get(restarts.len() * part / 100).map_or(0.0, |ns| *ns as f64 / 1e6);
        writeln!(f, "  restarted after ms     {:>8.2} median, {:.2} in 99 of 100", at(50), at(99))?;
        write!(
            f,
            "  packets reclaimed      {:>8}, of them {} not published; {} held data, and are lost",
            self.reclaimed, self.unpublished, self.lost
        )
    }
}

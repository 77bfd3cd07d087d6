//! Whether an engine has nothing left to do.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use caravan_engine::Engine;
use caravan_engine::layout::link;

/// How often the apps are asked. Nothing may have moved from one time to the next.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// Finds the moment after which nothing happens any more: every app that has an end has come to it, and what they
/// sent has arrived.
#[derive(Debug)]
pub struct Ending {
    next: Instant,
    /// The counts of all links when they were last read, once all apps had ended.
    counts: Option<Vec<u64>>,
}

impl Ending {
    pub fn new() -> Self {
        Self { next: Instant::now(), counts: None }
    }

    /// Whether it has come.
    pub fn has_come(&mut self, engine: &mut Engine) -> bool {
        if Instant::now() < self.next {
            return false;
        }
        let before = self.counts.take();
        if have_ended(engine) == Some(true) {
            self.counts = Some(counts(engine));
        }
        self.next = Instant::now() + LOOK_EVERY;
        self.counts.is_some() && self.counts == before
    }
}

/// Whether all apps that have an end have come to it, and no app holds packets; `None` if there is no such app. A
/// worker that is being started again says nothing: its apps have not ended.
pub fn have_ended(engine: &mut Engine) -> Option<bool> {
    let reports = engine.reports().unwrap_or_default();
    let all_say = reports.len() == engine.config().apps.len();
    let queued = reports.values().filter_map(|figures| figures.get("queued")).sum::<u64>();
    let ended: Vec<_> = reports.values().filter_map(|figures| figures.get("ended")).collect();
    (!ended.is_empty()).then(|| all_say && queued == 0 && ended.iter().all(|ended| **ended == 1))
}

fn counts(engine: &Engine) -> Vec<u64> {
    let links = engine.config().links.keys().filter_map(|name| engine.link_id(&name.to_string()));
    let word = |id, offset| engine.shared().link(id, offset).load(Ordering::Relaxed);
    links
        .flat_map(|id| [link::PACKETS, link::TAKEN, link::QUEUED, link::WAITING].map(|at| word(id, at)))
        .collect()
}

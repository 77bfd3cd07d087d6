//! How an engine is set up.

use caravan_ring::SpinMode;
use caravan_segment::Pages;

use crate::limits::{HEADROOM_BYTES, PACKETS_DEFAULT};

/// What happens to a worker that crashed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Restarts {
    /// It is started again, at once the first time, then after waits that grow; one that goes on
    /// crashing is parked.
    #[default]
    BackOff,
    /// It is started again at once, without end.
    Always,
    /// It is parked.
    Never,
}

/// How an engine is set up: what no later configuration changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineOptions {
    /// Which pages to ask for; [`Engine::pages`](crate::Engine::pages) says what was got.
    pub pages: Pages,
    /// Packets there may be.
    pub packets_max: u32,
    /// Bytes in front of a new packet's data.
    pub headroom: usize,
    /// Whether idle workers look again before they sleep.
    pub spin: SpinMode,
    /// What happens to a worker that crashed.
    pub restarts: Restarts,
}

impl Default for EngineOptions {
    fn default() -> Self {
        Self {
            pages: Pages::Small,
            packets_max: PACKETS_DEFAULT,
            headroom: HEADROOM_BYTES,
            spin: SpinMode::Auto,
            restarts: Restarts::default(),
        }
    }
}

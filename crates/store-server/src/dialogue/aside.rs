//! Requests that would wait for copies, and are put aside: tried again after a pause, while others are served.

use caravan_cluster::PartId;

use super::{Dialogue, KeyPlace};
use crate::command::CommandSpec;
use crate::limits::RELIEF_LOOK;
use crate::parts::ServedPart;
use crate::resp::words::CommandWords;

impl Dialogue {
    /// Puts the next request aside: it is served again after the pause.
    pub(super) fn put_aside(&mut self) {
        self.is_put_aside = true;
        self.pause = RELIEF_LOOK;
    }

    /// Returns whether the pause is for a request that was put aside: replies to those before it need not wait.
    pub(crate) fn is_put_aside(&self) -> bool {
        self.is_put_aside
    }

    /// Returns whether commits of any part here wait for copies.
    pub(super) fn has_waiting_part(&self) -> bool {
        self.state.parts.waits.may_wait() && self.parts.served.iter().any(|part| part.store.commits_wait())
    }

    /// Returns whether a request would wait because commits of its part do.
    #[inline]
    pub(super) fn waits_for_copies(
        &self,
        spec: &CommandSpec,
        words: CommandWords<'_>,
        place: KeyPlace,
    ) -> bool {
        self.state.parts.waits.may_wait() && !self.is_last_try && self.is_to_wait(spec, words, place)
    }

    #[cold]
    fn is_to_wait(&self, spec: &CommandSpec, words: CommandWords<'_>, place: KeyPlace) -> bool {
        let waits =
            |part: Option<&std::sync::Arc<ServedPart>>| part.is_some_and(|part| part.store.commits_wait());
        let served = |part: PartId| self.parts.index(part).and_then(|index| self.parts.served.get(index));
        let of_key = |key: &[u8]| {
            let cluster = self.parts.cluster.as_ref()?;
            served(cluster.part_of([key].into_iter()).ok()??.1)
        };
        match (spec.name, place) {
            // What is queued is done with EXEC.
            (name, _) if self.queue.is_some() && name != "exec" => false,
            ("exec", _) => self.writes_queued() && self.transaction_keys().any(|key| waits(of_key(key))),
            // A transaction over several parts locks what it only reads.
            (_, KeyPlace::Apart) => spec.keys(words).any(|key| waits(of_key(key))),
            _ if !spec.writes() => false,
            _ if spec.is_whole() => self.has_waiting_part(),
            (_, KeyPlace::Here(part)) => waits(self.parts.served.get(part)),
        }
    }

    fn writes_queued(&self) -> bool {
        let apart = || matches!(self.exec_place(), Ok(KeyPlace::Apart));
        self.queue
            .as_ref()
            .is_some_and(|queue| queue.commands.iter().any(|(spec, _)| spec.writes()) || apart())
    }
}

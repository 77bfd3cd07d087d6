//! How connections are spread over the workers: over as few of them as can serve them.
//!
//! A thread that serves many connections finds requests of several of them each time it wakes up, so each request costs
//! less than with many threads that wake up for one request each. So all connections start at the first worker. A worker that
//! uses nearly a whole core hands half of its connections to an idle one, and two workers that have little to do become one
//! again. Processor time is measured, not time on the clock: where other programs leave the server no second core, a
//! second worker would not help.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::limits::{BALANCE_INTERVAL, GATHERED_BUSY_PERCENT, SPREAD_BUSY_PERCENT};
use crate::worker::WorkerPost;

/// The load of a worker: its connections, and the percentage of a core that it used lately.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WorkerLoad {
    pub(crate) connections: usize,
    pub(crate) busy_percent: usize,
}

/// Connections that a worker hands to another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct HandOver {
    pub(crate) to: usize,
    pub(crate) connections: usize,
}

/// Returns the worker for a new connection: the one with the fewest, if the server spreads them.
pub(crate) fn worker_for_new(loads: &[WorkerLoad], spreads: bool) -> usize {
    let has_time = |load: &WorkerLoad| !spreads && load.busy_percent < SPREAD_BUSY_PERCENT;
    let fewest = || (0..loads.len()).min_by_key(|index| loads[*index].connections);
    loads.iter().position(has_time).or_else(fewest).unwrap_or(0)
}

/// Returns what the worker `own` should hand over.
pub(crate) fn next_hand_over(own: usize, loads: &[WorkerLoad]) -> Option<HandOver> {
    let WorkerLoad { connections, busy_percent } = *loads.get(own)?;
    if busy_percent >= SPREAD_BUSY_PERCENT {
        let others = (0..loads.len()).filter(|index| *index != own);
        let to = others.min_by_key(|index| loads[*index].busy_percent)?;
        let is_worth_it = connections > 1 && loads[to].busy_percent <= busy_percent / 2;
        return is_worth_it.then_some(HandOver { to, connections: connections / 2 });
    }
    let has_room = |load: &WorkerLoad| load.busy_percent + busy_percent <= GATHERED_BUSY_PERCENT;
    let to = loads[..own].iter().position(has_room)?;
    (connections > 0).then_some(HandOver { to, connections })
}

/// Measures how busy a worker is. It belongs to the worker's thread.
#[derive(Debug)]
pub(crate) struct BusyMeter {
    since: Instant,
    used: Duration,
}

impl BusyMeter {
    /// Begins to measure the calling thread.
    pub(crate) fn begin(now: Instant) -> Self {
        Self { since: now, used: thread_time() }
    }

    /// Returns the percentage of a core that the thread has used since the last measurement, if that is long enough ago.
    pub(crate) fn measure(&mut self, now: Instant) -> Option<usize> {
        let elapsed = now.saturating_duration_since(self.since);
        if elapsed < BALANCE_INTERVAL {
            return None;
        }
        let used = thread_time();
        let percent = 100 * used.saturating_sub(self.used).as_nanos() / elapsed.as_nanos();
        *self = Self { since: now, used };
        Some(percent as usize)
    }
}

/// Returns the time that the calling thread has had a core.
fn thread_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Returns the loads of all workers.
pub(crate) fn loads(posts: &[Arc<WorkerPost>]) -> Vec<WorkerLoad> {
    let load = |post: &Arc<WorkerPost>| {
        let connections = post.connections.load(Ordering::Relaxed);
        // A worker without connections sleeps, and has not measured itself again.
        let busy_percent = if connections == 0 { 0 } else { post.busy_percent.load(Ordering::Relaxed) };
        WorkerLoad { connections, busy_percent }
    };
    posts.iter().map(load).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads<const N: usize>(of: [(usize, usize); N]) -> [WorkerLoad; N] {
        of.map(|(connections, busy_percent)| WorkerLoad { connections, busy_percent })
    }

    #[test]
    fn new_connections_gather_at_the_first_worker_that_has_time() {
        assert_eq!(worker_for_new(&loads([(20, 50), (0, 0)]), false), 0);
        assert_eq!(worker_for_new(&loads([(20, 99), (0, 0)]), false), 1);
        assert_eq!(worker_for_new(&loads([(20, 99), (9, 98)]), false), 1);
        assert_eq!(worker_for_new(&loads([(3, 99), (9, 98)]), false), 0);
        assert_eq!(worker_for_new(&loads([(3, 0), (2, 0)]), true), 1);
    }

    #[test]
    fn a_worker_without_time_gives_half_of_its_connections_to_an_idle_one() {
        let half = Some(HandOver { to: 2, connections: 10 });
        assert_eq!(next_hand_over(0, &loads([(20, 99), (5, 40), (0, 0)])), half);
        assert_eq!(next_hand_over(0, &loads([(20, 50), (0, 0)])), None, "it has time");
        assert_eq!(next_hand_over(0, &loads([(1, 99), (0, 0)])), None, "there is no half of one");
        assert_eq!(next_hand_over(0, &loads([(20, 99), (20, 60)])), None, "the other one is busy, too");
        assert_eq!(next_hand_over(0, &loads([(20, 99)])), None, "there is no other one");
    }

    #[test]
    fn workers_with_little_to_do_become_one_and_busy_ones_stay_apart() {
        let all = Some(HandOver { to: 0, connections: 7 });
        assert_eq!(next_hand_over(1, &loads([(20, 30), (7, 10)])), all);
        assert_eq!(next_hand_over(1, &loads([(20, 50), (7, 49)])), None);
        assert_eq!(next_hand_over(0, &loads([(20, 1), (7, 1)])), None, "one of the two moves, not both");
        assert_eq!(next_hand_over(1, &loads([(20, 1), (0, 0)])), None, "there is nothing to hand over");
    }

    #[test]
    fn hand_overs_come_to_an_end() {
        // One connection takes a whole core, the others nothing.
        let mut connections = [16, 0];
        let mut steps = 0;
        while let Some(next) = next_hand_over(0, &loads([(connections[0], 100), (connections[1], 1)])) {
            connections[0] -= next.connections;
            connections[1] += next.connections;
            steps += 1;
            assert_eq!(next_hand_over(1, &loads([(connections[0], 100), (connections[1], 1)])), None);
        }
        assert_eq!((connections, steps), ([1, 15], 4));
    }
}

//! What a worker does when there is nothing to do.

use std::sync::atomic::Ordering;

use caravan_ring::Turn;
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{LinkEnd, Worker, WorkerExit, now_ns};
use crate::error::{Error, corrupt};
use crate::layout::{SharedWords, WorkerStage, worker};
use crate::limits::STARVED_NS;

/// Looks in vain after which a spinning worker lets others have the core between two looks.
const LOOKS_ALONE: u32 = 64;

impl Worker<'_> {
    /// Lets some time pass: little, if that has lately paid off; else until something comes.
    pub(super) fn rest(&mut self) -> Result<(), WorkerExit> {
        self.idle_looks += 1;
        if self.idle_looks < LOOKS_ALONE {
            std::hint::spin_loop();
            return Ok(());
        }
        match self.spin.nothing(self.now_ns) {
            Turn::Spin => std::thread::yield_now(),
            Turn::Sleep => {
                self.stage(WorkerStage::Idle);
                let sleeps = self.fall_asleep().map_err(WorkerExit::Broken)?;
                if sleeps {
                    SharedWords::add(self.shared.worker(self.id, worker::SLEEPS), 1);
                    // Packets come without a breath, too: granted, or left by a process that crashed.
                    let free = self.shared.worker(self.id, worker::FREE);
                    free.store(self.pool.length() as u64, Ordering::Relaxed);
                    self.wait()?;
                }
                self.wake();
                self.now_ns = now_ns();
                if sleeps {
                    self.spin.woken(self.now_ns);
                }
            }
        }
        Ok(())
    }

    /// Tells all other sides that this one is about to wait. False if one of them has something.
    fn fall_asleep(&mut self) -> Result<bool, Error> {
        let free = self.pool.length();
        for (link, queue) in self.links.iter_mut().zip(&self.queues) {
            let sleeps = match &mut link.end {
                LinkEnd::Local => Ok(true),
                LinkEnd::Producer(end) => end.sleep(queue.length(), free == 0),
                // What waits here is the app's affair: if it does not take it, it waits for others.
                LinkEnd::Consumer(end) if queue.room() > 0 => end.sleep(free),
                LinkEnd::Consumer(_) => Ok(true),
            };
            if !sleeps.map_err(corrupt(link.plan.id))? {
                return Ok(false);
            }
        }
        // The supervisor writes these before it rings.
        let word = |offset| self.shared.worker(self.id, offset).load(Ordering::Acquire);
        Ok(word(worker::ORDERS) == self.orders_seen && word(worker::GRANTS) == self.grants_seen)
    }

    /// Sleeps until the bell rings, a device of an app has something, or an app's time has come.
    fn wait(&mut self) -> Result<(), WorkerExit> {
        let due = self.apps.iter().filter_map(|slot| slot.app.wake_ns());
        // Who has asked for packets is woken when they are there.
        let asked = self.shared.worker(self.id, worker::WANTED).load(Ordering::Relaxed) > 0;
        let starved = self.starved_since.filter(|_| !asked).map(|since| since + STARVED_NS);
        let due = due.chain(starved).min();
        let left = due.map(|due| {
            let ns = due.saturating_sub(now_ns());
            Timespec { tv_sec: (ns / 1_000_000_000) as i64, tv_nsec: (ns % 1_000_000_000) as i64 }
        });
        let bell = self.bells.worker(self.id);
        let mut set = vec![PollFd::new(bell, PollFlags::IN), PollFd::new(&self.channel, PollFlags::IN)];
        let devices: Vec<_> = self.apps.iter().flat_map(|slot| slot.app.descriptors()).collect();
        set.extend(devices.iter().map(|device| PollFd::new(device, PollFlags::IN)));
        // Interrupted: as good as woken.
        let _ = rustix::event::poll(&mut set, left.as_ref());
        let gone = set[1].revents().contains(PollFlags::HUP);
        bell.hush();
        if gone { Err(WorkerExit::Alone) } else { Ok(()) }
    }

    fn wake(&mut self) {
        for link in &mut self.links {
            match &mut link.end {
                LinkEnd::Local => {}
                LinkEnd::Producer(end) => end.wake(),
                LinkEnd::Consumer(end) => end.wake(),
            }
        }
    }
}

//! An end of shared memory whose peer's memory is not mapped: a link over it works as over RDMA, without a device.

use std::os::fd::BorrowedFd;

use caravan_fabric::Error;
use caravan_fabric::contract::{Armed, Capabilities, Endpoint, Event, Operation, Provider};
use caravan_fabric::shm::ShmEndpoint;
use caravan_segment::SharedSlice;

#[derive(Debug)]
pub struct Unmapped(pub ShmEndpoint);

impl Endpoint for Unmapped {
    fn provider(&self) -> Provider {
        self.0.provider()
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.0.capabilities();
        capabilities.mapped = false;
        capabilities
    }

    fn arena(&self) -> &SharedSlice {
        self.0.arena()
    }

    fn peer_arena_bytes(&self) -> u64 {
        self.0.peer_arena_bytes()
    }

    fn peer_arena(&self) -> Option<&SharedSlice> {
        None
    }

    fn post(&mut self, operation: Operation) -> Result<(), Error> {
        self.0.post(operation)
    }

    fn doorbell(&mut self) -> Result<(), Error> {
        self.0.doorbell()
    }

    fn flush(&mut self) -> Result<(), Error> {
        self.0.flush()
    }

    fn poll(&mut self, events: &mut Vec<Event>, limit: usize) -> Result<usize, Error> {
        self.0.poll(events, limit)
    }

    fn arm(&mut self) -> Result<Armed, Error> {
        self.0.arm()
    }

    fn wait_fd(&self) -> Option<BorrowedFd<'_>> {
        self.0.wait_fd()
    }

    fn acknowledge(&mut self) -> Result<(), Error> {
        self.0.acknowledge()
    }

    fn wake_peer(&mut self) -> Result<(), Error> {
        self.0.wake_peer()
    }

    fn check_peer(&mut self) -> Result<(), Error> {
        self.0.check_peer()
    }
}

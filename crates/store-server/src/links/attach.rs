//! How a connection becomes a link: the server's side of `caravan_store::connected`'s table. Blocks, for a limited time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use caravan_fabric::Link;
use caravan_fabric::contract::Provider;
use caravan_segment::passing::{self, DoorwayAddress};
use caravan_store::calls::CallService;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{RecvFlags, SendFlags, getsockname, recv, send};

use super::client::LinkClient;
use crate::limits;
use crate::state::{ClientEntry, ServerState};

/// What a client says with CARAVAN.ATTACH.
#[derive(Debug)]
pub(crate) struct AttachRequest {
    /// Where the client wants a descriptor of the memory, if it is a process of this host.
    pub(crate) door: Option<DoorwayAddress>,
}

/// A connection that is to become a link.
#[derive(Debug)]
pub(crate) struct LinkAttachment {
    pub(crate) socket: OwnedFd,
    pub(crate) request: AttachRequest,
    pub(crate) entry: ClientEntry,
}

impl LinkAttachment {
    /// Refuses, without waiting for a client that does not read.
    pub(crate) fn refuse(self, text: &str) {
        let _ =
            send(&self.socket, format!("-{text}\r\n").as_bytes(), SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Makes the link; an error is a sentence for the operator.
    pub(crate) fn run(self, state: &Arc<ServerState>) -> Result<LinkClient, String> {
        let Self { socket, request, mut entry } = self;
        let name = format!("client {} ({})", entry.card.id, entry.card.address);
        let mut channel = BlockingChannel(socket);
        let link = accept(&mut channel, &request, state)
            .map_err(|error| format!("{name} did not attach: {error}"))?;
        entry.become_link(request.door.is_some());
        Ok(LinkClient::new(
            link,
            channel.0,
            CallService::new(Arc::clone(&state.store), Arc::clone(&state.sessions)),
            entry,
        ))
    }
}

fn accept(
    channel: &mut BlockingChannel,
    request: &AttachRequest,
    state: &ServerState,
) -> Result<Link, Box<dyn std::error::Error>> {
    channel.limit(limits::ATTACH_STEP)?;
    let providers = match &request.door {
        Some(door) => {
            let descriptor = state.store.reader_descriptor()?;
            if let Err(error) = passing::send(door, b"", &[descriptor.as_fd()]) {
                channel.write_all(format!("-ERR no memory can be handed over: {error}\r\n").as_bytes())?;
                return Err(error.into());
            }
            &[Provider::Shm][..]
        }
        None => &[Provider::Rdma, Provider::Tcp],
    };
    let greeting = state.store.greeting();
    let mut answer = format!("${}\r\n", greeting.len()).into_bytes();
    answer.extend_from_slice(&greeting);
    answer.extend_from_slice(b"\r\n");
    channel.write_all(&answer)?;
    // The client comes in once more, by the address by which it has come, and by no other one.
    let address = getsockname(&channel.0).ok().and_then(|address| SocketAddr::try_from(address).ok());
    let at = address.map(|address| address.ip().to_canonical()).filter(|address| !needs_device(address));
    Ok(Link::accept_on(channel, providers, caravan_store::limits::RING_BYTES, at)?)
}

/// Returns whether an address is one of several devices, so that it alone does not say where to listen.
fn needs_device(address: &IpAddr) -> bool {
    matches!(address, IpAddr::V6(address) if address.is_unicast_link_local())
}

/// A connection whose reads and writes wait, for a limited time.
struct BlockingChannel(OwnedFd);

impl BlockingChannel {
    fn limit(&self, limit: std::time::Duration) -> io::Result<()> {
        rustix::io::ioctl_fionbio(&self.0, false)?;
        set_socket_timeout(&self.0, Timeout::Recv, Some(limit))?;
        Ok(set_socket_timeout(&self.0, Timeout::Send, Some(limit))?)
    }
}

impl Read for BlockingChannel {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        Ok(recv(&self.0, to, RecvFlags::empty()).map(|(bytes, _)| bytes)?)
    }
}

impl Write for BlockingChannel {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        Ok(send(&self.0, from, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

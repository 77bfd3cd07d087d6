//! The connection manager, for iWARP devices, which make connections in no other way. `unsafe`:
//! calls of librdmacm.

#![allow(unsafe_code, reason = "calls into librdmacm")]

use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::time::Duration;

use super::abi::*;
use super::device::{Context, ReadDepths, nonblocking};
use super::fault::ENDED;
use super::library::{self, Connections};
use super::obstacle::Obstacle;
use crate::contract::Error;

/// An end of a connection, or a listener, with a channel of its own for events.
#[derive(Debug)]
pub struct Id {
    raw: NonNull<rdma_cm_id>,
    channel: Arc<EventChannel>,
}

#[derive(Debug)]
struct EventChannel {
    raw: NonNull<rdma_event_channel>,
    calls: &'static Connections,
}

/// An event of an [`Id`].
#[derive(Debug)]
pub enum CmEvent {
    /// The requested step is done.
    Done,
    /// A peer asks a listener for a connection.
    Request {
        /// The connection's end on this side.
        id: Id,
        /// The bytes that the peer sent with its request.
        hello: Vec<u8>,
    },
    /// The connection is up.
    Established,
    /// The connection has ended, or could not be made.
    Ended(&'static str),
}

impl CmEvent {
    /// Refuses the connection, if the event is a request. True if it is.
    pub fn reject(self) -> bool {
        let Self::Request { id, .. } = self else { return false };
        // SAFETY: the id is of a request that has not been answered.
        unsafe { (id.channel.calls.rdma_reject)(id.raw.as_ptr(), ptr::null(), 0) };
        true
    }
}

// SAFETY: any thread may use librdmacm's objects; its calls lock what they share.
unsafe impl Send for Id {}
// SAFETY: any thread may use librdmacm's objects; its calls lock what they share.
unsafe impl Send for EventChannel {}
// SAFETY: librdmacm's calls lock what they share.
unsafe impl Sync for EventChannel {}

impl Id {
    /// Makes an end at this side's address `ip`, which determines the device. The kernel chooses the port,
    /// which a listener needs.
    pub fn bind(ip: IpAddr) -> Result<Self, Error> {
        let calls = library::connections().map_err(|why| Obstacle::NoLibrary { why })?;
        // SAFETY: the call makes a channel or returns null.
        let channel = unsafe { (calls.rdma_create_event_channel)() };
        let channel = NonNull::new(channel).ok_or_else(|| failed("rdma_create_event_channel"))?;
        let channel = Arc::new(EventChannel { raw: channel, calls });
        nonblocking(channel.descriptor());
        let mut raw = ptr::null_mut();
        // SAFETY: the channel is open; `raw` is filled in on success.
        let code =
            unsafe { (calls.rdma_create_id)(channel.raw.as_ptr(), &mut raw, ptr::null_mut(), RDMA_PS_TCP) };
        let raw = NonNull::new(raw).filter(|_| code == 0).ok_or_else(|| failed("rdma_create_id"))?;
        let id = Self { raw, channel };
        let mut address = socket_address(SocketAddr::new(ip, 0));
        // SAFETY: the id is open, and the address complete.
        id.check("rdma_bind_addr", unsafe { (calls.rdma_bind_addr)(id.raw.as_ptr(), &mut address) })?;
        Ok(id)
    }

    /// Returns the device at the address of this end. It must not be used after `self`.
    pub fn context(&self) -> Result<Context, Error> {
        // SAFETY: the id is open.
        let raw = NonNull::new(unsafe { (*self.raw.as_ptr()).verbs }).ok_or(Obstacle::NoDevice)?;
        let verbs = library::verbs().map_err(|why| Obstacle::NoLibrary { why })?;
        // SAFETY: librdmacm keeps the device open for as long as there is an id on it; whoever holds
        // the context holds the id, too, and ends it last.
        Ok(unsafe { Context::borrow(verbs, raw) }?)
    }

    /// Starts to listen, and returns the port that callers must name.
    pub fn listen(&self) -> Result<u16, Error> {
        let calls = self.channel.calls;
        // SAFETY: the id is open and has an address.
        self.check("rdma_listen", unsafe { (calls.rdma_listen)(self.raw.as_ptr(), 4) })?;
        // SAFETY: as above.
        Ok(u16::from_be(unsafe { (calls.rdma_get_src_port)(self.raw.as_ptr()) }))
    }

    /// Looks for the address of a listener, for `limit` at most. [`CmEvent::Done`] says that it has been found.
    pub fn resolve_address(&self, to: SocketAddr, limit: Duration) -> Result<(), Error> {
        let calls = self.channel.calls;
        let mut address = socket_address(to);
        // SAFETY: the id is open and bound, and the address complete.
        self.check("rdma_resolve_addr", unsafe {
            (calls.rdma_resolve_addr)(self.raw.as_ptr(), ptr::null_mut(), &mut address, milliseconds(limit))
        })
    }

    /// Looks for the route to the address that was found, for `limit` at most. [`CmEvent::Done`] says that
    /// it has been found.
    pub fn resolve_route(&self, limit: Duration) -> Result<(), Error> {
        let calls = self.channel.calls;
        // SAFETY: the id is open, and its address resolved.
        self.check("rdma_resolve_route", unsafe {
            (calls.rdma_resolve_route)(self.raw.as_ptr(), milliseconds(limit))
        })
    }

    /// Asks a listener for a connection; `hello` proves who the caller is.
    pub fn connect(&self, hello: &[u8], reads: ReadDepths) -> Result<(), Error> {
        let mut parameters = parameters(hello, reads);
        // SAFETY: the id is open, resolved, and has a queue pair; the library copies `hello`.
        self.check("rdma_connect", unsafe {
            (self.channel.calls.rdma_connect)(self.raw.as_ptr(), &mut parameters)
        })
    }

    /// Accepts the requested connection; the queue pair must have its receives by then.
    pub fn accept(&self, reads: ReadDepths) -> Result<(), Error> {
        let mut parameters = parameters(&[], reads);
        // SAFETY: the id is of a request, and has a queue pair.
        self.check("rdma_accept", unsafe {
            (self.channel.calls.rdma_accept)(self.raw.as_ptr(), &mut parameters)
        })
    }

    /// Makes a queue pair on this id.
    pub(super) fn make_queue_pair(
        &self,
        domain: *mut ibv_pd,
        wanted: &mut ibv_qp_init_attr,
    ) -> Option<NonNull<ibv_qp>> {
        // SAFETY: the id is open and knows its device; the domain is one of that device's.
        let code = unsafe { (self.channel.calls.rdma_create_qp)(self.raw.as_ptr(), domain, wanted) };
        if code != 0 {
            return None;
        }
        // SAFETY: the call above made the queue pair.
        NonNull::new(unsafe { (*self.raw.as_ptr()).qp })
    }

    /// Ends the connection, and then the queue pair on this id.
    pub(super) fn end_queue_pair(&self) -> bool {
        // SAFETY: the id is open, and its queue pair is used by nothing after this. The connection
        // may have ended before, which does no harm.
        unsafe {
            (self.channel.calls.rdma_disconnect)(self.raw.as_ptr());
            (self.channel.calls.rdma_destroy_qp)(self.raw.as_ptr());
        }
        true
    }

    /// Returns the next event, if there is one.
    pub fn poll(&self) -> Result<Option<CmEvent>, Error> {
        let calls = self.channel.calls;
        let mut event = ptr::null_mut();
        // SAFETY: the channel is open, and its descriptor does not block.
        if unsafe { (calls.rdma_get_cm_event)(self.channel.raw.as_ptr(), &mut event) } != 0 {
            let error = std::io::Error::last_os_error();
            return match error.kind() {
                std::io::ErrorKind::WouldBlock | std::io::ErrorKind::Interrupted => Ok(None),
                _ => Err(Error::System { call: "rdma_get_cm_event", source: error }),
            };
        }
        // SAFETY: the event is not acknowledged yet.
        let happened = unsafe { self.read(&*event) };
        // SAFETY: as above; this ends the event.
        unsafe { (calls.rdma_ack_cm_event)(event) };
        Ok(Some(happened))
    }

    /// # Safety
    /// The event has not been acknowledged.
    unsafe fn read(&self, event: &rdma_cm_event) -> CmEvent {
        match event.event {
            RDMA_CM_EVENT_ADDR_RESOLVED | RDMA_CM_EVENT_ROUTE_RESOLVED => CmEvent::Done,
            RDMA_CM_EVENT_ESTABLISHED => CmEvent::Established,
            RDMA_CM_EVENT_DISCONNECTED => CmEvent::Ended(ENDED),
            RDMA_CM_EVENT_CONNECT_REQUEST => {
                let said = &event.conn;
                let bytes = if said.private_data.is_null() {
                    Vec::new()
                } else {
                    // SAFETY: the event holds as many bytes there until it is acknowledged.
                    unsafe {
                        std::slice::from_raw_parts(
                            said.private_data.cast::<u8>(),
                            said.private_data_len.into(),
                        )
                    }
                    .to_vec()
                };
                match NonNull::new(event.id) {
                    // The request's events come through the listener's channel, which this id keeps open.
                    Some(raw) => {
                        let id = Id { raw, channel: Arc::clone(&self.channel) };
                        CmEvent::Request { id, hello: bytes }
                    }
                    None => CmEvent::Ended("a request without an end"),
                }
            }
            other => {
                // SAFETY: the text is in the library's own table.
                CmEvent::Ended(unsafe { library::static_text((self.channel.calls.rdma_event_str)(other)) })
            }
        }
    }

    /// Returns a descriptor that becomes readable with an event.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.channel.descriptor()
    }

    fn check(&self, call: &'static str, code: c_int) -> Result<(), Error> {
        if code == 0 { Ok(()) } else { Err(failed(call)) }
    }
}

impl EventChannel {
    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel is open for as long as `self` is.
        unsafe { BorrowedFd::borrow_raw((*self.raw.as_ptr()).fd) }
    }
}

impl Drop for Id {
    fn drop(&mut self) {
        // SAFETY: the id's queue pair, if it had one, has been ended; every event of the id is acknowledged.
        unsafe { (self.channel.calls.rdma_destroy_id)(self.raw.as_ptr()) };
    }
}

impl Drop for EventChannel {
    fn drop(&mut self) {
        // SAFETY: every id on the channel holds a reference to it, so none is left.
        unsafe { (self.calls.rdma_destroy_event_channel)(self.raw.as_ptr()) };
    }
}

fn failed(call: &'static str) -> Error {
    Error::System { call, source: std::io::Error::last_os_error() }
}

fn milliseconds(limit: Duration) -> c_int {
    c_int::try_from(limit.as_millis().max(1)).unwrap_or(c_int::MAX)
}

fn parameters(hello: &[u8], reads: ReadDepths) -> rdma_conn_param {
    rdma_conn_param {
        private_data: if hello.is_empty() { ptr::null() } else { hello.as_ptr().cast() },
        private_data_len: u8::try_from(hello.len()).unwrap_or(u8::MAX),
        responder_resources: reads.responder,
        initiator_depth: reads.initiator,
        flow_control: 0,
        retry_count: super::limits::RETRIES,
        rnr_retry_count: super::limits::RECEIVER_NOT_READY_RETRIES,
        srq: 0,
        qp_num: 0,
    }
}

/// Returns the address as `struct sockaddr_in` or `sockaddr_in6` (ip(7), ipv6(7)).
fn socket_address(address: SocketAddr) -> sockaddr {
    let mut raw = sockaddr::default();
    let bytes = &mut raw.bytes;
    bytes[2..4].copy_from_slice(&address.port().to_be_bytes());
    match address {
        SocketAddr::V4(v4) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET as u16).to_ne_bytes());
            bytes[4..8].copy_from_slice(&v4.ip().octets());
        }
        SocketAddr::V6(v6) => {
            bytes[..2].copy_from_slice(&(libc::AF_INET6 as u16).to_ne_bytes());
            bytes[8..24].copy_from_slice(&v6.ip().octets());
            bytes[24..28].copy_from_slice(&v6.scope_id().to_ne_bytes());
        }
    }
    raw
}

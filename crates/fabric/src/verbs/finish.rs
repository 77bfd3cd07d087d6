//! From two halves to a connection. Nobody waits here longer than it likes: what has not come by then is
//! waited for in the next call, so that one thread can see to many connections, and no two sides must
//! wait for each other at the same time.
//!
//! | stage | whose | left when |
//! |---|---|---|
//! | requested | initiating | it has the answer: connects and greets, or has the manager look for the peer |
//! | resolving | initiating, iWARP | the manager has found the address, and then the way there: asks it to connect |
//! | asking | initiating, iWARP | the manager says that it is connected: greets |
//! | listening | accepting, iWARP | one came that knows the nonce: accepts it |
//! | accepted | accepting, iWARP | the manager says that it is connected |
//! | connected | accepting | it has been greeted: greets |
//! | greeted | both | it has been greeted, and its own greeting has arrived |

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::cm::{Happened, Id};
use super::connect::{Pending, endpoint, path, protocol, reads};
use super::device::Fabric;
use super::endpoint::VerbsEndpoint;
use super::limits::*;
use super::message::{self, Half, Port};
use super::obstacle::Obstacle;
use super::quirks::Quirk;
use super::resources::Resources;
use super::wait::readable;
use crate::contract::{Armed, Endpoint, Error, Provider};

/// How long the binding of a memory window, which leaves no device, may take.
const BINDING_LIMIT: Duration = Duration::from_secs(1);
/// When the initiating side greets again, in milliseconds after the first time, where that may have been
/// missed. Each takes a receive of those in reserve.
const GREET_AGAIN_MS: [u64; 2] = [100, 500];

/// See the top of the file.
#[derive(Debug)]
pub(super) enum Stage {
    Requested(Resources, Half),
    /// Its half, the peer's, what the peer wants to hear, and whether the address has been found.
    Resolving(Resources, Half, Half, ([u8; 16], bool)),
    /// Its half, and the peer's.
    Asking(Resources, Half, Half),
    /// The same, what the peer must say, and how many said something else.
    Listening(Resources, Half, Half, ([u8; 16], u32)),
    Accepted(Resources, Half, Half),
    Connected(VerbsEndpoint),
    /// And when to greet again.
    Greeted(VerbsEndpoint, Vec<Instant>),
}

/// What has become of half a connection.
#[derive(Debug)]
pub enum Progress {
    /// A whole one.
    Connected(Box<dyn Endpoint>),
    /// The peer's device has not answered yet.
    Waiting(Pending),
}

impl Pending {
    /// The initiating side passes what the accepting side said last, the accepting side nothing.
    /// Blocks until the peer's device has answered, for `limit` at most.
    pub fn finish(self, answer: &[u8], limit: Duration) -> Result<Box<dyn Endpoint>, Error> {
        match self.advance(answer, limit, Instant::now() + limit)? {
            Progress::Connected(endpoint) => Ok(endpoint),
            Progress::Waiting(pending) => Err(pending.unanswered(limit)),
        }
    }

    /// The same, but blocks until `pause` at most, and may be called again. That the peer has been
    /// waited for as long as `limit` is for the caller to see; it is said in errors.
    pub fn advance(self, answer: &[u8], limit: Duration, pause: Instant) -> Result<Progress, Error> {
        let mut stage = *self.stage;
        loop {
            let port = stage.port().clone();
            stage = match stage.step(answer, limit, pause).map_err(|error| unreached(error, &port, limit))? {
                Step::To(next) => next,
                Step::Wait(stage) => return Ok(Progress::Waiting(Pending { stage: Box::new(stage) })),
                Step::Over(endpoint) => return Ok(Progress::Connected(Box::new(endpoint))),
            };
        }
    }

    /// That it has not been answered for as long as `limit`.
    pub fn unanswered(&self, limit: Duration) -> Error {
        no_answer(self.stage.port(), limit)
    }
}

impl Stage {
    fn port(&self) -> &Port {
        match self {
            Self::Requested(_, half)
            | Self::Resolving(_, half, ..)
            | Self::Asking(_, half, _)
            | Self::Listening(_, half, ..)
            | Self::Accepted(_, half, _) => &half.port,
            Self::Connected(endpoint) | Self::Greeted(endpoint, _) => endpoint.port(),
        }
    }

    fn step(self, answer: &[u8], limit: Duration, pause: Instant) -> Result<Step, Error> {
        match self {
            Self::Requested(mut resources, half) => {
                let (peer, listener, nonce) = message::parse_answer(answer)?;
                if peer.port.fabric != half.port.fabric {
                    return Err(protocol("it answered with a port of another kind"));
                }
                if half.port.fabric == Fabric::Iwarp {
                    let to = SocketAddr::new(peer.port.ip(), listener);
                    manager(&resources)?.resolve_address(to, limit)?;
                    return Ok(Step::To(Self::Resolving(resources, half, peer, (nonce, false))));
                }
                resources.connect(&path(&half, &peer))?;
                greet(endpoint(resources, &half, &peer)?)
            }
            Self::Resolving(resources, half, peer, (nonce, found)) => match event(&resources, pause)? {
                None => Ok(Step::Wait(Self::Resolving(resources, half, peer, (nonce, found)))),
                Some(Happened::Done) => resolved(resources, (half, peer), (nonce, found), limit),
                Some(Happened::Established | Happened::Request(..) | Happened::Ended(_)) => {
                    Err(protocol("its connection manager is out of turn"))
                }
            },
            Self::Asking(resources, half, peer) => match event(&resources, pause)? {
                None => Ok(Step::Wait(Self::Asking(resources, half, peer))),
                Some(Happened::Established) => greet(endpoint(resources, &half, &peer)?),
                Some(Happened::Done | Happened::Request(..) | Happened::Ended(_)) => {
                    Err(protocol("its connection manager is out of turn"))
                }
            },
            Self::Listening(mut resources, half, peer, (nonce, refused)) => match event(&resources, pause)? {
                None => Ok(Step::Wait(Self::Listening(resources, half, peer, (nonce, refused)))),
                Some(Happened::Request(caller, said)) if said.starts_with(&nonce) => {
                    serve(&mut resources, (&half, &peer), caller)?;
                    Ok(Step::To(Self::Accepted(resources, half, peer)))
                }
                Some(Happened::Request(..)) if refused + 1 == REFUSALS_MAX => {
                    Err(protocol("too many strangers asked for its connection"))
                }
                Some(Happened::Request(stranger, _)) => {
                    stranger.reject();
                    Ok(Step::To(Self::Listening(resources, half, peer, (nonce, refused + 1))))
                }
                Some(_) => Ok(Step::To(Self::Listening(resources, half, peer, (nonce, refused)))),
            },
            Self::Accepted(resources, half, peer) => match event(&resources, pause)? {
                None => Ok(Step::Wait(Self::Accepted(resources, half, peer))),
                Some(Happened::Established) => {
                    Ok(Step::To(Self::Connected(endpoint(resources, &half, &peer)?)))
                }
                Some(Happened::Request(stranger, _)) => {
                    stranger.reject();
                    Ok(Step::To(Self::Accepted(resources, half, peer)))
                }
                Some(_) => Ok(Step::To(Self::Accepted(resources, half, peer))),
            },
            Self::Connected(mut endpoint) => {
                if !settle(&mut endpoint, (true, false), pause)? {
                    return Ok(Step::Wait(Self::Connected(endpoint)));
                }
                endpoint.greet()?;
                Ok(Step::To(Self::Greeted(endpoint, Vec::new())))
            }
            Self::Greeted(mut endpoint, mut again) => {
                let due = again.first().copied();
                if settle(&mut endpoint, (true, true), due.map_or(pause, |due| due.min(pause)))? {
                    return Ok(Step::Over(endpoint));
                }
                if due.is_some_and(|due| Instant::now() >= due) {
                    again.remove(0);
                    endpoint.greet()?;
                    return Ok(Step::To(Self::Greeted(endpoint, again)));
                }
                Ok(Step::Wait(Self::Greeted(endpoint, again)))
            }
        }
    }
}

/// What follows a stage.
enum Step {
    To(Stage),
    /// Itself: what it waits for has not come.
    Wait(Stage),
    Over(VerbsEndpoint),
}

/// The initiating side is connected.
fn greet(mut endpoint: VerbsEndpoint) -> Result<Step, Error> {
    bind(&mut endpoint)?;
    endpoint.greet()?;
    let again = match endpoint.resources().context().has(Quirk::MissesFirstWord) {
        true => GREET_AGAIN_MS.map(|after| Instant::now() + Duration::from_millis(after)).to_vec(),
        false => Vec::new(),
    };
    Ok(Step::To(Stage::Greeted(endpoint, again)))
}

/// Makes the peer's key valid, where it is a window's.
pub(super) fn bind(endpoint: &mut VerbsEndpoint) -> Result<(), Error> {
    if endpoint.resources().has_window() {
        endpoint.bind()?;
        if !settle(endpoint, (false, true), Instant::now() + BINDING_LIMIT)? {
            return Err(no_answer(endpoint.port(), BINDING_LIMIT));
        }
    }
    Ok(())
}

/// Waits until the peer has greeted, and until all of this side's work has completed, as asked. False if
/// that has not come until `pause`.
fn settle(
    endpoint: &mut VerbsEndpoint,
    (greeted, completed): (bool, bool),
    pause: Instant,
) -> Result<bool, Error> {
    loop {
        // Armed before the look: what comes after it makes an event, and what came before is seen.
        let armed = endpoint.arm()?;
        let state = endpoint.is_greeted()?;
        if (state.0 || !greeted) && (state.1 || !completed) {
            return Ok(true);
        }
        if Instant::now() >= pause {
            return Ok(false);
        }
        if armed == Armed::Wait {
            let waiting =
                [Some(endpoint.resources().wait_fd()), endpoint.resources().managed().map(Id::descriptor)];
            readable(&waiting.into_iter().flatten().collect::<Vec<_>>(), pause)?;
            endpoint.acknowledge()?;
            endpoint.check_manager()?;
        }
    }
}

/// The initiating side of a connection that the manager makes: the address has been found, or the way.
fn resolved(
    mut resources: Resources,
    (half, peer): (Half, Half),
    (nonce, found): ([u8; 16], bool),
    limit: Duration,
) -> Result<Step, Error> {
    if !found {
        manager(&resources)?.resolve_route(limit)?;
        return Ok(Step::To(Stage::Resolving(resources, half, peer, (nonce, true))));
    }
    resources.make_queue_pair()?;
    resources.post_receives(WINDOW + RECEIVE_RESERVE)?;
    let (ours, theirs) = reads(&half, &peer);
    manager(&resources)?.connect(&nonce, (theirs, ours))?;
    Ok(Step::To(Stage::Asking(resources, half, peer)))
}

/// The accepting side of it, with the one who knew the nonce.
fn serve(resources: &mut Resources, (half, peer): (&Half, &Half), caller: Id) -> Result<(), Error> {
    // Everything has been registered with the device that the listener is at.
    if caller.context()?.name() != resources.context().name() {
        return Err(protocol("it connected to another device than it chose"));
    }
    let _listener = resources.set_managed(caller);
    resources.make_queue_pair()?;
    resources.post_receives(WINDOW + RECEIVE_RESERVE)?;
    let (ours, theirs) = reads(half, peer);
    manager(resources)?.accept((theirs, ours))
}

/// What the connection manager says next, unless it says nothing until `pause`. An end is an error.
fn event(resources: &Resources, pause: Instant) -> Result<Option<Happened>, Error> {
    let id = manager(resources)?;
    loop {
        match id.poll()? {
            Some(Happened::Ended(why)) => return Err(Error::PeerGone(Provider::Rdma, why)),
            Some(happened) => return Ok(Some(happened)),
            None if Instant::now() >= pause => return Ok(None),
            None => readable(&[id.descriptor()], pause)?,
        };
    }
}

fn manager(resources: &Resources) -> Result<&Id, Error> {
    resources.managed().ok_or_else(|| resources.device_error("it has no connection manager".to_owned()))
}

/// While a connection is being made, a peer that is gone is one that has not been reached.
fn unreached(error: Error, port: &Port, limit: Duration) -> Error {
    use std::io::ErrorKind::{ConnectionRefused, HostUnreachable, NetworkUnreachable, TimedOut};
    match error {
        Error::PeerGone(..) => no_answer(port, limit),
        // siw connects within the call itself, for as long as `net.ipv4.tcp_syn_retries` takes.
        Error::System { call: "rdma_connect", source }
            if matches!(
                source.kind(),
                ConnectionRefused | HostUnreachable | NetworkUnreachable | TimedOut
            ) =>
        {
            no_answer(port, limit)
        }
        other => other,
    }
}

fn no_answer(port: &Port, limit: Duration) -> Error {
    let hint = match port.fabric {
        Fabric::Roce => "a firewall that drops UDP port 4791 is the usual cause",
        Fabric::Iwarp => "a firewall that drops TCP connections to ephemeral ports is the usual cause",
        Fabric::InfiniBand => "see whether `ibping` gets through, and whether a subnet manager runs",
    };
    Obstacle::NoAnswer { device: port.device.clone(), seconds: limit.as_secs(), hint }.into()
}

//! Addresses of this host, and those of names.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use caravan_fabric::verbs::own_addresses;

use crate::Error;
use crate::cancel::Cancel;
use crate::limits::ADDRESSES_MAX;

/// How often a wait for the resolver looks whether it was cancelled.
const GLANCE: Duration = Duration::from_millis(50);

/// Addresses of this host that another one may reach: up, not loopback, not link-local. Those from which
/// it reaches the world come first.
pub fn addresses() -> Result<Vec<IpAddr>, Error> {
    // Documentation's addresses (RFC 5737, RFC 3849) belong to nobody: they are reached by the way to
    // everybody. Nothing is sent.
    let everybody: [IpAddr; 2] =
        [Ipv4Addr::new(198, 51, 100, 1).into(), Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1).into()];
    let mut all: Vec<_> = everybody.into_iter().filter_map(source).collect();
    let own = own_addresses();
    all.retain(|address| own.contains(address));
    for address in own {
        if !all.contains(&address) {
            all.push(address);
        }
    }
    all.truncate(ADDRESSES_MAX);
    Ok(all)
}

/// The address from which this host sends to that one.
fn source(to: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Any port will do (discard).
    socket.connect((to, 9)).ok()?;
    Some(socket.local_addr().ok()?.ip())
}

/// Addresses of names, in their order; those that are found within `limit`.
pub fn resolve(names: &[(String, u16)], limit: Duration) -> Vec<SocketAddr> {
    Cancel::new()
        .and_then(|never| look_up(names, limit, &never))
        .map_or_else(|_| Vec::new(), |(found, _)| found)
}

/// Asks the system's resolver for all names at once: their addresses, in the order of the names, and a
/// sentence for each that has none. Those that take longer than `limit` have none.
pub fn look_up(
    names: &[(String, u16)],
    limit: Duration,
    cancel: &Cancel,
) -> Result<(Vec<SocketAddr>, Vec<String>), Error> {
    let names = names.get(..ADDRESSES_MAX).unwrap_or(names);
    let (answer, answers) = channel();
    for (at, (name, port)) in names.iter().enumerate() {
        let (answer, name, port) = (answer.clone(), name.clone(), *port);
        // getaddrinfo(3) takes as long as it likes; a thread that nobody waits for any more ends with it.
        let thread = thread::Builder::new().name("resolver".to_owned());
        let spawned = thread.spawn(move || {
            let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect::<Vec<_>>);
            let _ = answer.send((at, found));
        });
        spawned.map_err(|source| Error::System { call: "clone", source })?;
    }
    drop(answer);
    let until = Instant::now().checked_add(limit);
    let mut found: Vec<_> = names.iter().map(|_| None).collect();
    loop {
        let left = until.map_or(GLANCE, |until| until.saturating_duration_since(Instant::now()));
        match answers.recv_timeout(left.min(GLANCE)) {
            Ok((at, answer)) => found[at] = Some(answer),
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) if cancel.is_fired() => return Err(Error::Cancelled),
            Err(RecvTimeoutError::Timeout) if left.is_zero() => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
    }
    let (mut addresses, mut failures) = (Vec::new(), Vec::new());
    for ((name, _), found) in names.iter().zip(found) {
        match found {
            Some(Ok(found)) => addresses.extend(found),
            Some(Err(error)) => failures.push(format!("{name} is not known here: {error}")),
            None => failures
                .push(format!("the resolver did not answer for {name} within {} s", limit.as_secs_f64())),
        }
    }
    Ok((addresses, failures))
}

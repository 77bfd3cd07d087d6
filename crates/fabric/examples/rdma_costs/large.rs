//! A large message through the ring, or by a rendezvous: both sides register their buffers for this one
//! message, and the receiver reads.
//!
//! The cost of a registration is measured with halves of connections. One that exposes all but a word of its
//! arena registers it twice if there are no memory windows: compared with one that exposes all, it makes one
//! more registration, of pages that exist, and ends it. The fastest half of each kind counts: the rest of a
//! half costs much more, and its noise would hide the difference.

use caravan_fabric::contract::{Endpoint, Event, Local, Operation};
use caravan_fabric::verbs::{self, Port};
use caravan_fabric::{Error, Exposure, Link};

use super::{CostDeadline, ROUNDS, RdmaResult, ends, links, median, settle, time};

const SIZES: [usize; 4] = [64 << 10, 1 << 20, 8 << 20, 64 << 20];
/// The number of bytes of a large message that an emulator hands over at once.
const FRAGMENT_BYTES: usize = 64 << 10;
/// A round of small messages is the mean of several, which have this many bytes together.
const ROUND_BYTES: usize = 1 << 20;
/// The number of halves of connections of each kind.
const HALVES: usize = 60;

/// Microseconds for one message.
struct LargeRow {
    ring_fresh: f64,
    ring_reused: f64,
    read: f64,
    registration: f64,
}

pub fn run() -> RdmaResult<()> {
    println!("Microseconds for one message; medians of {ROUNDS} rounds, of registrations the least.\n");
    println!(
        "| bytes | ring, into a fresh buffer | ring, into the same buffer | read | a registration \
         | rendezvous : ring, same buffers |"
    );
    println!("|---|---|---|---|---|---|");
    for bytes in SIZES {
        let LargeRow { ring_fresh, ring_reused, read, registration } = measure(bytes)?;
        let ratio = (read + 2.0 * registration) / ring_reused;
        println!(
            "| {bytes} | {ring_fresh:.0} | {ring_reused:.0} | {read:.0} | {registration:.1} | {ratio:.2} |"
        );
    }
    println!();
    Ok(())
}

fn measure(bytes: usize) -> RdmaResult<LargeRow> {
    let from: Vec<u8> = (0..bytes).map(|i| (i % 251) as u8).collect();
    let mut reused = vec![1; bytes];
    let mut link = links()?;
    let [mut reader, source] = ends(&Exposure::all(bytes as u64))?;
    if source.capabilities().memory_windows {
        return Err("the device has memory windows: what a registration costs cannot be told from it".into());
    }
    source.arena().copy_in(0, &from);

    let repeats = (ROUND_BYTES / bytes).max(1);
    let mut samples: [Vec<f64>; 3] = std::array::from_fn(|_| Vec::new());
    for _ in 0..=ROUNDS {
        let mut sums = [0.0; 3];
        for _ in 0..repeats {
            sums[0] += time(|| through_ring(&mut link, &from, &mut vec![0; bytes]))?;
            settle(&mut link)?;
            sums[1] += time(|| through_ring(&mut link, &from, &mut reused))?;
            settle(&mut link)?;
            sums[2] += time(|| read(&mut *reader, bytes))?;
        }
        samples.iter_mut().zip(sums).for_each(|(all, sum)| all.push(sum / repeats as f64));
    }
    let mut arrived = vec![0; bytes];
    reader.arena().copy_out(0, &mut arrived);
    if arrived != from || reused != from {
        return Err("what arrived is not what was sent".into());
    }
    // The first round runs with cold caches.
    let [ring_fresh, ring_reused, read] = samples.map(|samples| median(samples[1..].to_vec()));
    Ok(LargeRow { ring_fresh, ring_reused, read, registration: registration(bytes as u64)? })
}

/// Returns the microseconds to register that many bytes, and to end the registration.
fn registration(bytes: u64) -> RdmaResult<f64> {
    let (ports, offer) = (verbs::usable().ports, verbs::offer()?);
    let mut least = [f64::INFINITY; 2];
    for _ in 0..HALVES {
        for (least, hidden_bytes) in least.iter_mut().zip([0, 8]) {
            *least = time(|| half(&ports, &offer, bytes, hidden_bytes))?.min(*least);
        }
    }
    Ok(least[1] - least[0])
}

fn through_ring([left, right]: &mut [Link; 2], from: &[u8], to: &mut [u8]) -> RdmaResult<()> {
    let deadline = CostDeadline::new();
    let (mut sent, mut received) = (0, 0);
    while received < to.len() {
        let mut came = false;
        if sent < from.len() && left.room()? > 0 {
            sent += left.append(&from[sent..from.len().min(sent + FRAGMENT_BYTES)])?;
            left.publish()?;
            came = true;
        }
        if right.refresh()? > 0 {
            received += right.read(&mut to[received..]);
            right.release()?;
            came = true;
        }
        if !came {
            deadline.check("the message does not arrive")?;
        }
    }
    Ok(())
}

/// Reads all of the peer's arena into this side's, in pieces that the device allows.
fn read(reader: &mut dyn Endpoint, bytes: usize) -> RdmaResult<()> {
    let deadline = CostDeadline::new();
    let piece = bytes.min(reader.capabilities().operation_bytes_max as usize);
    let (mut events, mut posted, mut done) = (Vec::new(), 0, 0);
    while done < bytes {
        while posted < bytes {
            let into = Local { offset: posted as u64, bytes: piece.min(bytes - posted) as u32 };
            match reader.post(Operation::Read { from: into.offset, into, context: u64::from(into.bytes) }) {
                Err(Error::Full(_)) => break,
                other => other?,
            }
            posted += into.bytes as usize;
        }
        reader.doorbell()?;
        if reader.poll(&mut events, 16)? == 0 {
            deadline.check("the read does not end")?;
        }
        for event in events.drain(..) {
            if let Event::Done(completion) = event {
                done += completion.context as usize;
            }
        }
    }
    Ok(())
}

/// Makes half of a connection, and gives it back. The peer may reach all of its arena but `hidden_bytes`.
fn half(ports: &[Port], offer: &[u8], arena_bytes: u64, hidden_bytes: u64) -> RdmaResult<()> {
    let exposed = 0..arena_bytes - hidden_bytes;
    let exposure = Exposure { exposed, ..Exposure::all(arena_bytes) };
    drop(verbs::connect_from(ports, offer, &exposure)?);
    Ok(())
}

//! Many links of one process: what each takes, and what it costs to poll, to arm and to be woken by them.

use std::process::Command;

use caravan_fabric::Link;
use caravan_fabric::contract::Armed;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fd::{AsFd, OwnedFd};

use super::{CostDeadline, PATIENCE, RING_BYTES, ROUNDS, RdmaResult, links, median, settle, time};

const COUNTS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// The number of polls of a link in one round, over all links.
const LOOKS: usize = 1 << 14;
/// The message that is sent while all links are busy.
const MESSAGE: [u8; 64] = [7; 64];
/// The objects of a device, as `rdma resource show` calls them.
const OBJECTS: [&str; 4] = ["qp", "cq", "mr", "pd"];

/// Medians: nanoseconds for a poll of an idle link; microseconds for the rest.
struct ManyRow {
    look_ns: f64,
    arm: f64,
    wake: f64,
    busy: f64,
}

pub fn run() -> RdmaResult<()> {
    let before = taken()?;
    let mut ends: Vec<[Link; 2]> = Vec::new();
    println!("Rings of {RING_BYTES} bytes; medians of {ROUNDS} rounds.\n");
    println!(
        "| links | look at an idle one, ns | pass over all, us | arming all, us | of one, us \
         | publish to woken, us | 64 B on each, us a message |"
    );
    println!("|---|---|---|---|---|---|---|");
    for count in COUNTS {
        while ends.len() < count {
            ends.push(links()?);
        }
        let row = measure(&mut ends)?;
        println!(
            "| {count} | {:.0} | {:.1} | {:.1} | {:.2} | {:.1} | {:.2} |",
            row.look_ns,
            row.look_ns * count as f64 / 1e3,
            row.arm,
            row.arm / count as f64,
            row.wake,
            row.busy,
        );
    }
    let sides = (2 * ends.len()) as f64;
    println!("\nWhat one side of a link takes; of {sides} in this process, the mean:");
    for ((name, before), (_, after)) in before.iter().zip(&taken()?) {
        println!("- {name}: {:.2}", (after - before) / sides);
    }
    println!("- bytes registered, as counted: {}", ends[0][0].endpoint_counts().registered_bytes);
    Ok(())
}

fn measure(ends: &mut [[Link; 2]]) -> RdmaResult<ManyRow> {
    let set = epoll::create(CreateFlags::CLOEXEC)?;
    for (number, [left, _]) in ends.iter().enumerate() {
        let descriptor = left.wait_fd().ok_or("a link has no descriptor")?;
        epoll::add(&set, descriptor.as_fd(), EventData::new_u64(number as u64), EventFlags::IN)?;
    }
    let [mut looks, mut arms, mut wakes, mut busy] = std::array::from_fn(|_| Vec::new());
    for round in 0..=ROUNDS {
        ends.iter_mut().try_for_each(settle)?;
        let passes = LOOKS / ends.len();
        looks.push(time(|| look(ends, passes))? * 1e3 / (passes * ends.len()) as f64);
        // Takes the events of the last round, which found all links armed.
        for [left, _] in &mut *ends {
            left.acknowledge()?;
        }
        arms.push(time(|| arm(ends))?);
        let sender = round * 7 % ends.len();
        wakes.push(time(|| wake(ends, sender, &set))?);
        ends.iter_mut().for_each(|[left, _]| left.awake());
        ends.iter_mut().try_for_each(settle)?;
        busy.push(time(|| all_busy(ends))? / ends.len() as f64);
    }
    // The first round runs with cold caches.
    let [look_ns, arm, wake, busy] = [looks, arms, wakes, busy].map(|samples| median(samples[1..].to_vec()));
    Ok(ManyRow { look_ns, arm, wake, busy })
}

fn look(ends: &mut [[Link; 2]], passes: usize) -> RdmaResult<()> {
    for _ in 0..passes {
        for [left, _] in &mut *ends {
            if left.refresh()? > 0 {
                return Err("an idle link has something to read".into());
            }
        }
    }
    Ok(())
}

fn arm(ends: &mut [[Link; 2]]) -> RdmaResult<()> {
    let deadline = CostDeadline::new();
    for [left, _] in ends {
        while left.arm(0)? == Armed::LookAgain {
            left.refresh()?;
            deadline.check("an idle link cannot be waited for")?;
        }
    }
    Ok(())
}

/// Measures from the first look at the sender's ring to the message's last byte at the woken receiver.
fn wake(ends: &mut [[Link; 2]], sender: usize, set: &OwnedFd) -> RdmaResult<()> {
    let limit = Timespec { tv_sec: PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let event = Event { flags: EventFlags::IN, data: EventData::new_u64(0) };
    let mut events = [event; COUNTS[COUNTS.len() - 1]];
    let mut message = MESSAGE;
    ends[sender][1].append(&MESSAGE)?;
    ends[sender][1].publish()?;
    let woken = epoll::wait(set, &mut events, Some(&limit))?;
    if events[..woken].iter().map(|event| event.data.u64()).ne([sender as u64]) {
        return Err("not just the one was woken that a message came for".into());
    }
    let left = &mut ends[sender][0];
    left.acknowledge()?;
    if left.refresh()? != left.read(&mut message) {
        return Err("more came than was sent".into());
    }
    Ok(left.release()?)
}

/// Sends one message on each link, all under way at once.
fn all_busy(ends: &mut [[Link; 2]]) -> RdmaResult<()> {
    let deadline = CostDeadline::new();
    for [_, right] in &mut *ends {
        right.append(&MESSAGE)?;
        right.publish()?;
    }
    let (mut arrived, mut message) = (0, MESSAGE);
    while arrived < ends.len() * MESSAGE.len() {
        let mut came = 0;
        for [left, _] in &mut *ends {
            if left.refresh()? > 0 {
                came += left.read(&mut message);
                left.release()?;
            }
        }
        if came == 0 {
            deadline.check("the messages do not arrive")?;
        }
        arrived += came;
    }
    Ok(())
}

/// Returns the system's resources that this process has used so far.
fn taken() -> RdmaResult<Vec<(&'static str, f64)>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let kilobytes = |name: &str| -> f64 {
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(f64::NAN)
    };
    let mut all = vec![
        ("file descriptors", std::fs::read_dir("/proc/self/fd")?.count() as f64),
        ("VmPin, KiB", kilobytes("VmPin")),
        ("VmLck, KiB", kilobytes("VmLck")),
        ("VmRSS, KiB", kilobytes("VmRSS")),
    ];
    let output = Command::new("rdma").args(["resource", "show"]).output();
    let output = output.map_err(|why| format!("rdma (of iproute2): {why}"))?;
    let text = String::from_utf8(output.stdout)?;
    let words: Vec<&str> = text.split_whitespace().collect();
    for object in OBJECTS {
        let each = words.windows(2).filter(|pair| pair[0] == object);
        all.push((object, each.filter_map(|pair| pair[1].parse::<f64>().ok()).sum()));
    }
    Ok(all)
}

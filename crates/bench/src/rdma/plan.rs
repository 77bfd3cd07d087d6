//! What `caravan bench rdma` measures, of whom in turn.

use caravan_fabric::verbs::device::Fabric;

use super::ends::Task;
use super::tool::{Run, Tool};
use crate::args::Rdma;

/// The programs for bandwidth need a few messages under way.
const STREAM_MESSAGES_MIN: u64 = 16;
/// Messages that a batching sender publishes at once.
const BATCH: u64 = 32;

/// What is measured, of whom in turn.
pub struct Plan {
    pub key: &'static str,
    pub title: String,
    pub unit: &'static str,
    pub bytes: usize,
    pub contenders: Vec<(&'static str, Doing)>,
}

#[derive(Clone, Copy)]
pub enum Doing {
    Link(Task),
    Tool(Run),
}

/// Latencies beside three programs, streams beside one, and small messages beside none.
pub fn plans(args: &Rdma, fabric: Fabric, missing: &mut Vec<&'static str>) -> Vec<Plan> {
    let mut tools = [Tool::WriteLatency, Tool::SendLatency, Tool::PingPong, Tool::WriteBandwidth].to_vec();
    tools.retain(|tool| {
        let usable = !args.alone && tool.is_installed() && tool.fits(fabric);
        if !usable && !args.alone {
            missing.push(tool.program());
        }
        usable
    });
    let task =
        |echo, bytes, messages| Task { echo, bytes, messages, batch: 1, in_place: false, sleeps: args.sleep };
    let with = |list: &[Tool], bytes: usize, messages: u64, links: Vec<(&'static str, Doing)>| {
        let run = |&tool: &Tool| (tool.program(), Doing::Tool(Run { tool, bytes, messages }));
        let usable = list.iter().filter(|tool| tools.contains(tool));
        // The reference first: ratios are to it.
        usable.map(run).chain(links).collect::<Vec<_>>()
    };
    let latency = |&bytes: &usize| {
        let link = vec![("link", Doing::Link(task(true, bytes, args.round_trips)))];
        let list = [Tool::WriteLatency, Tool::SendLatency, Tool::PingPong];
        let contenders = with(&list, bytes, args.round_trips, link);
        Plan { key: "latency", title: format!("{bytes} B one way"), unit: "us", bytes, contenders }
    };
    let stream = |&bytes: &usize| {
        let messages = (args.stream_bytes / bytes as u64).max(STREAM_MESSAGES_MIN);
        let copied = task(false, bytes, messages);
        let links = vec![
            ("link", Doing::Link(copied)),
            ("link, filled in place", Doing::Link(Task { in_place: true, ..copied })),
        ];
        let contenders = with(&[Tool::WriteBandwidth], bytes, messages, links);
        Plan { key: "bandwidth", title: format!("{bytes} B at once"), unit: "MiB/s", bytes, contenders }
    };
    let small = || {
        let copied = task(false, 64, args.round_trips * 4);
        let contenders = vec![
            ("each published", Doing::Link(copied)),
            ("32 published at once", Doing::Link(Task { batch: BATCH, ..copied })),
        ];
        Plan { key: "small", title: "stream of 64 B".into(), unit: "MiB/s", bytes: 64, contenders }
    };
    let latencies = args.latency_bytes.iter().map(latency);
    latencies.chain(args.sizes.iter().map(stream)).chain([small()]).collect()
}

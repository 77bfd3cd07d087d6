//! The paths that every packet of an engine takes, with a batch of packets in each call.

use caravan_engine::apps::{Bridge, Decapsulate, Encapsulate, Filter, FilterConfig, Sink, Source};
use caravan_engine::layout::LinkMode;
use caravan_engine::limits::{BATCH_PACKETS, PULL_PACKETS};
use caravan_engine::testing::{AppBench, LinkBench};
use caravan_engine::{App, AppError, Io, Named};
use serde_json::{Value, json};

const PACKETS: u32 = 1024;
const BYTES: usize = 60;
/// The number of stations at each port of the bridge. The addresses change with each frame, so that all of
/// them are looked up. The table's secret moves stations in it, but hardly changes the number of steps of a
/// lookup, as the table is mostly empty.
const STATIONS: usize = 16;
/// The length of a breath of a busy worker.
const BREATH_NS: u64 = 1000;

/// A source and the sink that it is linked to.
struct SourceToSink {
    source: Source,
    sink: Sink,
}

impl App for SourceToSink {
    type Config = ();
    const INPUTS: Named = Named::Any;
    const OUTPUTS: Named = Named::Any;

    fn start((): (), _: Option<Vec<u8>>) -> Result<Self, AppError> {
        let source = Source::start(configuration::<Source>(&json!({ "size": BYTES })), None)?;
        Ok(Self { source, sink: Sink::start(configuration::<Sink>(&json!({})), None)? })
    }

    fn pull(&mut self, io: &mut Io) {
        self.source.pull(io);
    }

    fn push(&mut self, io: &mut Io) {
        self.sink.push(io);
    }
}

struct World {
    local: AppBench<SourceToSink>,
    encapsulate: AppBench<Encapsulate>,
    decapsulate: AppBench<Decapsulate>,
    link: LinkBench,
    bridge: AppBench<Bridge>,
    filter: AppBench<Filter>,
    /// The frames that are put into each.
    frames: Vec<Vec<u8>>,
    tunnelled: Vec<Vec<u8>>,
    of_stations: Vec<Vec<u8>>,
}

fn configuration<A: App>(value: &Value) -> A::Config {
    serde_json::from_value(value.clone()).expect("a configuration")
}

fn bench<A: App>(config: &Value, inputs: &[&str], outputs: &[&str]) -> AppBench<A> {
    AppBench::new(configuration::<A>(config), inputs, outputs, PACKETS).expect("an app")
}

/// Makes a UDP frame from one address and port to another.
fn frame(keys: &Value) -> Vec<u8> {
    let mut source = bench::<Source>(&json!({ "size": BYTES, "count": 1, "frame": keys }), &[], &["output"]);
    source.pull();
    source.sent("output").remove(0)
}

fn mac(port: usize, station: usize) -> String {
    format!("02:00:00:00:{port:02x}:{station:02x}")
}

/// Returns the configuration of a tunnel end whose two ends are configured alike.
fn tunnel() -> Value {
    json!({
        "local_address": "2001:db8::1", "remote_address": "2001:db8::1",
        "local_cookie": "0123456789abcdef", "remote_cookie": "0123456789abcdef",
    })
}

fn put<A: App>(bench: &mut AppBench<A>, input: &str, frames: &[Vec<u8>]) {
    frames.iter().cycle().take(BATCH_PACKETS).for_each(|frame| bench.put(input, frame));
}

/// Returns everything that an app has sent.
fn sent<A: App>(bench: &mut AppBench<A>, outputs: &[&str]) -> Vec<Vec<u8>> {
    let sent: Vec<_> = outputs.iter().flat_map(|output| bench.sent(output)).collect();
    assert_eq!((sent.len(), bench.free()), (BATCH_PACKETS, PACKETS as usize));
    sent
}

impl World {
    fn new() -> Self {
        let mut local = bench::<SourceToSink>(&Value::Null, &["input"], &["output"]);
        local.link("output", "input");
        let frames = [53, 9].map(|port| frame(&json!({ "destination_port": port }))).to_vec();
        let mut encapsulate = bench::<Encapsulate>(&tunnel(), &["input"], &["output"]);
        put(&mut encapsulate, "input", &frames);
        encapsulate.push();
        let tunnelled = sent(&mut encapsulate, &["output"]);
        let pairs = |from, to| {
            let keys = move |n| json!({ "source_mac": mac(from, n), "destination_mac": mac(to, n) });
            (0..STATIONS).map(move |n| frame(&keys(n))).collect::<Vec<_>>()
        };
        let mut bridge = bench::<Bridge>(&json!({}), &["a", "b"], &["a", "b"]);
        put(&mut bridge, "b", &pairs(1, 0));
        bridge.push();
        sent(&mut bridge, &["a"]);
        let expression = "udp and port 53".to_owned();
        let filter = AppBench::new(FilterConfig { expression }, &["input"], &["output", "rejected"], PACKETS);
        Self {
            local,
            encapsulate,
            decapsulate: bench(&tunnel(), &["input"], &["output"]),
            link: LinkBench::new(LinkMode::Swap, PACKETS),
            bridge,
            filter: filter.expect("an expression"),
            frames,
            tunnelled,
            of_stations: pairs(0, 1),
        }
    }
}

/// Checks that the link passes a whole batch.
fn whole(passed: Result<usize, impl std::fmt::Debug>) {
    assert_eq!(passed.expect("a ring in order"), BATCH_PACKETS);
}

const _: () = assert!(PULL_PACKETS == BATCH_PACKETS);

probes! {
    World, 200;
    probe_source_sink,
        |_| {},
        |world| { world.local.pull(); world.local.push(); },
        |world| assert_eq!(world.local.free(), PACKETS as usize);
    probe_encapsulate,
        |world| put(&mut world.encapsulate, "input", &world.frames),
        |world| world.encapsulate.push(),
        |world| drop(sent(&mut world.encapsulate, &["output"]));
    probe_decapsulate,
        |world| put(&mut world.decapsulate, "input", &world.tunnelled),
        |world| world.decapsulate.push(),
        |world| drop(sent(&mut world.decapsulate, &["output"]));
    probe_link_send,
        |world| world.link.queue(BATCH_PACKETS, BYTES),
        |world| whole(world.link.send()),
        |world| {
            whole(world.link.receive());
            world.link.consume();
            whole(world.link.repay());
            whole(world.link.collect());
        };
    probe_link_receive,
        |world| { world.link.queue(BATCH_PACKETS, BYTES); whole(world.link.send()); },
        |world| whole(world.link.receive()),
        |world| { world.link.consume(); whole(world.link.repay()); whole(world.link.collect()); };
    probe_link_empties,
        |world| {
            world.link.queue(BATCH_PACKETS, BYTES);
            whole(world.link.send());
            whole(world.link.receive());
            world.link.consume();
        },
        |world| { whole(world.link.repay()); whole(world.link.collect()); },
        |_| {};
    probe_bridge,
        |world| {
            world.bridge.now_ns += BREATH_NS;
            put(&mut world.bridge, "a", &world.of_stations);
        },
        |world| world.bridge.push(),
        |world| drop(sent(&mut world.bridge, &["b"]));
    probe_filter,
        |world| put(&mut world.filter, "input", &world.frames),
        |world| world.filter.push(),
        |world| {
            assert_eq!(world.filter.sent("output").len(), BATCH_PACKETS / 2);
            assert_eq!(world.filter.sent("rejected").len(), BATCH_PACKETS / 2);
            assert_eq!(world.filter.free(), PACKETS as usize);
        };
}

//! An arbitrary expression and an arbitrary frame: a line of text, and the bytes behind it.
#![no_main]

use std::cell::RefCell;

use caravan_engine::App;
use caravan_engine::apps::{Filter, FilterConfig};
use caravan_engine::testing::AppBench;

const PACKETS: u32 = 4;

thread_local! {
    static BENCH: RefCell<AppBench<Filter>> = RefCell::new(bench());
}

fn bench() -> AppBench<Filter> {
    let config = FilterConfig { expression: "ip".to_owned() };
    AppBench::new(config, &["input"], &["output", "rejected"], PACKETS).expect("a filter")
}

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len());
    let expression = String::from_utf8_lossy(&input[..end]).into_owned();
    let frame = input.get(end + 1..).unwrap_or_default();
    let Ok(filter) = Filter::start(FilterConfig { expression }, None) else { return };
    BENCH.with_borrow_mut(|bench| {
        bench.app = filter;
        bench.put("input", &frame[..frame.len().min(1500)]);
        bench.push();
        assert_eq!(bench.sent("output").len() + bench.sent("rejected").len(), 1);
        assert_eq!(bench.free(), PACKETS as usize);
    });
});

//! Streams between a producer and consumers: in one process, which is enough for what they promise each other, and between processes
//! that are stopped and killed.

mod delivery;
mod kills;

use std::time::Duration;

use caravan_frames::{FrameReceiver, FrameView, Picture, PixelFormat, Rate, Received};

/// Longer than any machine takes: what waits for it waits for ever.
const LONG: Duration = Duration::from_secs(60);

fn picture() -> Picture {
    Picture::new(96, 40, PixelFormat::Yuv420p, Rate { frames: 60, seconds: 1 }).unwrap()
}

/// A name that no other test and no other run of this one has.
fn name(test: &str) -> String {
    format!("test-{}-{test}", std::process::id())
}

/// Waits for the next frame.
fn frame(receiver: &mut FrameReceiver) -> FrameView<'_> {
    match receiver.receive(LONG).unwrap() {
        Received::Frame(view) => view,
        other => panic!("no frame: {other:?}"),
    }
}

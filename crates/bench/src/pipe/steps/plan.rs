//! The steps, as settings of one program. Source: "RDMA cat", 2018-04-12, which went the same way between two
//! hosts with InfiniBand.

use serde::{Deserialize, Serialize};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The longest message.
pub const MESSAGE_BYTES_MAX: usize = 8 * MIB;
/// The longest acknowledgement.
pub const ACK_BYTES_MAX: usize = 4 * KIB;
/// Buffers for messages at each side: so many of the longest ones.
pub const BUFFERS_MAX: usize = 2;
/// Messages that one acknowledgement stands for, where they are batched.
const BATCH: usize = 16;

/// Where the sending side's bytes come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// The buffer is sent again and again as it is.
    Buffer,
    /// A file in the page cache, read once the buffer is free.
    File,
    /// The same, read into the other buffer while a message is on its way.
    FileAhead,
}

/// What the receiving side does with them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sink {
    /// Nothing.
    Nothing,
    /// Copies them out of the buffer.
    Copy,
}

/// Messages with acknowledgements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Messages {
    pub message_bytes: usize,
    pub ack_bytes: usize,
    /// Messages that one acknowledgement stands for.
    pub ack_every: usize,
    /// Messages that the receiving side has room for.
    pub buffers: usize,
    pub source: Source,
    pub sink: Sink,
}

impl Messages {
    /// At least `bytes` as whole messages and whole batches of them.
    pub fn count(&self, bytes: u64) -> u64 {
        let batch = (self.message_bytes * self.ack_every) as u64;
        bytes.div_ceil(batch).max(1) * self.ack_every as u64
    }
}

/// What the program does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Program {
    Messages(Messages),
    /// A stream: Caravan's ring, or TCP as it is.
    Stream,
}

/// A step.
#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub key: &'static str,
    pub title: &'static str,
    pub program: Program,
    /// What the post had, in MB/s.
    pub post_mb_per_s: Option<u32>,
    /// A sample moves one in so many of the bytes: where each message costs two wake-ups.
    pub part: u64,
}

/// In their order.
pub fn steps() -> Vec<Step> {
    let first = Messages {
        message_bytes: 4 * KIB,
        ack_bytes: 4 * KIB,
        ack_every: 1,
        buffers: 1,
        source: Source::File,
        sink: Sink::Copy,
    };
    let short = Messages { ack_bytes: 1, ..first };
    let batched = Messages { ack_every: BATCH, buffers: BATCH, ..short };
    let medium = Messages { message_bytes: 64 * KIB, ..short };
    let large = Messages { message_bytes: MIB, ..short };
    let huge = Messages { message_bytes: 8 * MIB, ..short };
    let bare = Messages { source: Source::Buffer, sink: Sink::Nothing, ..huge };
    let copied = Messages { sink: Sink::Copy, ..bare };
    let two = Messages { buffers: 2, ..copied };
    let ahead = Messages { source: Source::FileAhead, ..two };
    let step = |key, title, messages, post_mb_per_s, part| Step {
        key,
        title,
        program: Program::Messages(messages),
        post_mb_per_s,
        part,
    };
    vec![
        step("4k", "4 KiB messages, 4 KiB acknowledgements", first, Some(100), 8),
        step("1-byte-acks", "one-byte acknowledgements", short, None, 8),
        step("batched-acks", "one for 16 messages", batched, Some(140), 2),
        step("64k", "64 KiB messages", medium, Some(920), 1),
        step("1m", "1 MiB messages", large, Some(1400), 1),
        step("8m", "8 MiB messages", huge, Some(1780), 1),
        step("untouched", "baseline: nobody touches the data", bare, Some(2900), 1),
        step("copy", "the receiver copies them out", copied, Some(1300), 1),
        step("two-buffers", "two buffers: receive into one, copy the other", two, Some(3000), 1),
        step("read-ahead", "the file, read while a message is on its way", ahead, Some(2800), 1),
        Step { key: "stream", title: "", program: Program::Stream, post_mb_per_s: None, part: 1 },
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_fits_into_the_buffers_and_each_differs_from_the_last() {
        let steps = steps();
        for step in &steps {
            let Program::Messages(messages) = step.program else { continue };
            assert!(messages.message_bytes * messages.buffers <= MESSAGE_BYTES_MAX * BUFFERS_MAX, "{step:?}");
            assert!(
                messages.ack_bytes <= ACK_BYTES_MAX && messages.ack_every <= messages.buffers,
                "{step:?}"
            );
        }
        for pair in steps.windows(2) {
            assert!(pair[0].program != pair[1].program && pair[0].key != pair[1].key, "{pair:?}");
        }
    }

    #[test]
    fn a_sample_is_of_whole_batches() {
        let Program::Messages(batched) = steps()[2].program else { panic!("messages") };
        assert_eq!(batched.count(1), 16);
        assert_eq!(batched.count(64 << 10), 16);
        assert_eq!(batched.count((64 << 10) + 1), 32);
    }
}

//! `caravan top`: shows every Caravan link, store and stream of frames of this user on this host, from the counters in
//! shared memory. `caravan frames top` shows the streams alone.

mod view;

use std::io::{self, IsTerminal, stdout};
use std::time::{Duration, Instant};

use caravan_bench::Error as Shared;
use caravan_bench::interrupt::{GLANCE, Interrupt};
use caravan_bench::number::{binary, bytes, number};
use caravan_segment::counters::{self, TableKind};
use console::Term;
use serde::Serialize;

use crate::args::TopArgs;
use crate::error::Error;
use crate::top::view::{CountersSample, CountersView, FramesRow, LinkRow, StoreRow};
use crate::{print, print_json};

/// The width of a table that does not go to a terminal.
const WIDTH: usize = 160;

/// What a view shows, and what it says when there is nothing.
struct Shown {
    only: Option<TableKind>,
    command: &'static str,
    nothing: &'static str,
}

const ALL: Shown = Shown { only: None, command: "caravan top", nothing: NOTHING };
const FRAMES: Shown =
    Shown { only: Some(TableKind::Frames), command: "caravan frames top", nothing: NO_FRAMES };

/// Shows links, stores and streams until it is interrupted, or once.
pub fn run(args: &TopArgs) -> Result<(), Error> {
    watch(args, &ALL)
}

/// The same for streams of frames alone.
pub fn frames(args: &TopArgs) -> Result<(), Error> {
    watch(args, &FRAMES)
}

fn watch(args: &TopArgs, shown: &Shown) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let mut before = sample(shown);
    let mut is_first = true;
    loop {
        // A host without links and stores has no rates to wait for.
        if !before.processes.is_empty() || !is_first {
            match wait(args.interval, &interrupt) {
                // Ctrl-C is the normal way to leave this view.
                Err(Error::Shared(Shared::Interrupted)) => return Ok(()),
                other => other?,
            }
        }
        let now = sample(shown);
        let view = CountersView::between(&before, &now);
        show(&view, args.json, args.once, is_first, |width, height| text(&view, shown, width, height))?;
        if args.once {
            return Ok(());
        }
        before = now;
        is_first = false;
    }
}

fn sample(shown: &Shown) -> CountersSample {
    let mut processes = counters::read_all();
    processes.retain(|process| shown.only.is_none_or(|only| process.kind == only));
    CountersSample { at: Instant::now(), processes }
}

/// Waits for the next refresh.
pub fn wait(interval: Duration, interrupt: &Interrupt) -> Result<(), Error> {
    let deadline = Instant::now() + interval;
    loop {
        interrupt.check()?;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(GLANCE));
    }
}

/// Shows a view: as JSON, over the previous one on a terminal, or below it. `text` gets a width and a height.
pub fn show(
    view: &impl Serialize,
    is_json: bool,
    is_once: bool,
    is_first: bool,
    text: impl FnOnce(usize, usize) -> String,
) -> Result<(), Error> {
    if is_json {
        return print_json(view);
    }
    if stdout().is_terminal() && !is_once {
        return Ok(redraw(text, is_first).map_err(Shared::Output)?);
    }
    let above = if is_first { "" } else { "\n" };
    print(&format!("{above}{}", text(WIDTH, usize::MAX)))
}

/// Draws over the previous table, so that nothing flickers.
fn redraw(text: impl FnOnce(usize, usize) -> String, is_first: bool) -> io::Result<()> {
    let term = Term::buffered_stdout();
    let (height, width) = term.size();
    if is_first {
        term.clear_screen()?;
    }
    term.move_cursor_to(0, 0)?;
    // The last line stays free for the cursor.
    for line in text(width.into(), usize::from(height).saturating_sub(1)).lines() {
        term.clear_line()?;
        term.write_line(line)?;
    }
    term.clear_to_end_of_screen()?;
    term.flush()
}

const HEAD: [&str; 9] = [
    "NODE",
    "PEER",
    "VIA",
    "MSG/S out in",
    "B/S out in",
    "RING% out in",
    "WAKE/S out in",
    "SPIN/S hit%",
    "QUEUE",
];
const REASON: &str = "WHY";
/// The number of spaces after a column.
const GAP: usize = 2;
/// The number of letters of a name that are always shown.
const NAME_LEAST: usize = 12;

const STORE_HEAD: [&str; 6] = ["STORE", "OPS/S", "CLIENTS", "READERS", "KEYS", "MEMORY"];
const SOCKET: &str = "SOCKET";

const FRAMES_HEAD: [&str; 9] =
    ["STREAM", "SIDE", "PID", "FRAMES/S", "B/S", "DROPPED", "OVERTAKEN", "CONSUMERS", "AGE MS"];
const PICTURE: &str = "PICTURE";

const NO_FRAMES: &str = "No streams of frames of your user on this host. They show here once `caravan frames send NAME` \
                         or another\nproducer sends one.\n";
const NOTHING: &str = "No Caravan links, stores and streams of frames of your user on this host. Nodes started with\n  \
                       erl -sname NAME -proto_dist caravan -pa ...\nshow here once they are connected, and stores once \
                       `caravan store serve` serves them.\n";

/// Returns at most `height` lines of at most `width` characters.
fn text(view: &CountersView, shown: &Shown, width: usize, height: usize) -> String {
    let mut lines = if view.links.is_empty() { Vec::new() } else { links(view, width) };
    if !view.stores.is_empty() {
        let separator = (!lines.is_empty()).then(String::new);
        lines.extend(separator);
        let rows: Vec<_> =
            view.stores.iter().map(|store| (store_cells(store), store.socket.clone())).collect();
        lines.extend(table(&STORE_HEAD, 1, SOCKET, &rows));
    }
    if !view.frames.is_empty() {
        let separator = (!lines.is_empty()).then(String::new);
        lines.extend(separator);
        let picture = |row: &FramesRow| format!("{}, {}", row.picture, row.delivery);
        let rows: Vec<_> = view.frames.iter().map(|row| (frames_cells(row), picture(row))).collect();
        lines.extend(table(&FRAMES_HEAD, 2, PICTURE, &rows));
    }
    match lines.is_empty() {
        true => fit(shown.nothing.lines().map(str::to_owned).collect(), width, usize::MAX, shown.command),
        false => fit(lines, width, height, shown.command),
    }
}

fn links(view: &CountersView, width: usize) -> Vec<String> {
    let mut rows: Vec<_> = view.links.iter().map(|link| (cells(link), link.reason.clone())).collect();
    // Long names are cut to make room for numbers, but not below `NAME_LEAST` letters.
    let numbers: usize = widths(&HEAD, &rows)[2..].iter().map(|width| width + GAP).sum();
    let room = (width.saturating_sub(numbers) / 2).saturating_sub(GAP).max(NAME_LEAST);
    rows.iter_mut().flat_map(|(row, _)| &mut row[..2]).for_each(|name| *name = cut(name, room));
    table(&HEAD, 3, REASON, &rows)
}

fn widths<const N: usize>(head: &[&str; N], rows: &[([String; N], String)]) -> [usize; N] {
    std::array::from_fn(|column| {
        let cells = rows.iter().map(|(row, _)| row[column].chars().count());
        cells.max().unwrap_or(0).max(head[column].chars().count())
    })
}

/// Formats rows under a head, with a text behind each. The first columns are `texts`, to the left; numbers are to the
/// right.
pub fn table<const N: usize>(
    head: &[&str; N],
    texts: usize,
    behind: &str,
    rows: &[([String; N], String)],
) -> Vec<String> {
    let widths = widths(head, rows);
    let line = |(row, behind): &([String; N], String)| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| match column < texts {
            true => format!("{cell:<width$}  "),
            false => format!("{cell:>width$}  "),
        });
        cells.collect::<String>() + behind
    };
    let head = (head.map(str::to_owned), behind.to_owned());
    [&head].into_iter().chain(rows).map(line).collect()
}

/// Returns at most `height` lines of at most `width` characters; the last one tells how many there are no room for.
pub fn fit(mut lines: Vec<String>, width: usize, height: usize, command: &str) -> String {
    if lines.len() > height && height > 1 {
        let hidden = lines.split_off(height - 1).len();
        lines.push(format!("and {hidden} more lines: {command} --once shows all"));
    }
    lines.iter().fold(String::new(), |text, line| text + cut(line, width).trim_end() + "\n")
}

fn cells(link: &LinkRow) -> [String; 9] {
    let part = |used: u64| used.saturating_mul(100).checked_div(link.ring_bytes);
    let percent = |used| part(used).map_or_else(|| "-".into(), |part| part.to_string());
    let hits = match (link.spins_per_s, link.spin_hits_per_s) {
        (Some(spins), Some(hits)) if spins > 0.0 => format!("{:.0}", (100.0 * hits / spins).min(100.0)),
        _ => "-".into(),
    };
    [
        link.node.clone(),
        link.peer.clone(),
        link.transport.clone(),
        pair(link.messages_sent_per_s, link.messages_received_per_s, whole),
        pair(link.bytes_sent_per_s, link.bytes_received_per_s, bytes),
        format!("{} {}", percent(link.outbound_used_bytes), percent(link.inbound_used_bytes)),
        pair(link.wakeups_sent_per_s, link.wakeups_received_per_s, whole),
        format!("{} {hits}", maybe(link.spins_per_s, whole)),
        bytes(link.queued_bytes as f64),
    ]
}

fn store_cells(store: &StoreRow) -> [String; 6] {
    let StoreRow { used_memory_bytes: used, memory_limit_bytes: limit, .. } = store;
    let percent = 100.0 * *used as f64 / (*limit).max(1) as f64;
    [
        store.store.clone(),
        maybe(store.operations_per_s, whole),
        store.clients.to_string(),
        store.readers.to_string(),
        whole(store.keys as f64),
        format!("{} of {} ({percent:.0} %)", binary(*used), binary(*limit)),
    ]
}

fn frames_cells(row: &FramesRow) -> [String; 9] {
    let is_consumer = row.side == "recv";
    let either = |is: bool, text: String| if is { text } else { "-".to_owned() };
    [
        row.stream.clone(),
        row.side.clone(),
        row.pid.to_string(),
        maybe(row.frames_per_s, number),
        maybe(row.bytes_per_s, bytes),
        either(is_consumer, whole(row.dropped as f64)),
        either(is_consumer, whole(row.overwritten as f64)),
        either(!is_consumer, row.consumers.to_string()),
        either(is_consumer, number(row.latency_ms)),
    ]
}

/// Formats a number without decimals.
pub fn whole(value: f64) -> String {
    number(value.round()).trim_end_matches(".00").trim_end_matches(".0").to_owned()
}

fn pair(out: Option<f64>, inward: Option<f64>, written: impl Fn(f64) -> String) -> String {
    format!("{} {}", maybe(out, &written), maybe(inward, &written))
}

/// Formats a figure, or a dash if there is none.
pub fn maybe(value: Option<f64>, written: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "-".into(), written)
}

fn cut(text: &str, width: usize) -> String {
    text.chars().take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(count: usize) -> CountersView {
        let link = LinkRow {
            node: "a@host".into(),
            peer: "b@host".into(),
            transport: "shm".into(),
            reason: "same host and user".into(),
            messages_sent_per_s: Some(123_456.0),
            messages_received_per_s: Some(7.0),
            bytes_sent_per_s: Some(2.5e9),
            bytes_received_per_s: Some(640.0),
            spins_per_s: Some(200.0),
            spin_hits_per_s: Some(50.0),
            ring_bytes: 1000,
            outbound_used_bytes: 250,
            queued_bytes: 65_536,
            ..LinkRow::default()
        };
        CountersView {
            unix_time: 0.0,
            interval_seconds: 1.0,
            links: vec![link; count],
            stores: Vec::new(),
            frames: Vec::new(),
        }
    }

    #[test]
    fn a_row_has_every_column() {
        let text = text(&view(1), &ALL, 200, 50);
        let row = text.lines().nth(1).expect("a row");
        let words: Vec<_> = row.split_whitespace().collect();
        let expected = "a@host b@host shm 123,456 7 2.50G 640 25 0 - - 200 25 65.5k same host and user";
        assert_eq!(words.join(" "), expected);
    }

    #[test]
    fn a_small_terminal_gets_what_fits_and_is_told_so() {
        let text = text(&view(10), &ALL, 40, 5);
        assert_eq!(text.lines().count(), 5);
        assert!(text.lines().all(|line| line.chars().count() <= 40), "{text}");
        assert!(text.ends_with("and 7 more lines: caravan top --once sho\n"), "{text}");
    }

    #[test]
    fn long_names_give_way_to_numbers() {
        let mut view = view(1);
        view.links[0].node = "a_node_with_a_very_long_name_indeed@host".into();
        assert!(text(&view, &ALL, 200, 50).contains("indeed@host"));
        let narrow = text(&view, &ALL, 100, 50);
        assert!(!narrow.contains("indeed@host") && narrow.contains("65.5k"), "{narrow}");
    }

    #[test]
    fn stores_have_a_table_of_their_own() {
        let store = StoreRow {
            store: "cache".into(),
            socket: "/run/cache.sock".into(),
            operations_per_s: Some(1234.4),
            clients: 3,
            readers: 2,
            keys: 1_000_000,
            used_memory_bytes: 64 << 20,
            memory_limit_bytes: 256 << 20,
            ..StoreRow::default()
        };
        for links in [0, 1] {
            let mut view = view(links);
            view.stores = vec![store.clone()];
            let text = text(&view, &ALL, 200, 50);
            let lines: Vec<_> = text.lines().collect();
            assert_eq!(lines.len(), 2 + 3 * links, "{text}");
            let words: Vec<_> = lines[lines.len() - 1].split_whitespace().collect();
            let expected = "cache 1,234 3 2 1,000,000 64 MiB of 256 MiB (25 %) /run/cache.sock";
            assert_eq!(words.join(" "), expected);
        }
    }

    #[test]
    fn streams_of_frames_have_a_table_of_their_own() {
        let row = FramesRow {
            pid: 7,
            stream: "cam".into(),
            side: "recv".into(),
            picture: "3840x2160 rgba 60/s".into(),
            delivery: "newest".into(),
            frames_per_s: Some(60.0),
            bytes_per_s: Some(1.99e9),
            dropped: 3,
            latency_ms: 1.25,
            ..FramesRow::default()
        };
        let mut view = view(0);
        view.frames = vec![row.clone(), FramesRow { side: "send".into(), consumers: 2, ..row }];
        let text = text(&view, &FRAMES, 200, 50);
        let lines: Vec<Vec<_>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(lines[1].join(" "), "cam recv 7 60.0 1.99G 3 0 - 1.25 3840x2160 rgba 60/s, newest");
        assert_eq!(lines[2].join(" "), "cam send 7 60.0 1.99G - - 2 - 3840x2160 rgba 60/s, newest");
    }

    #[test]
    fn nothing_says_how_to_get_something() {
        let text = text(&view(0), &ALL, 100, 50);
        assert!(text.contains("-proto_dist caravan") && text.contains("caravan store serve"), "{text}");
        let text = super::text(&view(0), &FRAMES, 100, 50);
        assert!(text.contains("caravan frames send NAME"), "{text}");
    }
}

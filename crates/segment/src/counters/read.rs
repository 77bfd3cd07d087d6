//! The reading side: finds the tables of this user's processes and copies them.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::*;

/// The counters of one process at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProcessCounters {
    /// The process number.
    pub pid: u32,
    /// What the rows are.
    pub kind: TableKind,
    /// The process's label.
    pub label: String,
    /// The rows.
    pub rows: Vec<RowCounters>,
}

/// One row at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowCounters {
    /// The number of the row in its table.
    pub index: usize,
    /// Changes when the row is given away again, or a label changes.
    pub generation: u64,
    /// [`Label::Local`].
    pub local: String,
    /// [`Label::Peer`].
    pub peer: String,
    /// [`Label::Transport`].
    pub transport: String,
    /// [`Label::Reason`].
    pub reason: String,
    /// The names and values, in the table's order.
    pub counters: Vec<(String, u64)>,
}

impl RowCounters {
    /// Returns the counter called `name`.
    pub fn counter(&self, name: &str) -> Option<u64> {
        self.counters.iter().find(|(known, _)| known == name).map(|(_, value)| *value)
    }
}

/// Reads the tables of every process that this user may look into.
pub fn read_all() -> Vec<ProcessCounters> {
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut all: Vec<ProcessCounters> = pids.flat_map(read_process).collect();
    all.sort_by_key(|process| process.pid);
    all
}

/// Reads the tables of one process, of each kind at most one, as far as this user may read them.
pub fn read_process(pid: u32) -> Vec<ProcessCounters> {
    let mut tables: Vec<ProcessCounters> = Vec::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        let Some(kind) = TableKind::ALL.into_iter().find(|kind| is_table(&target, *kind)) else { continue };
        if tables.iter().all(|table| table.kind != kind) {
            // A memfd is read through pread(2), not mapped: its owner may be malicious, and no
            // file of its making can then fault this process.
            tables.extend(CounterReader::open(&entry.path()).and_then(|reader| reader.process(pid, kind)));
        }
    }
    tables
}

/// Tells whether a descriptor that leads to this path is a table.
fn is_table(target: &Path, kind: TableKind) -> bool {
    let name = target.to_str().and_then(|text| text.strip_prefix("/memfd:")?.strip_suffix(" (deleted)"));
    name == Some(kind.segment_name())
}

struct CounterReader {
    file: fs::File,
}

impl CounterReader {
    fn open(path: &Path) -> Option<Self> {
        let reader = Self { file: fs::File::open(path).ok()? };
        (reader.word(0)? == MAGIC).then_some(reader)
    }

    fn word(&self, offset: usize) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, offset as u64).ok()?;
        Some(u64::from_ne_bytes(bytes))
    }

    fn text(&self, offset: usize, bytes: usize) -> Option<String> {
        let mut text = vec![0; bytes];
        self.file.read_exact_at(&mut text, offset as u64).ok()?;
        Some(as_text(&text))
    }

    fn process(&self, pid: u32, kind: TableKind) -> Option<ProcessCounters> {
        let rows_used = (self.word(ROWS_USED_AT)? as usize).min(ROWS_MAX);
        let counter_count = (self.word(COUNTER_COUNT_AT)? as usize).min(COUNTERS_MAX);
        let names: Option<Vec<String>> =
            (0..counter_count).map(|i| self.text(NAMES_AT + i * NAME_BYTES, NAME_BYTES)).collect();
        let names = names?;
        let rows = (0..rows_used).filter_map(|index| self.row(index, &names)).collect();
        Some(ProcessCounters { pid, kind, label: self.text(PROCESS_LABEL_AT, LABEL_BYTES)?, rows })
    }

    /// Reads a row whose labels did not change while they were read; `None` if the row is free or keeps
    /// changing.
    fn row(&self, index: usize, names: &[String]) -> Option<RowCounters> {
        const ATTEMPTS: usize = 3;
        let at = ROWS_AT + index * ROW_BYTES;
        for _ in 0..ATTEMPTS {
            let generation = self.word(at)?;
            if generation & IN_USE == 0 {
                return None;
            }
            let mut bytes = vec![0; ROW_BYTES];
            self.file.read_exact_at(&mut bytes, at as u64).ok()?;
            if generation & WRITING != 0 || self.word(at)? != generation {
                continue;
            }
            let label = |label: Label| {
                let start = ROW_LABELS_AT + label as usize * LABEL_BYTES;
                as_text(&bytes[start..start + LABEL_BYTES])
            };
            let counter = |i: usize| {
                let start = ROW_COUNTERS_AT + i * 8;
                u64::from_ne_bytes(bytes[start..start + 8].try_into().unwrap_or_default())
            };
            return Some(RowCounters {
                index,
                generation,
                local: label(Label::Local),
                peer: label(Label::Peer),
                transport: label(Label::Transport),
                reason: label(Label::Reason),
                counters: names.iter().enumerate().map(|(i, name)| (name.clone(), counter(i))).collect(),
            });
        }
        None
    }
}

fn as_text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: [(Label, &str); 4] = [
        (Label::Local, "a@host"),
        (Label::Peer, "b@host"),
        (Label::Transport, "shm"),
        (Label::Reason, "same host and user"),
    ];

    /// One test, because a process has one table that readers find.
    #[test]
    fn another_process_could_read_what_is_counted() {
        let table =
            CounterTable::create(TableKind::Links, "a@host", &["sent_bytes", "received_bytes"]).unwrap();
        let row = table.row(LABELS).unwrap();
        row.add(0, 40);
        row.add(0, 2);
        row.set(1, 7);
        let other =
            table.row([(Label::Peer, "ü".repeat(200).as_str()), LABELS[0], LABELS[2], LABELS[3]]).unwrap();

        let own = || {
            read_process(std::process::id()).into_iter().find(|table| table.kind == TableKind::Links).unwrap()
        };
        let seen = own();
        assert_eq!((seen.kind, seen.label.as_str(), seen.rows.len()), (TableKind::Links, "a@host", 2));
        let first = &seen.rows[0];
        assert_eq!((first.local.as_str(), first.peer.as_str()), ("a@host", "b@host"));
        assert_eq!((first.transport.as_str(), first.reason.as_str()), ("shm", "same host and user"));
        assert_eq!((first.counter("sent_bytes"), first.counter("received_bytes")), (Some(42), Some(7)));
        assert_eq!(first.counter("nonsense"), None);
        assert_eq!(seen.rows[1].peer, "ü".repeat(127));

        row.set_label(Label::Transport, "tcp");
        drop(other);
        let seen = own();
        assert_eq!((seen.rows.len(), seen.rows[0].transport.as_str()), (1, "tcp"));
        assert!(seen.rows[0].generation > first.generation);
        // A process may have one of each kind.
        let _store = CounterTable::create(TableKind::Stores, "s", &["gets"]).unwrap();
        let kinds: Vec<_> =
            read_all().iter().filter(|it| it.pid == std::process::id()).map(|it| it.kind).collect();
        assert!(
            kinds.len() == 2 && kinds.contains(&TableKind::Links) && kinds.contains(&TableKind::Stores),
            "{kinds:?}"
        );

        let before =
            table.row(LABELS).map(|row| (row.slice.word(0).load(Ordering::Relaxed), drop(row)).0).unwrap();
        let after =
            table.row(LABELS).map(|row| (row.slice.word(0).load(Ordering::Relaxed), drop(row)).0).unwrap();
        assert_ne!(before, after, "a row given away again is told apart");

        let rows: Vec<CounterRow> = (0..ROWS_MAX + 3).map(|_| table.row(LABELS).unwrap()).collect();
        rows.last().unwrap().add(0, 1);
        assert_eq!(rows.last().unwrap().value(0), 1);
        assert_eq!(own().rows.len(), ROWS_MAX);
        drop(rows);
        assert_eq!(own().rows.len(), 1);
    }
}

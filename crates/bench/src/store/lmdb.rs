//! LMDB, through a loop in C.

use std::path::Path;
use std::time::Duration;

use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::process::CLoop;
use crate::scratch::Scratch;

const SOURCE: &str = include_str!("../../../../bench/store/lmdb_loop.c");
/// The limit of a sample beyond its own time, which includes a look at each key.
const SAMPLE_LIMIT: Duration = Duration::from_secs(300);

/// A database that is filled with all pairs.
#[derive(Debug)]
pub struct LmdbDatabase {
    program: CLoop,
    folder: Scratch,
    keys: u64,
    /// The bytes of its pages for each pair.
    pub bytes_each: f64,
}

impl LmdbDatabase {
    /// Compiles the loop, and fills the database.
    pub fn start(compiler: &Path, keys: u64, interrupt: &Interrupt) -> Result<Self, Error> {
        let program = CLoop::compile(compiler, SOURCE, &["-llmdb"])?;
        let mut database = Self { program, folder: Scratch::create()?, keys, bytes_each: 0.0 };
        let [bytes] = database.run("fill", &[], interrupt)?;
        database.bytes_each = bytes / keys as f64;
        Ok(database)
    }

    /// Looks up or overwrites random keys, `batch` of them in a transaction. Returns operations, nanoseconds, and
    /// the processor's nanoseconds.
    pub fn sample(
        &self,
        task: &str,
        run: Duration,
        batch: usize,
        interrupt: &Interrupt,
    ) -> Result<[f64; 3], Error> {
        self.run(task, &[run.as_nanos().to_string(), batch.to_string()], interrupt)
    }

    fn run<const N: usize>(
        &self,
        task: &str,
        words: &[String],
        interrupt: &Interrupt,
    ) -> Result<[f64; N], Error> {
        let folder = self.folder.path().display().to_string();
        let words: Vec<_> = [folder, task.to_owned(), self.keys.to_string()]
            .into_iter()
            .chain(words.iter().cloned())
            .collect();
        self.program.run(&words, SAMPLE_LIMIT, interrupt)
    }
}

//! This program's own file, to be copied.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::sync::OnceLock;

/// What is read at once.
const PIECE_BYTES: usize = 256 << 10;

/// This program's file: it stays the same, whatever takes its place at its path.
#[derive(Debug)]
pub struct Program {
    file: File,
    pub bytes: u64,
    /// SHA-256, in hexadecimal.
    pub hash: String,
}

impl Program {
    /// Opens and reads it, once in the life of this process.
    pub fn this() -> Result<&'static Self, String> {
        static THIS: OnceLock<Result<Program, String>> = OnceLock::new();
        let this = THIS.get_or_init(|| {
            Self::read().map_err(|why| format!("this program cannot read itself (/proc/self/exe): {why}"))
        });
        this.as_ref().map_err(String::clone)
    }

    fn read() -> io::Result<Self> {
        let file = File::open("/proc/self/exe")?;
        let mut context = digest::digest::Context::new(&digest::digest::SHA256);
        let mut program = Self { file, bytes: 0, hash: String::new() };
        let mut reader = program.reader();
        let mut piece = vec![0; PIECE_BYTES];
        let mut bytes = 0;
        loop {
            let count = reader.read(&mut piece)?;
            if count == 0 {
                break;
            }
            context.update(piece.get(..count).unwrap_or_default());
            bytes += count as u64;
        }
        program.bytes = bytes;
        program.hash = context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        Ok(program)
    }

    fn reader(&self) -> Reader<'_> {
        Reader { file: &self.file, at: 0 }
    }

    /// Writes all of it, and says after each piece that one more is written.
    pub fn copy(&self, to: &mut impl Write, mut written: impl FnMut()) -> io::Result<()> {
        let mut reader = self.reader();
        let mut piece = vec![0; PIECE_BYTES];
        loop {
            let count = reader.read(&mut piece)?;
            if count == 0 {
                return to.flush();
            }
            to.write_all(piece.get(..count).unwrap_or_default())?;
            written();
        }
    }
}

/// Reads without moving the file's own position, which several copies share.
struct Reader<'a> {
    file: &'a File,
    at: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_copy_is_what_was_counted_and_hashed() {
        let program = Program::this().expect("read");
        let (mut copy, mut pieces) = (Vec::new(), 0);
        program.copy(&mut copy, || pieces += 1).expect("copied");
        assert_eq!(copy.len() as u64, program.bytes);
        assert!(pieces >= copy.len() / PIECE_BYTES);
        let digest = digest::digest::digest(&digest::digest::SHA256, &copy);
        let hash: String = digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(hash, program.hash);
        let abc = digest::digest::digest(&digest::digest::SHA256, b"abc");
        assert_eq!(abc.as_ref().first(), Some(&0xba), "it is SHA-256");
    }
}

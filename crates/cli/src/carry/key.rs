//! The key of a stream: shown, typed, or in a file. Never an argument or the environment, which others see.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::time::Duration;

use caravan_pipe::coordinator::Observer;
use caravan_pipe::{Error, Key};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::geteuid;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::pipe::Teller;
use caravan_bench::interrupt::{GLANCE, Interrupt};

/// Digits of a key.
const DIGITS: usize = 2 * Key::BYTES;
/// More is no key, whatever else is in the file or comes from the terminal.
const TEXT_BYTES_MAX: u64 = 256;
/// How often a typed key may be none.
const TRIES: u32 = 3;

/// As it is shown.
pub fn text(key: &Key) -> String {
    key.bytes().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The key in a file that nobody else may read.
pub fn from_file(path: &Path) -> Result<Key, Error> {
    let file = File::open(path).map_err(|source| failed("read", path, source))?;
    read(file, path)
}

/// The same; where there is no such file, it gets a new key.
pub fn from_file_or_new(path: &Path, teller: &mut Teller) -> Result<Key, Error> {
    match File::open(path) {
        Ok(file) => read(file, path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let key = Key::random()?;
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            file.and_then(|mut file| file.write_all(format!("{}\n", text(&key)).as_bytes()))
                .map_err(|source| failed("write", path, source))?;
            let path = path.display();
            teller.warn(&format!("a new key is in {path}: copy that file to the other host, as with scp -p"));
            Ok(key)
        }
        Err(source) => Err(failed("read", path, source)),
    }
}

/// Asks for it on the terminal of the user, whatever standard input and output are.
pub fn asked(host: &str, port: u16, interrupt: &Interrupt) -> Result<Key, Error> {
    let terminal = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(|_| {
        Error::Usage(
            "there is no terminal on which to ask for the key: put it into a file that nobody else may read, and \
             give --key-file FILE"
                .to_owned(),
        )
    })?;
    let mut terminal = Hidden::of(terminal)?;
    for _ in 0..TRIES {
        terminal.say(&format!("Key that `caravan recv` on {host} port {port} shows: "))?;
        let typed = terminal.line(interrupt);
        terminal.say("\n")?;
        match parse(&typed?) {
            Some(key) => return Ok(key),
            None => terminal.say(&format!("That is no key: it has {DIGITS} digits, 0 to 9 and a to f.\n"))?,
        }
    }
    Err(Error::Usage(format!("no key was typed within {TRIES} tries")))
}

fn read(file: File, path: &Path) -> Result<Key, Error> {
    let facts = file.metadata().map_err(|source| failed("read", path, source))?;
    if facts.mode() & 0o077 != 0 || ![0, geteuid().as_raw()].contains(&facts.uid()) {
        let path = path.display();
        return Err(Error::Usage(format!(
            "others may read the key in {path}: `chmod 600 {path}`, or, if they have seen it, remove it and let \
             `caravan recv --key-file {path}` make a new one"
        )));
    }
    let mut text = String::new();
    let read = file.take(TEXT_BYTES_MAX).read_to_string(&mut text);
    read.map_err(|source| failed("read", path, source))?;
    parse(&text).ok_or_else(|| {
        Error::Usage(format!(
            "there is no key in {}: it has {DIGITS} digits, 0 to 9 and a to f",
            path.display()
        ))
    })
}

/// Spaces and dashes are nothing.
fn parse(text: &str) -> Option<Key> {
    let digits: String = text.chars().filter(|letter| !letter.is_whitespace() && *letter != '-').collect();
    let is_key = digits.len() == DIGITS && digits.chars().all(|digit| digit.is_ascii_hexdigit());
    let number = u128::from_str_radix(&digits, 16).ok().filter(|_| is_key)?;
    Some(Key::from_bytes(number.to_be_bytes()))
}

fn failed(what: &'static str, path: &Path, source: io::Error) -> Error {
    Error::File { what, path: path.to_owned(), source }
}

/// A terminal that does not show what is typed, until it is dropped.
struct Hidden {
    terminal: File,
    before: Termios,
}

impl Hidden {
    fn of(terminal: File) -> Result<Self, Error> {
        let failed = |errno: rustix::io::Errno| Error::System { call: "/dev/tty", source: errno.into() };
        let before = tcgetattr(&terminal).map_err(failed)?;
        let mut silent = before.clone();
        silent.local_modes.remove(LocalModes::ECHO);
        silent.local_modes.insert(LocalModes::ICANON | LocalModes::ISIG);
        // What was typed before the question is no answer.
        tcsetattr(&terminal, OptionalActions::Flush, &silent).map_err(failed)?;
        Ok(Self { terminal, before })
    }

    fn say(&mut self, text: &str) -> Result<(), Error> {
        self.terminal.write_all(text.as_bytes()).map_err(|source| Error::System { call: "/dev/tty", source })
    }

    /// A line, unless Ctrl-C or the terminal's end comes first.
    fn line(&mut self, interrupt: &Interrupt) -> Result<String, Error> {
        let mut line = Vec::new();
        while !line.contains(&b'\n') && (line.len() as u64) < TEXT_BYTES_MAX {
            let glance = Timespec { tv_sec: 0, tv_nsec: Duration::subsec_nanos(&GLANCE).into() };
            let ready = poll(&mut [PollFd::new(&self.terminal, PollFlags::IN)], Some(&glance));
            interrupt.check().map_err(|_| Error::Cancelled)?;
            if ready != Ok(0) {
                let mut room = [0; 64];
                match self.terminal.read(&mut room) {
                    Ok(0) => break,
                    Ok(count) => line.extend(room.iter().take(count)),
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(source) => return Err(Error::System { call: "/dev/tty", source }),
                }
            }
        }
        Ok(String::from_utf8_lossy(&line).into_owned())
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = tcsetattr(&self.terminal, OptionalActions::Now, &self.before);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use caravan_bench::scratch::Scratch;

    #[test]
    fn a_key_is_read_as_it_is_shown() {
        let key = Key::random().expect("random");
        let shown = text(&key);
        assert_eq!(parse(&shown), Some(key.clone()));
        assert_eq!(parse(&format!(" {}-{} \n", &shown[..7], shown[7..].to_uppercase())), Some(key));
        let long = format!("{shown}0");
        for none in
            ["", "x", &shown[1..], &long, &shown.replace(|_| true, "g"), "+1234567890123456789012345678901"]
        {
            assert_eq!(parse(none), None, "{none}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_has_no_key() {
        let scratch = Scratch::create().expect("a folder");
        let path = scratch.path().join("key");
        fs::write(&path, "00112233445566778899aabbccddeeff\n").expect("written");
        for mode in [0o644, 0o640, 0o604, 0o660] {
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
            let refusal = from_file(&path).expect_err("refused").to_string();
            assert!(refusal.contains(&format!("chmod 600 {}", path.display())), "{refusal}");
        }
        fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("set");
        assert_eq!(text(&from_file(&path).expect("a key")), "00112233445566778899aabbccddeeff");
        fs::write(&path, "no key").expect("written");
        assert!(from_file(&path).expect_err("no key").to_string().contains("32 digits"));
    }
}

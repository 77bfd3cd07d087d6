//! `caravan store save` and `caravan store upgrade`: orders to the keeper of a store.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use caravan_bench::Error as Shared;
use caravan_bench::interrupt::Interrupt;
use caravan_bench::number::binary;
use caravan_segment::printable;
use caravan_store_server::keeper::channel::{KeeperAnswer, KeeperChannel, KeeperOrder};
use caravan_store_server::keeper::control::call_keeper;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use serde_json::json;

use crate::args::{StoreSave, StoreUpgrade};
use crate::carry::stream::RecvOutput;
use crate::error::Error;
use crate::store::child::progress;
use crate::store::{sentence, socket_path, store_words, unreachable_store};
use crate::{print, print_json};

/// The time between two looks at the size of a snapshot that is being written.
const GLANCE: Duration = Duration::from_millis(100);

/// Has the server write a snapshot to a file of this process, which renames it.
pub fn save(args: &StoreSave) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    // A new snapshot is for this user alone, as the store is.
    rustix::process::umask(Mode::RWXG | Mode::RWXO);
    let output = RecvOutput::open(Some(&args.file)).map_err(sentence)?;
    let file = File::from(output.descriptor().map_err(sentence)?);
    let call = KeeperCall::send(args.socket.as_deref(), &args.name, KeeperOrder::Save, file.as_fd())?;
    let bar = progress("saving", 0);
    while !call.has_answer(GLANCE) {
        // The file's part goes with this process, and the server writes no more of it.
        interrupt.check()?;
        bar.set_position(file.metadata().map_or(0, |facts| facts.len()));
    }
    bar.finish_and_clear();
    match call.answer() {
        Ok(KeeperAnswer::Saved { records, bytes }) => {
            output.complete_on_disk().map_err(sentence)?;
            if args.json {
                return print_json(&json!({ "records": records, "bytes": bytes }));
            }
            let file = printable(args.file.as_os_str().as_encoded_bytes());
            print(&format!("Saved {} to {file} ({}).\n", call.store, binary(bytes)))
        }
        Ok(KeeperAnswer::Refused(why)) => Err(Error::Sentence(format!(
            "{} is not saved, and {} is as it was: {why}",
            call.store,
            args.file.display()
        ))),
        Ok(KeeperAnswer::Upgraded { .. }) => Err(call.unexpected()),
        Err(error) => Err(error),
    }
}

/// Has the keeper put a server of this program in the place of the running one.
pub fn upgrade(args: &StoreUpgrade) -> Result<(), Error> {
    let path = args.program.as_deref().unwrap_or(Path::new("/proc/self/exe"));
    let failed = |source| Shared::File { what: "open", path: path.to_owned(), source };
    let program = OwnedFd::from(File::open(path).map_err(failed)?);
    let call = KeeperCall::send(args.socket.as_deref(), &args.name, KeeperOrder::Upgrade, program.as_fd())?;
    match call.answer()? {
        KeeperAnswer::Upgraded { pid } if args.json => print_json(&json!({ "pid": pid })),
        KeeperAnswer::Upgraded { pid } => {
            print(&format!("A new server of {} serves: process {pid}.\n", call.store))
        }
        KeeperAnswer::Refused(why) => {
            let given = args.program.as_ref().map(|path| printable(path.as_os_str().as_encoded_bytes()));
            let to = given.map_or_else(String::new, |path| format!(" to {path}"));
            Err(Error::Sentence(format!(
                "{} is not upgraded{to}, and its old program serves: {why}",
                call.store
            )))
        }
        KeeperAnswer::Saved { .. } => Err(call.unexpected()),
    }
}

/// An order that a keeper has got.
struct KeeperCall {
    channel: KeeperChannel,
    store: String,
}

impl KeeperCall {
    fn send(
        socket: Option<&Path>,
        name: &str,
        order: KeeperOrder,
        descriptor: BorrowedFd<'_>,
    ) -> Result<Self, Error> {
        let store = store_words(socket, name);
        let path = socket_path(socket, name)?;
        let channel = call_keeper(&path).map_err(|source| unreachable_store(&store, &path, source))?;
        channel.send(&order, &[descriptor]).map_err(sentence)?;
        Ok(Self { channel, store })
    }

    fn has_answer(&self, most: Duration) -> bool {
        let mut ready = [PollFd::new(&self.channel, PollFlags::IN)];
        matches!(poll(&mut ready, Timespec::try_from(most).ok().as_ref()), Ok(1..))
    }

    fn answer(&self) -> Result<KeeperAnswer, Error> {
        let answer = self.channel.receive().map(|(answer, _)| answer);
        answer.map_err(|_| {
            let store = &self.store;
            Error::Sentence(format!(
                "{store} gave no answer: the process that was to do it has ended. Try again"
            ))
        })
    }

    fn unexpected(&self) -> Error {
        Error::Sentence(format!("{} gave an answer of another kind than expected", self.store))
    }
}

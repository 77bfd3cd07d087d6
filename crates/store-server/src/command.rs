//! The table of commands: name, number of words, flags, place of the keys, and function. Dispatch, its errors and
//! COMMAND all come from it.

use caravan_store::{EntryHead, Store, StoreEntry, StoreError};

use crate::commands::{
    attach, clients, cluster, connection, counters, expiry, info, keys, ranges, settings, strings,
};
use crate::commands::{table, transactions};
use crate::dialogue::Dialogue;
use crate::error::CommandError;
use crate::key_transaction::KeyTransaction;
use crate::resp::reply::{ReplyMark, ReplyWriter};
use crate::resp::words::CommandWords;

/// One command.
#[derive(Debug)]
pub(crate) struct CommandSpec {
    /// In lower case; `client|list` for a command in a container.
    pub(crate) name: &'static str,
    /// The number of words, the name included; the least number if it is negative.
    pub(crate) arity: i32,
    /// Redis's flags, separated by spaces.
    pub(crate) flags: &'static str,
    /// The first key, the last key (from the end if negative) and the step between two; 0 for none.
    pub(crate) places: (i32, i32, i32),
    pub(crate) group: &'static str,
    /// The version of Redis that had it first.
    pub(crate) since: &'static str,
    pub(crate) summary: &'static str,
    pub(crate) call: CommandCall,
}

/// The function of a command.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CommandCall {
    /// It reads and writes keys in a transaction.
    Keys(KeysCall),
    /// The same, with a shorter way for when it is alone.
    Lone(fn(&Store, CommandWords<'_>, &mut ReplyWriter) -> Result<(), CommandError>, KeysCall),
    /// It concerns the connection, the server or the whole store.
    Dialogue(fn(&mut Dialogue, CommandWords<'_>) -> Result<(), CommandError>),
    /// The second word is a command of its own.
    Container(&'static [CommandSpec]),
}

/// The function of a command on keys.
pub(crate) type KeysCall = fn(&mut KeyCommand<'_, '_>) -> Result<(), CommandError>;

/// A command on keys, while it runs. Its function may run several times, so it has no effect but by the transaction
/// and the reply. It fails before its first write or never, because an error within MULTI leaves the writes before it.
#[derive(Debug)]
pub(crate) struct KeyCommand<'a, 's> {
    pub(crate) tx: KeyTransaction<'a, 's>,
    pub(crate) words: CommandWords<'a>,
    pub(crate) reply: &'a mut ReplyWriter,
    pub(crate) now_ms: u64,
    pub(crate) mark: ReplyMark,
    pub(crate) name: &'static str,
}

impl KeyCommand<'_, '_> {
    /// Returns the entry of a key unless it has expired. The transaction itself may have put it with an expiry in the past.
    pub(crate) fn entry(&mut self, key: &[u8]) -> Result<Option<StoreEntry>, StoreError> {
        let now_ms = self.now_ms;
        let is_live = |entry: &StoreEntry| entry.head.expires_at_ms.is_none_or(|at| at > now_ms);
        Ok(self.tx.entry(key)?.filter(is_live))
    }

    /// Returns the version and expiry of a key unless it has expired.
    pub(crate) fn head(&mut self, key: &[u8]) -> Result<Option<EntryHead>, StoreError> {
        let now_ms = self.now_ms;
        let is_live = |head: &EntryHead| head.expires_at_ms.is_none_or(|at| at > now_ms);
        Ok(self.tx.head(key)?.filter(is_live))
    }

    /// Returns the value of the key that is the first word after the name.
    pub(crate) fn value(&mut self) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.entry(self.words.word(1))?.map(|entry| entry.value))
    }

    /// Deletes a key, and returns whether it existed. A key that does not exist is not written.
    pub(crate) fn delete(&mut self, key: &[u8]) -> Result<bool, StoreError> {
        let exists = self.head(key)?.is_some();
        if exists {
            self.tx.delete(key)?;
        }
        Ok(exists)
    }
}

impl CommandSpec {
    fn has_flag(&self, flag: &str) -> bool {
        self.flags.split(' ').any(|other| other == flag)
    }

    /// Returns the place of the command in `all_specs`.
    pub(crate) fn number(&'static self) -> usize {
        let mut before = 0;
        for table in TABLES {
            // The place in the table, by the address: it is looked up for each command that runs.
            let offset = std::ptr::from_ref(self).addr().wrapping_sub(table.as_ptr().addr());
            if offset < size_of_val::<[Self]>(table) {
                return before + offset / size_of::<Self>();
            }
            before += table.len();
        }
        before
    }

    pub(crate) fn writes(&self) -> bool {
        self.has_flag("write")
    }

    pub(crate) fn needs_no_password(&self) -> bool {
        self.has_flag("no_auth")
    }

    /// Returns whether the command runs between MULTI and EXEC instead of being queued.
    pub(crate) fn is_at_once(&self) -> bool {
        matches!(
            self.name,
            "exec" | "discard" | "multi" | "watch" | "quit" | "reset" | "caravan.attach" | "caravan.member"
        )
    }

    /// Returns whether the command reads all keys that it names, and writes none.
    pub(crate) fn only_reads(&self) -> bool {
        self.has_flag("readonly")
    }

    /// Returns whether the command reads or writes more than the keys that it names.
    pub(crate) fn is_whole(&self) -> bool {
        self.places.0 == 0 && (self.has_flag("readonly") || self.has_flag("write") || self.name == "info")
    }

    /// Returns the keys among the words.
    pub(crate) fn keys<'a>(
        &self,
        words: CommandWords<'a>,
    ) -> impl Iterator<Item = &'a [u8]> + Clone + use<'a> {
        let (first, last, step) = self.places;
        let last = if last < 0 { words.len() as i32 + last } else { last };
        let places = (first..=last).step_by(step.max(1) as usize);
        places.filter(move |_| first > 0).map(move |place| words.word(place as usize))
    }

    fn check_words(&self, words: CommandWords<'_>) -> Result<(), CommandError> {
        let (count, arity) = (words.len() as i32, self.arity);
        let fits = if arity < 0 { count >= -arity } else { count == arity };
        match fits {
            true => Ok(()),
            false => Err(wrong_number(self.name)),
        }
    }
}

pub(crate) fn wrong_number(name: &str) -> CommandError {
    CommandError::Told(format!("ERR wrong number of arguments for '{name}' command"))
}

/// The command in the table whose name is this word, in letters of either case.
pub(crate) fn command(word: &[u8]) -> Option<&'static CommandSpec> {
    /// The longest name of a command.
    const NAME_BYTES_MAX: usize = 16;
    let mut name = [0; NAME_BYTES_MAX];
    let name = name.get_mut(..word.len())?;
    name.copy_from_slice(word);
    name.make_ascii_lowercase();
    let letter = usize::from(name.first()?.wrapping_sub(b'a'));
    let (begin, end) = (*LETTERS.get(letter)?, *LETTERS.get(letter + 1)?);
    let rows = COMMANDS.get(begin..end)?;
    let place = rows.binary_search_by(|spec| spec.name.as_bytes().cmp(name)).ok()?;
    rows.get(place)
}

/// Where in the table the names with each first letter begin, and where those with the last letter end: a search among the few
/// names with one letter takes half as long as among all.
static LETTERS: [usize; 27] = {
    let (mut begins, mut letter, mut row) = ([0; 27], 0, 0);
    while letter < begins.len() {
        while row < COMMANDS.len() && COMMANDS[row].name.as_bytes()[0] < b'a' + letter as u8 {
            row += 1;
        }
        begins[letter] = row;
        letter += 1;
    }
    begins
};

/// The tables of all commands: each is one static, so each of its rows has one address. (What a `static` of a slice points to
/// may stand in a program several times.)
static TABLES: [&[CommandSpec]; 6] = [&COMMANDS, &CLIENT, &CLUSTER, &COMMAND, &CONFIG, &DEBUG];

/// Returns all commands, those in containers last.
pub(crate) fn all_specs() -> impl Iterator<Item = &'static CommandSpec> {
    TABLES.into_iter().flatten()
}

/// Returns the command that a request names, whatever its number of words.
pub(crate) fn named(words: CommandWords<'_>) -> Option<&'static CommandSpec> {
    let spec = command(words.word(0))?;
    match spec.call {
        CommandCall::Container(inner) if words.len() >= 2 => {
            inner.iter().find(|inner| words.is(1, short_name(inner)))
        }
        _ => Some(spec),
    }
}

/// Finds the command, or within its container the one of the second word, and checks the number of words.
pub(crate) fn find(words: CommandWords<'_>) -> Result<&'static CommandSpec, CommandError> {
    let spec = command(words.word(0)).ok_or_else(|| unknown(words))?;
    if let CommandCall::Container(inner) = spec.call {
        spec.check_words(words)?;
        if words.len() >= 2 {
            let inner = inner.iter().find(|inner| words.is(1, short_name(inner)));
            let inner = inner.ok_or_else(|| unknown_inner(words, spec.name))?;
            inner.check_words(words)?;
            return Ok(inner);
        }
    }
    spec.check_words(words)?;
    Ok(spec)
}

/// Returns the name without that of its container.
pub(crate) fn short_name(spec: &CommandSpec) -> &'static str {
    spec.name.split_once('|').map_or(spec.name, |(_, inner)| inner)
}

/// Bytes of the client's words that an error shows.
const SHOWN_BYTES: usize = 128;

fn shown(word: &[u8], bytes: usize) -> &[u8] {
    let word = &word[..word.len().min(bytes)];
    // As in Redis, whose strings end there.
    word.split(|byte| *byte == 0).next().unwrap_or_default()
}

fn unknown(words: CommandWords<'_>) -> CommandError {
    let mut args = Vec::new();
    for word in words.from(1) {
        if args.len() >= SHOWN_BYTES {
            break;
        }
        let left = SHOWN_BYTES - args.len();
        args.extend_from_slice(&[b"'", shown(word, left), b"' "].concat());
    }
    let name = shown(words.word(0), SHOWN_BYTES);
    let text = [b"ERR unknown command '", name, b"', with args beginning with: ", &args[..]];
    CommandError::Quoted(text.concat())
}

fn unknown_inner(words: CommandWords<'_>, container: &str) -> CommandError {
    let name = shown(words.word(1), SHOWN_BYTES);
    let try_help = format!("'. Try {} HELP.", container.to_ascii_uppercase());
    CommandError::Quoted([b"ERR unknown subcommand '", name, try_help.as_bytes()].concat())
}

/// Writes a row of the table.
macro_rules! row {
    ($name:literal, $arity:literal, $flags:literal, $places:expr, $group:literal, $since:literal, $summary:literal, $kind:ident($($call:expr),+)) => {
        CommandSpec {
            name: $name,
            arity: $arity,
            flags: $flags,
            places: $places,
            group: $group,
            since: $since,
            summary: $summary,
            call: CommandCall::$kind($($call),+),
        }
    };
}

const NONE: (i32, i32, i32) = (0, 0, 0);
const ONE: (i32, i32, i32) = (1, 1, 1);
const ALL: (i32, i32, i32) = (1, -1, 1);
const PAIRS: (i32, i32, i32) = (1, -1, 2);

/// All commands, sorted by name.
#[rustfmt::skip]
pub(crate) static COMMANDS: [CommandSpec; 68] = [
    row!("append", 3, "write denyoom fast", ONE, "string", "2.0.0", "Appends to a value", Keys(ranges::append)),
    row!("asking", 1, "fast", NONE, "cluster", "3.0.0", "Sends the next command to a node that imports its slot; has no effect", Dialogue(cluster::accept)),
    row!("auth", -2, "noscript loading stale fast no_auth allow_busy", NONE, "connection", "1.0.0", "Gives the password", Dialogue(connection::auth)),
    row!("caravan.attach", -2, "noscript", NONE, "connection", "7.0.0", "Makes the connection a link of caravan_store's", Dialogue(attach::attach)),
    row!("caravan.member", -3, "noscript", NONE, "connection", "7.0.0", "Makes the connection one of another member of the cluster", Dialogue(attach::member)),
    row!("caravan.parts", -1, "noscript loading stale", NONE, "server", "7.0.0", "Returns which part each hash slot belongs to, and all servers", Dialogue(cluster::parts)),
    row!("caravan.status", 1, "noscript loading stale", NONE, "server", "7.0.0", "Returns the servers of the store and its copies, as JSON", Dialogue(cluster::status)),
    row!("client", -2, "", NONE, "connection", "2.4.0", "Commands on connections", Container(&CLIENT)),
    row!("cluster", -2, "", NONE, "cluster", "3.0.0", "Commands on the servers of a store", Container(&CLUSTER)),
    row!("command", -1, "loading stale", NONE, "server", "2.8.13", "Describes all commands", Container(&COMMAND)),
    row!("config", -2, "", NONE, "server", "2.0.0", "Commands on settings", Container(&CONFIG)),
    row!("dbsize", 1, "readonly fast", NONE, "server", "1.0.0", "Counts the keys", Dialogue(keys::dbsize)),
    row!("debug", -2, "admin noscript loading stale", NONE, "server", "1.0.0", "Commands for tests", Container(&DEBUG)),
    row!("decr", 2, "write denyoom fast", ONE, "string", "1.0.0", "Subtracts 1 from a number", Keys(counters::decr)),
    row!("decrby", 3, "write denyoom fast", ONE, "string", "1.0.0", "Subtracts from a number", Keys(counters::decrby)),
    row!("del", -2, "write", ALL, "generic", "1.0.0", "Deletes keys", Keys(keys::del)),
    row!("discard", 1, "noscript loading stale fast allow_busy", NONE, "transactions", "2.0.0", "Forgets the commands since MULTI", Dialogue(transactions::discard)),
    row!("echo", 2, "loading stale fast", NONE, "connection", "1.0.0", "Returns its argument", Dialogue(connection::echo)),
    row!("exec", 1, "noscript loading stale skip_slowlog", NONE, "transactions", "1.2.0", "Runs the commands since MULTI as a transaction", Dialogue(transactions::exec)),
    row!("exists", -2, "readonly fast", ALL, "generic", "1.0.0", "Counts which of the keys exist", Keys(keys::exists)),
    row!("expire", -3, "write fast", ONE, "generic", "1.0.0", "Lets a key expire after seconds", Keys(expiry::expire)),
    row!("expireat", -3, "write fast", ONE, "generic", "1.2.0", "Lets a key expire at a time in seconds", Keys(expiry::expireat)),
    row!("expiretime", 2, "readonly fast", ONE, "generic", "7.0.0", "Returns when a key expires, in seconds", Keys(expiry::expiretime)),
    row!("flushall", -1, "write", NONE, "server", "1.0.0", "Deletes all keys", Dialogue(keys::flush)),
    row!("flushdb", -1, "write", NONE, "server", "1.0.0", "Deletes all keys", Dialogue(keys::flush)),
    row!("get", 2, "readonly fast", ONE, "string", "1.0.0", "Returns a value", Lone(strings::get_alone, strings::get)),
    row!("getdel", 2, "write fast", ONE, "string", "6.2.0", "Returns a value and deletes it", Keys(strings::getdel)),
    row!("getex", -2, "write fast", ONE, "string", "6.2.0", "Returns a value and changes when it expires", Keys(strings::getex)),
    row!("getrange", 4, "readonly", ONE, "string", "2.4.0", "Returns a part of a value", Keys(ranges::getrange)),
    row!("getset", 3, "write denyoom fast", ONE, "string", "1.0.0", "Sets a value and returns the old one", Keys(strings::getset)),
    row!("hello", -1, "noscript loading stale fast no_auth allow_busy", NONE, "connection", "6.0.0", "Chooses the version of the protocol", Dialogue(connection::hello)),
    row!("incr", 2, "write denyoom fast", ONE, "string", "1.0.0", "Adds 1 to a number", Keys(counters::incr)),
    row!("incrby", 3, "write denyoom fast", ONE, "string", "1.0.0", "Adds to a number", Keys(counters::incrby)),
    row!("incrbyfloat", 3, "write denyoom fast", ONE, "string", "2.6.0", "Adds to a decimal number", Keys(counters::incrbyfloat)),
    row!("info", -1, "loading stale", NONE, "server", "1.0.0", "Describes the server", Dialogue(info::info)),
    row!("keys", 2, "readonly", NONE, "generic", "1.0.0", "Returns the keys that match a pattern", Dialogue(keys::keys)),
    row!("mget", -2, "readonly fast", ALL, "string", "1.0.0", "Returns several values", Keys(strings::mget)),
    row!("mset", -3, "write denyoom", PAIRS, "string", "1.0.1", "Sets several values at one moment", Keys(strings::mset)),
    row!("msetnx", -3, "write denyoom", PAIRS, "string", "1.0.1", "Sets several values if none of the keys exists", Keys(strings::msetnx)),
    row!("multi", 1, "noscript loading stale fast allow_busy", NONE, "transactions", "1.2.0", "Begins a transaction", Dialogue(transactions::multi)),
    row!("persist", 2, "write fast", ONE, "generic", "2.2.0", "Lets a key not expire", Keys(expiry::persist)),
    row!("pexpire", -3, "write fast", ONE, "generic", "2.6.0", "Lets a key expire after milliseconds", Keys(expiry::pexpire)),
    row!("pexpireat", -3, "write fast", ONE, "generic", "2.6.0", "Lets a key expire at a time in milliseconds", Keys(expiry::pexpireat)),
    row!("pexpiretime", 2, "readonly fast", ONE, "generic", "7.0.0", "Returns when a key expires, in milliseconds", Keys(expiry::pexpiretime)),
    row!("ping", -1, "fast", NONE, "connection", "1.0.0", "Answers PONG", Dialogue(connection::ping)),
    row!("psetex", 4, "write denyoom", ONE, "string", "2.6.0", "Sets a value that expires after milliseconds", Keys(strings::psetex)),
    row!("pttl", 2, "readonly fast", ONE, "generic", "2.6.0", "Returns in how many milliseconds a key expires", Keys(expiry::pttl)),
    row!("quit", -1, "noscript loading stale fast no_auth allow_busy", NONE, "connection", "1.0.0", "Closes the connection", Dialogue(connection::quit)),
    row!("randomkey", 1, "readonly", NONE, "generic", "1.0.0", "Returns one of the keys", Dialogue(keys::randomkey)),
    row!("readonly", 1, "loading stale fast", NONE, "cluster", "3.0.0", "Allows reads of copies; has no effect", Dialogue(cluster::accept)),
    row!("readwrite", 1, "loading stale fast", NONE, "cluster", "3.0.0", "Forbids reads of copies; has no effect", Dialogue(cluster::accept)),
    row!("rename", 3, "write", (1, 2, 1), "generic", "1.0.0", "Renames a key", Keys(keys::rename)),
    row!("renamenx", 3, "write fast", (1, 2, 1), "generic", "1.0.0", "Renames a key if the new name is free", Keys(keys::renamenx)),
    row!("reset", 1, "noscript loading stale fast no_auth allow_busy", NONE, "connection", "6.2.0", "Puts the connection back to its start", Dialogue(connection::reset)),
    row!("role", 1, "noscript loading stale fast", NONE, "server", "2.8.12", "Returns who has copies of the keys of this server", Dialogue(cluster::role)),
    row!("scan", -2, "readonly", NONE, "generic", "2.8.0", "Returns some keys, and where to go on", Dialogue(keys::scan)),
    row!("select", 2, "loading stale fast", NONE, "connection", "1.0.0", "Selects the database; there is only 0", Dialogue(connection::select)),
    row!("set", -3, "write denyoom", ONE, "string", "1.0.0", "Sets a value", Keys(strings::set)),
    row!("setex", 4, "write denyoom", ONE, "string", "2.0.0", "Sets a value that expires after seconds", Keys(strings::setex)),
    row!("setnx", 3, "write denyoom fast", ONE, "string", "1.0.0", "Sets a value if the key does not exist", Keys(strings::setnx)),
    row!("setrange", 4, "write denyoom", ONE, "string", "2.2.0", "Overwrites a part of a value", Keys(ranges::setrange)),
    row!("strlen", 2, "readonly fast", ONE, "string", "2.2.0", "Returns the length of a value", Keys(ranges::strlen)),
    row!("ttl", 2, "readonly fast", ONE, "generic", "1.0.0", "Returns in how many seconds a key expires", Keys(expiry::ttl)),
    row!("type", 2, "readonly fast", ONE, "generic", "1.0.0", "Returns the type of a key", Keys(keys::kind)),
    row!("unlink", -2, "write fast", ALL, "generic", "4.0.0", "Deletes keys", Keys(keys::del)),
    row!("unwatch", 1, "noscript loading stale fast allow_busy", NONE, "transactions", "2.2.0", "Forgets the keys of WATCH", Dialogue(transactions::unwatch)),
    row!("wait", 3, "noscript", NONE, "generic", "3.0.0", "Returns how many copies have the connection's writes", Dialogue(cluster::wait)),
    row!("watch", -2, "noscript loading stale fast allow_busy", ALL, "transactions", "2.2.0", "Lets EXEC fail if keys change before it", Dialogue(transactions::watch)),
];

#[rustfmt::skip]
static CLIENT: [CommandSpec; 6] = [
    row!("client|getname", 2, "noscript loading stale", NONE, "connection", "2.6.9", "Returns the connection's name", Dialogue(clients::getname)),
    row!("client|help", 2, "loading stale", NONE, "connection", "5.0.0", "Prints this help", Dialogue(table::help)),
    row!("client|id", 2, "noscript loading stale", NONE, "connection", "5.0.0", "Returns the connection's number", Dialogue(clients::id)),
    row!("client|info", 2, "noscript loading stale", NONE, "connection", "6.2.0", "Describes the connection", Dialogue(clients::info)),
    row!("client|list", -2, "admin noscript loading stale", NONE, "connection", "2.4.0", "Describes all connections", Dialogue(clients::list)),
    row!("client|setname", 3, "noscript loading stale", NONE, "connection", "2.6.9", "Names the connection", Dialogue(clients::setname)),
];

#[rustfmt::skip]
static CLUSTER: [CommandSpec; 9] = [
    row!("cluster|countkeysinslot", 3, "stale", NONE, "cluster", "3.0.0", "Return the number of keys in <slot>", Dialogue(cluster::countkeysinslot)),
    row!("cluster|getkeysinslot", 4, "stale", NONE, "cluster", "3.0.0", "Return key names stored by current node in a slot", Dialogue(cluster::getkeysinslot)),
    row!("cluster|help", 2, "loading stale", NONE, "cluster", "5.0.0", "Prints this help", Dialogue(cluster::help)),
    row!("cluster|info", 2, "stale", NONE, "cluster", "3.0.0", "Return information about the cluster", Dialogue(cluster::info)),
    row!("cluster|keyslot", 3, "stale", NONE, "cluster", "3.0.0", "Return the hash slot for <key>", Dialogue(cluster::keyslot)),
    row!("cluster|myid", 2, "stale", NONE, "cluster", "3.0.0", "Return the node id", Dialogue(cluster::myid)),
    row!("cluster|nodes", 2, "stale", NONE, "cluster", "3.0.0", "Return cluster configuration seen by node", Dialogue(cluster::nodes)),
    row!("cluster|shards", 2, "stale", NONE, "cluster", "7.0.0", "Return information about slot range mappings and the nodes associated with them", Dialogue(cluster::shards)),
    row!("cluster|slots", 2, "stale", NONE, "cluster", "3.0.0", "Return information about slots range mappings", Dialogue(cluster::slots)),
];

#[rustfmt::skip]
static COMMAND: [CommandSpec; 5] = [
    row!("command|count", 2, "loading stale", NONE, "server", "2.8.13", "Counts the commands", Dialogue(table::count)),
    row!("command|docs", -2, "loading stale", NONE, "server", "7.0.0", "Documents commands", Dialogue(table::docs)),
    row!("command|help", 2, "loading stale", NONE, "server", "5.0.0", "Prints this help", Dialogue(table::help)),
    row!("command|info", -2, "loading stale", NONE, "server", "2.8.13", "Describes commands", Dialogue(table::info)),
    row!("command|list", -2, "loading stale", NONE, "server", "7.0.0", "Returns the names of the commands", Dialogue(table::list)),
];

#[rustfmt::skip]
static CONFIG: [CommandSpec; 4] = [
    row!("config|get", -3, "admin noscript loading stale", NONE, "server", "2.0.0", "Returns settings", Dialogue(settings::get)),
    row!("config|help", 2, "loading stale", NONE, "server", "5.0.0", "Prints this help", Dialogue(table::help)),
    row!("config|resetstat", 2, "admin noscript loading stale", NONE, "server", "2.0.0", "Sets the counters of INFO back to zero", Dialogue(settings::reset_counters)),
    row!("config|set", -4, "admin noscript loading stale", NONE, "server", "2.0.0", "Changes settings", Dialogue(settings::set)),
];

#[rustfmt::skip]
static DEBUG: [CommandSpec; 2] = [
    row!("debug|help", 2, "loading stale", NONE, "server", "5.0.0", "Prints this help", Dialogue(table::help)),
    row!("debug|sleep", 3, "admin noscript loading stale", NONE, "server", "1.0.0", "Waits, with this connection only", Dialogue(clients::sleep)),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_has_a_number() {
        assert!(all_specs().enumerate().all(|(number, spec)| spec.number() == number));
        let inner = COMMANDS.iter().filter_map(|spec| match spec.call {
            CommandCall::Container(inner) => Some(inner.len()),
            _ => None,
        });
        assert_eq!(all_specs().count(), COMMANDS.len() + inner.sum::<usize>());
    }

    #[test]
    fn the_table_is_sorted_and_its_names_fit() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for spec in &COMMANDS {
            let upper = spec.name.to_ascii_uppercase();
            assert_eq!(command(upper.as_bytes()).map(|found| found.name), Some(spec.name));
            if let CommandCall::Container(inner) = spec.call {
                assert!(inner.iter().all(|inner| inner.name.starts_with(&format!("{}|", spec.name))));
            }
        }
    }
}

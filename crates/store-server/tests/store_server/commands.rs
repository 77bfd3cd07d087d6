//! The commands, as a table of requests and replies, on a clock of the test's own.

use std::sync::Arc;

use caravan_store::{Eviction, Store, StoreOptions};
use caravan_store_server::{Dialogue, ServedParts, ServerFacts, ServerState};

/// The clock at the start of each test.
const NOW_MS: u64 = 1_700_000_000_000;

struct Rig {
    state: Arc<ServerState>,
    store: Arc<Store>,
    now_ms: u64,
}

impl Rig {
    fn new(password: Option<&str>) -> Self {
        let store = Arc::new(Store::embedded(StoreOptions::new(64 << 20)).expect("a store"));
        let password = password.map(|password| password.as_bytes().to_vec());
        let state = ServerState::new(
            ServedParts::whole(Arc::clone(&store)).expect("parts"),
            ServerFacts::new("test"),
            password,
        );
        let rig = Self { state: Arc::new(state), store, now_ms: NOW_MS };
        rig.store.publish_now(NOW_MS);
        rig
    }

    fn dialogue(&self) -> Dialogue {
        Dialogue::new(Arc::clone(&self.state), "test".to_owned(), self.now_ms)
    }

    fn pass_ms(&mut self, ms: u64) {
        self.now_ms += ms;
        self.store.publish_now(self.now_ms);
    }

    /// Sends a line and compares the reply, in which a space stands for each end of a line.
    fn expect(&self, dialogue: &mut Dialogue, line: &str, expected: &str) {
        let request = format!("{line}\r\n");
        let mut left = request.as_bytes();
        while !left.is_empty() {
            left = &left[dialogue.serve(left, self.now_ms)..];
        }
        let output = std::mem::take(dialogue.output());
        let output = String::from_utf8_lossy(&output).replace("\r\n", " ");
        assert_eq!(output.trim_end(), expected, "{line}");
    }

    fn run(&self, lines: &[(&str, &str)]) {
        let mut dialogue = self.dialogue();
        lines.iter().for_each(|(line, expected)| self.expect(&mut dialogue, line, expected));
    }
}

#[test]
fn strings() {
    Rig::new(None).run(&[
        ("GET a", "$-1"),
        ("SET a 1", "+OK"),
        ("SET a 2 NX", "$-1"),
        ("SET b 2 XX", "$-1"),
        ("SET a 2 XX GET", "$1 1"),
        ("SET c 1 NX GET", "$-1"),
        ("SET a 3 NX XX", "-ERR syntax error"),
        ("SET a 3 EX", "-ERR syntax error"),
        ("SET a 3 EX 10 PX 10", "-ERR syntax error"),
        ("SET a 3 EX 10 KEEPTTL", "-ERR syntax error"),
        ("SET a 3 EX 0", "-ERR invalid expire time in 'set' command"),
        ("SET a 3 EX 9223372036854775807", "-ERR invalid expire time in 'set' command"),
        ("SET a 3 EX x", "-ERR value is not an integer or out of range"),
        ("SETEX a 0 x", "-ERR invalid expire time in 'setex' command"),
        ("GETSET a 4", "$1 2"),
        ("GETDEL a", "$1 4"),
        ("GETDEL a", "$-1"),
        ("MSET a 1 b", "-ERR wrong number of arguments for 'mset' command"),
        ("MSET a 1 b 2", "+OK"),
        ("MSETNX b 3 d 4", ":0"),
        ("MGET a b d", "*3 $1 1 $1 2 $-1"),
        ("MSETNX d 3 e 4", ":1"),
        ("SETNX d 3", ":0"),
        ("APPEND s Hello", ":5"),
        ("SETRANGE s 1 EL", ":5"),
        ("GETRANGE s 0 -1", "$5 HELlo"),
        ("SETRANGE s -1 x", "-ERR offset is out of range"),
        ("SETRANGE s 536870912 x", "-ERR string exceeds maximum allowed size (proto-max-bulk-len)"),
        ("SETRANGE none 3 \"\"", ":0"),
        ("EXISTS none", ":0"),
        ("STRLEN s", ":5"),
    ]);
}

#[test]
fn numbers() {
    Rig::new(None).run(&[
        ("INCR n", ":1"),
        ("DECRBY n 3", ":-2"),
        ("INCRBY n 9223372036854775807", ":9223372036854775805"),
        ("INCRBY n 10", "-ERR increment or decrement would overflow"),
        ("DECRBY n -9223372036854775808", "-ERR decrement would overflow"),
        ("SET n 01", "+OK"),
        ("INCR n", "-ERR value is not an integer or out of range"),
        ("SET n 3.0", "+OK"),
        ("INCRBYFLOAT n 1.1", "$3 4.1"),
        ("INCRBYFLOAT n x", "-ERR value is not a valid float"),
        ("INCRBYFLOAT n inf", "-ERR increment would produce NaN or Infinity"),
    ]);
}

#[test]
fn expiry() {
    let mut rig = Rig::new(None);
    let mut dialogue = rig.dialogue();
    for (line, expected) in [
        ("TTL a", ":-2"),
        ("SET a 1", "+OK"),
        ("TTL a", ":-1"),
        ("EXPIRE a 10 XX", ":0"),
        ("EXPIRE a 10 GT", ":0"),
        ("EXPIRE a 10 LT", ":1"),
        ("EXPIRE a 20 NX", ":0"),
        ("EXPIRE a 5 GT", ":0"),
        ("EXPIRE a 20 GT", ":1"),
        ("EXPIRE a 1 NX XX", "-ERR NX and XX, GT or LT options at the same time are not compatible"),
        ("EXPIRE a 1 GT LT", "-ERR GT and LT options at the same time are not compatible"),
        ("EXPIRE a 1 ZZ", "-ERR Unsupported option ZZ"),
        ("EXPIRE a 9223372036854775807", "-ERR invalid expire time in 'expire' command"),
        ("PEXPIREAT a 9223372036854775807", ":1"),
        ("PEXPIRETIME a", ":9223372036854775807"),
        ("EXPIREAT a 1700000020", ":1"),
        ("TTL a", ":20"),
        ("INCR a", ":2"),
        ("PTTL a", ":20000"),
        ("EXPIRETIME a", ":1700000020"),
        ("SET a 2 KEEPTTL", "+OK"),
        ("RENAME a b", "+OK"),
        ("TTL b", ":20"),
        ("PERSIST b", ":1"),
        ("PERSIST b", ":0"),
        ("GETEX b EX 20", "$1 2"),
        ("GETEX b PERSIST EX 20", "-ERR syntax error"),
    ] {
        rig.expect(&mut dialogue, line, expected);
    }
    rig.pass_ms(19_999);
    rig.expect(&mut dialogue, "PTTL b", ":1");
    rig.pass_ms(1);
    rig.expect(&mut dialogue, "GET b", "$-1");
    rig.run(&[
        ("SET a 1 PXAT 1", "+OK"),
        ("GET a", "$-1"),
        ("SET a 1", "+OK"),
        ("EXPIRE a -1", ":1"),
        ("EXISTS a", ":0"),
        ("MULTI", "+OK"),
        ("SET a 1 PXAT 1", "+QUEUED"),
        ("GET a", "+QUEUED"),
        ("EXEC", "*2 +OK $-1"),
    ]);
}

#[test]
fn keys() {
    Rig::new(None).run(&[
        ("MSET one 1 two 2 three 3", "+OK"),
        ("KEYS t*", "*2 $5 three $3 two"),
        ("DBSIZE", ":3"),
        ("SCAN 0 COUNT 100000 MATCH o*", "*2 $1 0 *1 $3 one"),
        ("SCAN 0 COUNT 100000 TYPE list", "*2 $1 0 *0"),
        ("SCAN x", "-ERR invalid cursor"),
        ("SCAN 0 COUNT 0", "-ERR syntax error"),
        ("TYPE one", "+string"),
        ("TYPE none", "+none"),
        ("RENAME none x", "-ERR no such key"),
        ("RENAME one one", "+OK"),
        ("RENAMENX one two", ":0"),
        ("RENAMENX one four", ":1"),
        ("DEL four two none", ":2"),
        ("UNLINK three three", ":1"),
        ("RANDOMKEY", "$-1"),
        ("FLUSHALL x", "-ERR syntax error"),
        ("FLUSHALL ASYNC", "+OK"),
    ]);
}

#[test]
fn transactions() {
    Rig::new(None).run(&[
        ("EXEC", "-ERR EXEC without MULTI"),
        ("DISCARD", "-ERR DISCARD without MULTI"),
        ("MULTI", "+OK"),
        ("MULTI", "-ERR MULTI calls can not be nested"),
        ("WATCH a", "-ERR WATCH inside MULTI is not allowed"),
        ("SET a x", "+QUEUED"),
        ("INCR a", "+QUEUED"),
        ("PING", "+QUEUED"),
        ("SET b y", "+QUEUED"),
        ("EXEC", "*4 +OK -ERR value is not an integer or out of range +PONG +OK"),
        ("MGET a b", "*2 $1 x $1 y"),
        ("MULTI", "+OK"),
        ("SET a z", "+QUEUED"),
        ("NONE", "-ERR unknown command 'NONE', with args beginning with:"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors."),
        ("MULTI", "+OK"),
        (
            "EXEC x",
            "-EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command",
        ),
        ("PING", "+PONG"),
        ("MULTI", "+OK"),
        ("FLUSHALL", "+QUEUED"),
        ("SET c 1", "+QUEUED"),
        ("DBSIZE", "+QUEUED"),
        ("KEYS *", "+QUEUED"),
        ("EXEC", "*4 +OK +OK :1 *1 $1 c"),
        ("MULTI", "+OK"),
        ("SET c 2", "+QUEUED"),
        ("DISCARD", "+OK"),
        ("GET c", "$1 1"),
    ]);
}

#[test]
fn a_watched_key_that_changes_stops_exec() {
    let mut rig = Rig::new(None);
    for (change, passes) in [("GET k", true), ("SET k 1", false), ("DEL k", false), ("SET other 1", true)] {
        for extra in ["PING", "DBSIZE"] {
            let (mut watcher, mut other) = (rig.dialogue(), rig.dialogue());
            rig.expect(&mut other, "SET k 0", "+OK");
            rig.expect(&mut watcher, "WATCH k", "+OK");
            other.serve(format!("{change}\r\n").as_bytes(), rig.now_ms);
            rig.expect(&mut watcher, "MULTI", "+OK");
            rig.expect(&mut watcher, extra, "+QUEUED");
            watcher.serve(b"EXEC\r\n", rig.now_ms);
            let output = std::mem::take(watcher.output());
            assert_eq!(output.starts_with(b"*1"), passes, "{change} {extra}");
        }
    }
    // A key that came and went was written, too.
    let (mut watcher, mut other) = (rig.dialogue(), rig.dialogue());
    rig.expect(&mut watcher, "WATCH new", "+OK");
    rig.expect(&mut other, "SET new 1", "+OK");
    rig.expect(&mut other, "DEL new", ":1");
    rig.expect(&mut watcher, "MULTI", "+OK");
    rig.expect(&mut watcher, "EXEC", "*-1");
    rig.expect(&mut watcher, "WATCH new", "+OK");
    rig.expect(&mut watcher, "MULTI", "+OK");
    rig.expect(&mut watcher, "SET new 2", "+QUEUED");
    rig.expect(&mut watcher, "EXEC", "*1 +OK");
    let mut dialogue = rig.dialogue();
    rig.expect(&mut dialogue, "SET k 1 PX 10", "+OK");
    rig.expect(&mut dialogue, "WATCH k", "+OK");
    rig.pass_ms(10);
    rig.expect(&mut dialogue, "MULTI", "+OK");
    rig.expect(&mut dialogue, "EXEC", "*-1");
}

#[test]
fn a_password_is_asked_for() {
    let rig = Rig::new(Some("secret"));
    rig.run(&[
        ("GET a", "-NOAUTH Authentication required."),
        ("AUTH wrong", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("AUTH secre", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("AUTH other secret", "-WRONGPASS invalid username-password pair or user is disabled."),
        ("AUTH default secret", "+OK"),
        ("GET a", "$-1"),
        ("RESET", "+RESET"),
        ("GET a", "-NOAUTH Authentication required."),
        ("AUTH secret", "+OK"),
        ("CONFIG SET requirepass \"\"", "+OK"),
    ]);
    rig.run(&[("GET a", "$-1")]);
}

#[test]
fn connections_and_settings() {
    Rig::new(None).run(&[
        ("PING", "+PONG"),
        ("PING hi", "$2 hi"),
        ("PING a b", "-ERR wrong number of arguments for 'ping' command"),
        ("ECHO hi", "$2 hi"),
        ("SELECT 0", "+OK"),
        ("SELECT 1", "-ERR DB index is out of range"),
        ("CLIENT", "-ERR wrong number of arguments for 'client' command"),
        ("CLIENT NONE", "-ERR unknown subcommand 'NONE'. Try CLIENT HELP."),
        ("CONFIG HELP", "*9 +CONFIG <subcommand> [<arg> [value] [opt] ...]. Subcommands are: +GET +    Returns settings. +HELP +    Prints this help. +RESETSTAT +    Sets the counters of INFO back to zero. +SET +    Changes settings."),
        ("COMMAND INFO none client|none", "*2 $-1 $-1"),
        ("COMMAND INFO client|ID", "*1 *10 $9 client|id :2 *3 +noscript +loading +stale :0 :0 :0 *0 *0 *0 *0"),
        ("COMMAND LIST FILTERBY PATTERN getr*", "*1 $8 getrange"),
        ("CLIENT GETNAME", "$-1"),
        ("CLIENT SETNAME \"a b\"", "-ERR Client names cannot contain spaces, newlines or special characters."),
        ("CLIENT SETNAME ab", "+OK"),
        ("CLIENT GETNAME", "$2 ab"),
        ("CLIENT SETNAME", "-ERR wrong number of arguments for 'client|setname' command"),
        ("CLIENT ID", ":1"),
        ("CONFIG GET maxm?mory", "*2 $9 maxmemory $8 67108864"),
        ("CONFIG SET none 1", "-ERR Unknown option or number of arguments for CONFIG SET - 'none'"),
        ("CONFIG SET port 1", "-ERR CONFIG SET failed (possibly related to argument 'port') - can't set immutable config"),
        ("CONFIG SET maxclients x", "-ERR CONFIG SET failed (possibly related to argument 'maxclients') - argument couldn't be parsed into an integer"),
        ("CONFIG SET maxclients 3 maxclients 4", "-ERR CONFIG SET failed (possibly related to argument 'maxclients') - duplicate parameter"),
        ("CONFIG SET maxclients 5", "+OK"),
        ("CONFIG GET maxclients", "*2 $10 maxclients $1 5"),
        ("HELLO 4", "-NOPROTO unsupported protocol version"),
        ("HELLO 3 X", "-ERR Syntax error in HELLO option 'X'"),
        ("HELLO 3", "%7 $6 server $5 redis $7 version $6 7.0.15 $5 proto :3 $2 id :1 $4 mode $10 standalone $4 role $6 master $7 modules *0"),
        ("GET none", "_"),
        ("CONFIG GET none", "%0"),
        ("RESET", "+RESET"),
        ("GET none", "$-1"),
        ("foo a b", "-ERR unknown command 'foo', with args beginning with: 'a' 'b'"),
        ("QUIT", "+OK"),
    ]);
}

#[test]
fn the_list_of_clients_has_the_fields_that_clients_of_redis_expect() {
    let rig = Rig::new(None);
    let (mut one, mut two) = (rig.dialogue(), rig.dialogue());
    rig.expect(&mut two, "MULTI", "+OK");
    rig.expect(&mut two, "SET k 0123456789", "+QUEUED");
    one.serve(b"CLIENT LIST\r\n", rig.now_ms);
    let text = String::from_utf8_lossy(one.output()).into_owned();
    let lines: Vec<&str> = text.lines().filter(|line| line.starts_with("id=")).collect();
    let field = |line: &str, name: &str| {
        let value = line.split(' ').find_map(|field| field.strip_prefix(&format!("{name}=")));
        value.unwrap_or_else(|| panic!("{name} is missing in {line}")).to_owned()
    };
    // redis-py reads these as numbers.
    for name in "id age idle db sub psub multi qbuf qbuf-free obl argv-mem oll omem tot-mem".split(' ') {
        assert!(lines.iter().all(|line| field(line, name).parse::<i64>().is_ok()), "{name}: {text}");
    }
    assert_eq!((field(lines[0], "multi"), field(lines[1], "multi")), ("-1".to_owned(), "1".to_owned()));
    assert_eq!(field(lines[0], "multi-mem"), "0");
    assert!(field(lines[1], "multi-mem").parse::<usize>().expect("a number") >= 10, "{text}");
    rig.expect(&mut two, "DISCARD", "+OK");
    assert!(two.output().is_empty());
}

#[test]
fn a_key_that_is_too_long_is_refused_before_anything_is_written() {
    let rig = Rig::new(None);
    let mut dialogue = rig.dialogue();
    let long = "x".repeat(caravan_store::limits::KEY_BYTES_MAX + 1);
    let mset = format!("*5\r\n$4\r\nMSET\r\n$1\r\na\r\n$1\r\n1\r\n${}\r\n{long}\r\n$1\r\n1\r\n", long.len());
    let request = format!("{mset}GET a\r\n");
    dialogue.serve(request.as_bytes(), rig.now_ms);
    let output = String::from_utf8_lossy(dialogue.output()).into_owned();
    assert!(output.contains("-ERR the key has") && output.ends_with("$-1\r\n"), "{output}");
}

#[test]
fn a_value_larger_than_the_memory_costs_no_memory() {
    let rig = Rig::new(None);
    let mut dialogue = rig.dialogue();
    dialogue.serve(b"SETRANGE a 536870000 x\r\nSETRANGE a 536870912 x\r\nGET a\r\n", rig.now_ms);
    let output = String::from_utf8_lossy(dialogue.output()).into_owned();
    let lines: Vec<_> = output.split("\r\n").collect();
    assert!(lines[0].starts_with("-OOM") && lines[1].contains("maximum allowed size"), "{output}");
    assert_eq!(lines[2], "$-1");
}

/// Sets keys until one is refused, at most 400, and returns the last reply.
fn fill(eviction: Eviction) -> (Rig, Dialogue, String) {
    let store = Store::embedded(StoreOptions::new(8 << 20).eviction(eviction)).expect("a store");
    let store = Arc::new(store);
    let state = ServerState::new(
        ServedParts::whole(Arc::clone(&store)).expect("parts"),
        ServerFacts::new("test"),
        None,
    );
    let rig = Rig { state: Arc::new(state), store, now_ms: NOW_MS };
    let mut dialogue = rig.dialogue();
    let value = "x".repeat(50_000);
    for number in 0..400 {
        dialogue.serve(format!("SET k{number} {value}\r\n").as_bytes(), NOW_MS);
        let reply = String::from_utf8(std::mem::take(dialogue.output())).expect("text");
        if reply != "+OK\r\n" {
            return (rig, dialogue, reply);
        }
    }
    (rig, dialogue, "+OK\r\n".to_owned())
}

#[test]
fn a_full_store_refuses_writes_in_the_words_of_redis() {
    let (rig, mut dialogue, reply) = fill(Eviction::Refuse);
    assert_eq!(reply, "-OOM command not allowed when used memory > 'maxmemory'.\r\n");
    rig.expect(&mut dialogue, "MULTI", "+OK");
    dialogue.serve(format!("SET new {}\r\n", "x".repeat(50_000)).as_bytes(), NOW_MS);
    dialogue.output().clear();
    let text = "-EXECABORT Transaction discarded because of: OOM command not allowed when used memory > 'maxmemory'.";
    rig.expect(&mut dialogue, "EXEC", text);
    rig.expect(&mut dialogue, "GET new", "$-1");
    rig.expect(&mut dialogue, "DEL k0", ":1");
    rig.expect(&mut dialogue, "SET small 1", "+OK");
}

#[test]
fn a_store_that_evicts_takes_writes_for_ever() {
    let (rig, mut dialogue, reply) = fill(Eviction::LeastRecentlyUsed);
    assert_eq!(reply, "+OK\r\n");
    rig.expect(&mut dialogue, "EXISTS k399", ":1");
    assert!(rig.store.counts().evicted > 100);
}

/// Returns the value of a line of INFO.
fn info(rig: &Rig, dialogue: &mut Dialogue, name: &str) -> Option<String> {
    dialogue.serve(b"INFO everything\r\n", rig.now_ms);
    let text = String::from_utf8(std::mem::take(dialogue.output())).expect("text");
    text.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.to_owned()))
}

#[test]
fn calls_failures_and_times_are_counted_for_each_command() {
    let rig = Rig::new(None);
    let dialogue = &mut rig.dialogue();
    let pipeline = b"SET a b\r\n".repeat(100);
    assert_eq!(dialogue.serve(&pipeline, rig.now_ms), pipeline.len());
    dialogue.output().clear();
    rig.expect(dialogue, "SET a", "-ERR wrong number of arguments for 'set' command");
    rig.expect(dialogue, "INCR a", "-ERR value is not an integer or out of range");
    rig.expect(dialogue, "NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with:");
    // Within a transaction, each command counts.
    for (line, reply) in [("MULTI", "+OK"), ("SET a c", "+QUEUED"), ("INCR a", "+QUEUED")] {
        rig.expect(dialogue, line, reply);
    }
    rig.expect(dialogue, "EXEC", "*2 +OK -ERR value is not an integer or out of range");
    let set = info(&rig, dialogue, "cmdstat_set").expect("counted");
    assert!(set.starts_with("calls=101,usec="), "{set}");
    assert!(set.ends_with(",rejected_calls=1,failed_calls=0"), "{set}");
    let incr = info(&rig, dialogue, "cmdstat_incr").expect("counted");
    assert!(incr.starts_with("calls=2,") && incr.ends_with(",rejected_calls=0,failed_calls=2"), "{incr}");
    assert_eq!(info(&rig, dialogue, "errorstat_ERR").as_deref(), Some("count=4"));
    assert_eq!(info(&rig, dialogue, "total_error_replies").as_deref(), Some("4"));
    let times = info(&rig, dialogue, "latency_percentiles_usec_set").expect("timed");
    assert!(times.starts_with("p50=") && times.contains(",p99.9="), "{times}");
    assert_eq!(info(&rig, dialogue, "cmdstat_del"), None);
    rig.expect(dialogue, "CONFIG SET latency-tracking-info-percentiles 101", "-ERR CONFIG SET failed (possibly related to argument 'latency-tracking-info-percentiles') - argument must be at most 16 percentages between 0 and 100");
    rig.expect(dialogue, "CONFIG RESETSTAT", "+OK");
    assert_eq!(info(&rig, dialogue, "cmdstat_set"), None);
    assert_eq!(info(&rig, dialogue, "latency_percentiles_usec_set"), None);
    assert_eq!(info(&rig, dialogue, "total_error_replies").as_deref(), Some("0"));
}

#[test]
fn info_tells_what_the_memory_is_used_for() {
    let rig = Rig::new(None);
    let dialogue = &mut rig.dialogue();
    rig.store.put(b"a", &[b'x'; 50_000]).expect("room");
    let number = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok()).expect("a number");
    let before = number(info(&rig, dialogue, "memory_fragmented_bytes"));
    rig.store.delete(b"a").expect("deleted");
    let after = number(info(&rig, dialogue, "memory_fragmented_bytes"));
    assert!((50_000..100_000).contains(&(after - before)), "{before} {after}");
    dialogue.serve(b"INFO memory\r\n", rig.now_ms);
    let text = String::from_utf8(std::mem::take(dialogue.output())).expect("text");
    let classes: Vec<&str> = text.lines().filter(|line| line.starts_with("memory_class_")).collect();
    assert!(classes.iter().any(|line| line.ends_with(",used=0")), "{classes:?}");
}

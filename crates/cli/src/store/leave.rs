//! `caravan store leave`: a server hands its parts over, and leaves the store.

use std::time::{Duration, Instant};

use caravan_bench::interrupt::{GLANCE, Interrupt};
use caravan_cluster::{Configuration, MemberIdentity};
use caravan_segment::printable;
use caravan_store_server::StoreAnswer;
use serde_json::json;

use crate::args::StoreLeave;
use crate::error::Error;
use crate::store::child::progress;
use crate::store::status::{configuration, connect};
use crate::store::{password, sentence};

/// How often the others are asked again: a manager that is replaced forgets what it was asked for.
const ASK_PAUSE: Duration = Duration::from_secs(2);
/// How long the others may be out of reach.
const REACH_MAX: Duration = Duration::from_secs(10);

/// Asks the store, and waits until the server is gone.
pub fn run(args: &StoreLeave) -> Result<(), Error> {
    let interrupt = Interrupt::watch()?;
    let secret = args.password_file.as_deref().map(password).transpose()?;
    let name = &args.member;
    let mut found = configuration(&args.place)?;
    let member = found.member_by_name(name).map(|member| member.identity()).ok_or_else(|| {
        let (store, names) = (&found.store, names(&found));
        Error::Sentence(format!("the store {store} has no server with the name {name}: it has {names}"))
    })?;
    let (mut asked, mut reached) = (None::<Instant>, Instant::now());
    let bar = progress("handing over", copies(&found, member));
    let mut told = None;
    while found.has(member) {
        if asked.is_none_or(|asked| asked.elapsed() >= ASK_PAUSE) {
            match ask(&found, name, secret.as_deref()) {
                Ok(()) => reached = Instant::now(),
                Err(error) if asked.is_none() || reached.elapsed() > REACH_MAX => return Err(error),
                Err(_) => {}
            }
            asked = Some(Instant::now());
        }
        let left = copies(&found, member);
        bar.set_position(bar.length().unwrap_or(0).saturating_sub(left));
        if args.json && told != Some(left) {
            crate::print_json(&json!({ "event": "leaving", "member": name, "copies_left": left }))?;
            told = Some(left);
        }
        interrupt.check().inspect_err(|_| {
            bar.finish_and_clear();
            crate::store::tell(&format!("the server {name} goes on leaving"));
        })?;
        std::thread::sleep(GLANCE);
        found = configuration(&args.place)?;
    }
    bar.finish_and_clear();
    let store = &found.store;
    match args.json {
        true => crate::print_json(&json!({ "event": "left", "member": name, "store": store })),
        false => crate::print(&format!("The server {name} has left the store {store}, and ends.\n")),
    }
}

/// Returns how many copies of parts a member has.
fn copies(configuration: &Configuration, member: MemberIdentity) -> u64 {
    let has = |part: &&caravan_cluster::Part| part.holders().any(|holder| holder == member.id);
    configuration.parts.iter().filter(has).count() as u64
}

fn names(configuration: &Configuration) -> String {
    let names: Vec<&str> = configuration.members.iter().map(|member| member.name.as_str()).collect();
    names.join(", ")
}

/// Asks one of the servers, whichever answers; itself last, because the others stay.
fn ask(configuration: &Configuration, name: &str, secret: Option<&[u8]>) -> Result<(), Error> {
    let mut members: Vec<_> = configuration.members.iter().collect();
    members.sort_by_key(|member| member.name == name);
    let mut reasons = Vec::new();
    for member in members {
        let answer = connect(&member.client_address, secret).map_err(|error| error.to_string()).and_then(
            |mut client| {
                client
                    .call(&[b"CARAVAN.MEMBER", b"LEAVE", name.as_bytes()])
                    .map_err(|error| error.to_string())
            },
        );
        match answer {
            Ok(StoreAnswer::Error(why)) if !why.starts_with(b"TRYAGAIN") => {
                return Err(sentence(format!("the server {} refused: {}", member.name, printable(why))));
            }
            Ok(_) => return Ok(()),
            Err(why) => reasons.push(format!("{} at {}: {why}", member.name, member.client_address)),
        }
    }
    Err(sentence(format!("no server of the store {} answers: {}", configuration.store, reasons.join("; "))))
}

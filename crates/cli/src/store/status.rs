//! `caravan store status`: the servers of a store, its parts and their copies.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use caravan_bench::number::binary;
use caravan_cluster::{Configuration, MemberId, Part, PartId, SlotRange};
use caravan_segment::printable;
use caravan_store_server::{ClientError, FeedReport, MemberStatus, StoreAnswer, StoreClient};
use serde::Serialize;

use crate::args::StoreStatus;
use crate::error::Error;
use crate::store::{StoreTalk, password, register, sentence, socket_path};
use crate::top::table;

/// How long the register may take to answer.
const REGISTER_MAX: Duration = Duration::from_secs(5);
/// How long a server may say nothing until it counts as silent.
const SERVER_MAX: Duration = Duration::from_secs(1);

/// How long a server is asked again that has just lost its lease.
const LEASE_MAX: Duration = Duration::from_secs(10);

/// Shows the store once.
pub fn run(args: &StoreStatus) -> Result<(), Error> {
    let view = match &args.cluster {
        Some(place) => StatusView::of(&configuration(place)?, None),
        None => asked(args)?,
    };
    match args.choice.json {
        true => crate::print_json(&view),
        false => crate::print(&text(&view)),
    }
}

pub(super) fn configuration(place: &str) -> Result<Configuration, Error> {
    if !place.starts_with("etcd://") && !Path::new(place).exists() {
        return Err(Error::Sentence(format!(
            "{}: there is no such file. Give the PLACE that the servers got with --cluster",
            printable(place)
        )));
    }
    let stored = register(place)?.read(Instant::now() + REGISTER_MAX).map_err(sentence)?;
    let none = || Error::Sentence(format!("{} holds no configuration yet", printable(place)));
    Ok(stored.ok_or_else(none)?.configuration)
}

/// Asks one server of this host, and then all others.
fn asked(args: &StoreStatus) -> Result<StatusView, Error> {
    let mut choice = args.choice.clone();
    if choice.socket.is_none() {
        choice.socket = server_socket(&choice.name)?;
    }
    let secret = choice.password_file.as_deref().map(password).transpose()?;
    let mut talk = StoreTalk::open(&choice)?;
    let begin = Instant::now();
    let answer = loop {
        match talk.client.call(&[b"CARAVAN.STATUS"]) {
            // A server that has no lease at this moment says nothing more on this connection.
            Err(ClientError::Closed) if begin.elapsed() < LEASE_MAX => {
                std::thread::sleep(Duration::from_millis(50));
                talk = StoreTalk::open(&choice)?;
            }
            answer => break talk.taken(answer)?,
        }
    };
    let StoreAnswer::Bulk(told) = answer else { return Err(talk.unexpected()) };
    let own: MemberStatus = serde_json::from_slice(&told).map_err(|_| talk.unexpected())?;
    own.configuration.check().map_err(sentence)?;
    let others = own.configuration.members.iter().filter(|member| member.name != own.member);
    let mut told: BTreeMap<String, MemberStatus> = std::thread::scope(|scope| {
        let asking: Vec<_> = others
            .map(|member| {
                let secret = secret.as_deref();
                scope.spawn(move || Some((member.name.clone(), ask(&member.client_address, secret).ok()?)))
            })
            .collect();
        asking.into_iter().filter_map(|thread| thread.join().ok().flatten()).collect()
    });
    told.insert(own.member.clone(), own);
    // The newest configuration that anybody knows.
    let newest = told.values().map(|status| &status.configuration).max_by_key(|found| found.epoch);
    let newest = newest.ok_or_else(|| talk.unexpected())?.clone();
    Ok(StatusView::of(&newest, Some(&told)))
}

/// Returns the socket of the store with this name on this host, or of one of its servers if it has several.
fn server_socket(name: &str) -> Result<Option<PathBuf>, Error> {
    let socket = socket_path(None, name)?;
    if socket.exists() {
        return Ok(None);
    }
    let (Some(folder), prefix) = (socket.parent(), format!("{name}.")) else { return Ok(None) };
    let is_server = |path: &PathBuf| {
        let file = path.file_name().and_then(|file| file.to_str());
        let middle = file.and_then(|file| file.strip_prefix(&prefix)?.strip_suffix(".sock"));
        middle.is_some() && StoreClient::connect(path).is_ok()
    };
    let mut paths: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    paths.sort();
    Ok(paths.into_iter().find(is_server))
}

/// Returns an answer that is no error.
fn accepted(answer: StoreAnswer) -> io::Result<StoreAnswer> {
    match answer {
        StoreAnswer::Error(why) => Err(io::Error::other(format!("it refused: {}", printable(why)))),
        answer => Ok(answer),
    }
}

/// Connects to a server at its address: `HOST:PORT`, or `unix:PATH`.
pub(super) fn connect(address: &str, secret: Option<&[u8]>) -> io::Result<StoreClient> {
    let mut client = match address.strip_prefix("unix:") {
        Some(path) => StoreClient::connect(Path::new(path))?,
        None => StoreClient::connect_tcp(address, SERVER_MAX)?,
    };
    client.limit_silence(SERVER_MAX)?;
    if let Some(secret) = secret {
        accepted(client.call(&[b"AUTH", secret]).map_err(io::Error::other)?)?;
    }
    Ok(client)
}

/// Asks a server what it knows of its store.
pub(super) fn ask(address: &str, secret: Option<&[u8]>) -> io::Result<MemberStatus> {
    let mut client = connect(address, secret)?;
    match accepted(client.call(&[b"CARAVAN.STATUS"]).map_err(io::Error::other)?)? {
        StoreAnswer::Bulk(told) => Ok(serde_json::from_slice(&told)?),
        _ => Err(io::Error::other("it has no status")),
    }
}

/// What is shown; as JSON it is one line.
#[derive(Debug, Serialize)]
struct StatusView {
    store: String,
    epoch: u64,
    /// How many copies of each part there should be, that of its primary included.
    copies: u8,
    servers: Vec<ServerRow>,
    parts: Vec<PartRow>,
}

#[derive(Debug, Serialize)]
struct ServerRow {
    name: String,
    address: String,
    /// `alive` or `silent`; none if it was not asked.
    state: Option<&'static str>,
    is_manager: bool,
    primary_of: Vec<PartId>,
}

#[derive(Debug, Serialize)]
struct PartRow {
    part: PartId,
    slots: Vec<SlotRange>,
    primary: Option<String>,
    copies: Vec<CopyRow>,
    is_lost: bool,
}

#[derive(Debug, Serialize)]
struct CopyRow {
    server: String,
    is_complete: bool,
    carrier: Option<String>,
    behind_bytes: Option<u64>,
    filled_percent: Option<u64>,
    broken: Option<String>,
}

impl StatusView {
    /// Returns what a configuration says, and what servers have told, if they were asked.
    fn of(configuration: &Configuration, told: Option<&BTreeMap<String, MemberStatus>>) -> Self {
        let name =
            |id: MemberId| configuration.member(id).map_or_else(String::new, |member| member.name.clone());
        let servers = configuration.members.iter().map(|member| {
            let parts = configuration.parts.iter().filter(|part| part.primary == Some(member.id));
            ServerRow {
                name: member.name.clone(),
                address: member.client_address.clone(),
                state: told.map(|told| if told.contains_key(&member.name) { "alive" } else { "silent" }),
                is_manager: member.id == configuration.manager,
                primary_of: parts.map(|part| part.id).collect(),
            }
        });
        let parts = configuration.parts.iter().map(|part| {
            let primary = part.primary.map(name);
            let status = told.zip(primary.as_ref()).and_then(|(told, primary)| told.get(primary));
            let feeds = status.and_then(|status| status.feeds.get(&part.id)).map_or(&[][..], Vec::as_slice);
            PartRow {
                part: part.id,
                slots: part.slots.clone(),
                primary,
                copies: copies(part, feeds, name),
                is_lost: part.lost.is_some(),
            }
        });
        Self {
            store: configuration.store.clone(),
            epoch: configuration.epoch,
            copies: configuration.copies,
            servers: servers.collect(),
            parts: parts.collect(),
        }
    }
}

fn copies(part: &Part, feeds: &[FeedReport], name: impl Fn(MemberId) -> String) -> Vec<CopyRow> {
    let complete = part.backups.iter().map(|id| (*id, true));
    let all = complete.chain(part.filling.iter().map(|copy| (copy.member, false)));
    all.map(|(id, is_complete)| {
        let server = name(id);
        let feed = feeds.iter().find(|feed| feed.member == server);
        CopyRow {
            is_complete,
            carrier: feed.and_then(|feed| feed.carrier.clone()),
            behind_bytes: feed.and_then(|feed| feed.behind_bytes),
            filled_percent: feed.and_then(|feed| feed.filled_percent).filter(|_| !is_complete),
            broken: feed.and_then(|feed| feed.broken.clone()),
            server,
        }
    })
    .collect()
}

fn text(view: &StatusView) -> String {
    let (store, epoch, copies) = (&view.store, view.epoch, view.copies);
    let head =
        format!("store {store}, epoch {epoch}: each part is to have {copies} copies, the primary's included");
    let servers: Vec<_> = view.servers.iter().map(|server| (server_cells(server), String::new())).collect();
    let parts: Vec<_> = view.parts.iter().map(|part| (part_cells(part), copies_text(part))).collect();
    let servers = table(&["SERVER", "ADDRESS", "STATE", "PRIMARY OF"], 4, "", &servers);
    let parts = table(&["PART", "SLOTS", "PRIMARY"], 3, "OTHER COPIES", &parts);
    let lines = [head].into_iter().chain(servers).chain([String::new()]).chain(parts);
    lines.fold(String::new(), |text, line| text + printable(line.trim_end()).as_str() + "\n")
}

fn server_cells(server: &ServerRow) -> [String; 4] {
    let parts: Vec<String> = server.primary_of.iter().map(PartId::to_string).collect();
    let parts = if parts.is_empty() { "-".to_owned() } else { parts.join(", ") };
    let manager = if server.is_manager { ", the manager" } else { "" };
    [
        server.name.clone(),
        server.address.clone(),
        format!("{}{manager}", server.state.unwrap_or("not asked")),
        parts,
    ]
}

fn part_cells(part: &PartRow) -> [String; 3] {
    let slots: Vec<String> = part.slots.iter().map(SlotRange::to_string).collect();
    let primary = match (&part.primary, part.is_lost) {
        (Some(primary), _) => primary.clone(),
        (None, true) => "LOST".to_owned(),
        (None, false) => "none".to_owned(),
    };
    [part.part.to_string(), slots.join(","), primary]
}

fn copies_text(part: &PartRow) -> String {
    let words = |copy: &CopyRow| {
        let mut words = Vec::new();
        words.extend(copy.carrier.clone());
        match copy.filled_percent {
            _ if copy.is_complete => words.push("complete".to_owned()),
            Some(percent) => words.push(format!("filling, {percent} %")),
            None => words.push("filling".to_owned()),
        }
        words.extend(
            copy.behind_bytes.filter(|bytes| *bytes > 0).map(|bytes| format!("{} behind", binary(bytes))),
        );
        words.extend(copy.broken.as_ref().map(|why| format!("out of reach: {why}")));
        format!("{} ({})", copy.server, words.join(", "))
    };
    let copies: Vec<String> = part.copies.iter().map(words).collect();
    if copies.is_empty() { "none".to_owned() } else { copies.join("; ") }
}

//! etcd's JSON gateway: calls with deadlines, endpoints in turn, tokens that expire, and etcd's errors in plain words.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use ureq::tls::{Certificate, ClientCert, PemItem, PrivateKey, RootCerts, TlsConfig};
use ureq::{Agent, Body};

use super::super::{Revision, envelope};
use super::{ATTEMPT, EtcdOptions, EtcdTls};
use crate::error::ClusterError;

/// The most bytes of an answer: a configuration in base64, with what etcd says around it.
const ANSWER_BYTES_MAX: u64 = envelope::BYTES_MAX as u64 * 2;

/// The client of all endpoints.
pub(super) struct Gateway {
    options: EtcdOptions,
    agent: Agent,
    /// The endpoint that has answered last.
    current: AtomicUsize,
    /// The token of the user, once etcd has given one.
    token: Mutex<Option<String>>,
}

#[derive(Deserialize)]
pub(super) struct KeyValue {
    #[serde(default)]
    mod_revision: String,
    #[serde(default)]
    pub(super) value: String,
}

#[derive(Deserialize)]
pub(super) struct RangeAnswer {
    #[serde(default)]
    pub(super) kvs: Vec<KeyValue>,
}

#[derive(Deserialize)]
pub(super) struct TransactionAnswer {
    header: Header,
    #[serde(default)]
    pub(super) succeeded: bool,
    #[serde(default)]
    responses: Vec<TransactionPart>,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    revision: String,
}

#[derive(Deserialize)]
struct TransactionPart {
    response_range: Option<RangeAnswer>,
}

#[derive(Deserialize)]
struct Token {
    token: String,
}

/// A line of a watch.
#[derive(Deserialize)]
struct WatchLine {
    result: Option<WatchNews>,
}

#[derive(Deserialize)]
struct WatchNews {
    #[serde(default)]
    events: Vec<WatchEvent>,
}

#[derive(Deserialize)]
struct WatchEvent {
    /// Left out for a writing.
    #[serde(rename = "type")]
    kind: Option<String>,
    kv: KeyValue,
}

/// etcd's words for what went wrong, with the code of gRPC.
#[derive(Deserialize)]
struct Complaint {
    #[serde(default)]
    code: i64,
    #[serde(default)]
    message: String,
    #[serde(default)]
    error: Value,
}

/// How a watch ended.
pub(super) enum WatchEnd {
    /// Somebody wrote this.
    Found(KeyValue),
    /// It was silent, cut off, or refused: a read tells more.
    Nothing,
}

/// What came of one attempt.
enum Failure {
    /// Another endpoint may answer.
    Endpoint(String),
    /// The token is not valid any more.
    Token,
    /// No endpoint will say anything else.
    Refused(String),
}

impl KeyValue {
    pub(super) fn revision(&self) -> Result<Revision, ClusterError> {
        number(&self.mod_revision)
    }
}

impl TransactionAnswer {
    /// Returns the revision of what was written.
    pub(super) fn revision(&self) -> Result<Revision, ClusterError> {
        number(&self.header.revision)
    }

    /// Returns what was there instead.
    pub(super) fn found(&self) -> Option<&KeyValue> {
        self.responses.iter().find_map(|part| part.response_range.as_ref())?.kvs.first()
    }
}

fn number(text: &str) -> Result<Revision, ClusterError> {
    let number = text.parse().map(Revision);
    number.map_err(|_| ClusterError::Damaged(format!("etcd gave {text:?} for a revision")))
}

pub(super) fn encode(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

pub(super) fn decode(text: &str) -> Result<Vec<u8>, ClusterError> {
    STANDARD.decode(text).map_err(|_| ClusterError::Damaged("etcd gave a value that is not base64".into()))
}

impl Gateway {
    pub(super) fn new(options: EtcdOptions) -> Result<Self, ClusterError> {
        let mut config = Agent::config_builder()
            .http_status_as_error(false)
            .proxy(None)
            .max_redirects(0)
            .user_agent("caravan")
            .timeout_connect(Some(ATTEMPT));
        if let Some(tls) = &options.tls {
            config = config.tls_config(tls_config(tls)?).https_only(true);
        }
        let agent = Agent::new_with_config(config.build());
        Ok(Self { options, agent, current: AtomicUsize::new(0), token: Mutex::new(None) })
    }

    /// Makes a call, at one endpoint after the other.
    pub(super) fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &Value,
        deadline: Instant,
    ) -> Result<T, ClusterError> {
        let mut complaints: Vec<String> = Vec::new();
        let mut has_new_token = false;
        loop {
            let endpoint = self.endpoint();
            let left = deadline.saturating_duration_since(Instant::now());
            // A round without success is enough to say so at the deadline.
            if left.is_zero() {
                complaints.push("the deadline has come".into());
                return Err(ClusterError::Unreachable(complaints.join("; ")));
            }
            let failure = match self.authorized(&endpoint, path, body, left.min(ATTEMPT)) {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            match failure {
                Failure::Token if !has_new_token => {
                    has_new_token = true;
                    *self.token.lock().unwrap_or_else(PoisonError::into_inner) = None;
                    continue;
                }
                Failure::Token => {
                    let reason = "it takes none of the tokens that it gives".into();
                    return Err(ClusterError::Refused { endpoint, reason });
                }
                Failure::Refused(reason) => return Err(ClusterError::Refused { endpoint, reason }),
                Failure::Endpoint(reason) => {
                    let complaint = format!("{endpoint}: {reason}");
                    if !complaints.contains(&complaint) && complaints.len() < 2 * self.options.endpoints.len()
                    {
                        complaints.push(complaint);
                    }
                    let was_last = self.leave_endpoint(&endpoint);
                    if was_last {
                        let left = deadline.saturating_duration_since(Instant::now());
                        std::thread::sleep(left.min(super::PAUSE));
                    }
                }
            }
        }
    }

    /// Watches at one endpoint until something is written, or the deadline comes.
    pub(super) fn watch(&self, request: &Value, deadline: Instant) -> WatchEnd {
        let endpoint = self.endpoint();
        let end = self.watch_at(&endpoint, request, deadline);
        if end.is_none() {
            // An endpoint that is silent may be stopped.
            self.leave_endpoint(&endpoint);
        }
        end.map_or(WatchEnd::Nothing, WatchEnd::Found)
    }

    fn watch_at(&self, endpoint: &str, request: &Value, deadline: Instant) -> Option<KeyValue> {
        let token = self.token(endpoint, ATTEMPT).ok()?;
        let left = deadline.saturating_duration_since(Instant::now());
        let mut body = self.post(endpoint, "watch", request, token.as_deref(), left).ok()?.1;
        let lines = BufReader::new(body.as_reader().take(ANSWER_BYTES_MAX)).lines();
        for line in lines.map_while(Result::ok) {
            let news = serde_json::from_str::<WatchLine>(&line).ok()?.result?;
            // A deletion shows in a read. So does what was compacted: that ends the stream.
            let mut written =
                news.events.into_iter().filter(|event| event.kind.as_deref().unwrap_or("PUT") == "PUT");
            if let Some(event) = written.next_back() {
                return Some(event.kv);
            }
        }
        None
    }

    fn endpoint(&self) -> String {
        let index = self.current.load(Ordering::Relaxed) % self.options.endpoints.len();
        self.options.endpoints[index].clone()
    }

    /// Goes on to the next endpoint, if this is still the current one; says whether all have had their turn.
    fn leave_endpoint(&self, endpoint: &str) -> bool {
        let index = self.current.load(Ordering::Relaxed);
        let count = self.options.endpoints.len();
        // Another thread may have left it already. Relaxed, as nothing else depends on this number.
        if self.options.endpoints[index % count] == endpoint {
            let _ = self.current.compare_exchange(
                index,
                (index + 1) % count,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
        }
        (index + 1) % count == 0
    }

    fn authorized<T: DeserializeOwned>(
        &self,
        endpoint: &str,
        path: &str,
        body: &Value,
        limit: Duration,
    ) -> Result<T, Failure> {
        let token = self.token(endpoint, limit)?;
        let (status, answer) = self.post(endpoint, path, body, token.as_deref(), limit)?;
        understood(status, answer)
    }

    /// Returns the user's token, and asks for one first if there is none.
    fn token(&self, endpoint: &str, limit: Duration) -> Result<Option<String>, Failure> {
        let Some((name, password)) = &self.options.user else { return Ok(None) };
        if let Some(token) = self.token.lock().unwrap_or_else(PoisonError::into_inner).clone() {
            return Ok(Some(token));
        }
        let request = json!({ "name": name, "password": password });
        let (status, answer) = self.post(endpoint, "auth/authenticate", &request, None, limit)?;
        let token: Token = understood(status, answer)?;
        *self.token.lock().unwrap_or_else(PoisonError::into_inner) = Some(token.token.clone());
        Ok(Some(token.token))
    }

    fn post(
        &self,
        endpoint: &str,
        path: &str,
        body: &Value,
        token: Option<&str>,
        limit: Duration,
    ) -> Result<(u16, Body), Failure> {
        let scheme = if self.options.tls.is_some() { "https" } else { "http" };
        let mut request = self.agent.post(format!("{scheme}://{endpoint}/v3/{path}"));
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let request = request.header("Content-Type", "application/json");
        let answer = request.config().timeout_global(Some(limit)).build().send(body.to_string());
        let answer = answer.map_err(|error| Failure::Endpoint(words(&error)))?;
        Ok((answer.status().as_u16(), answer.into_body()))
    }
}

impl std::fmt::Debug for Gateway {
    /// Password and token stay secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gateway").field("options", &self.options).finish_non_exhaustive()
    }
}

/// Reads an answer, or what etcd complains of.
fn understood<T: DeserializeOwned>(status: u16, mut body: Body) -> Result<T, Failure> {
    let read = body.with_config().limit(ANSWER_BYTES_MAX).read_to_string();
    let text = read.map_err(|error| Failure::Endpoint(words(&error)))?;
    if status == 200 {
        return serde_json::from_str(&text)
            .map_err(|error| Failure::Endpoint(format!("it is no etcd, or its answer is damaged: {error}")));
    }
    let Ok(complaint) = serde_json::from_str::<Complaint>(&text) else {
        return Err(Failure::Endpoint(format!(
            "it answered with status {status}, and is no etcd with a JSON gateway"
        )));
    };
    Err(failure(&complaint))
}

/// What a complaint means, by gRPC's code and etcd's words.
fn failure(complaint: &Complaint) -> Failure {
    let said = match &complaint.error {
        Value::String(error) if complaint.message.is_empty() => error,
        _ => &complaint.message,
    };
    let refused = |reason: &str| Failure::Refused(format!("{reason} (etcd said: {said})"));
    match complaint.code {
        16 => Failure::Token,
        _ if said.contains("auth token") || said.contains("revision of auth store is old") => Failure::Token,
        _ if said.contains("user name is empty") => refused("it asks for a user and a password: give them"),
        _ if said.contains("invalid user ID or password") => refused("the user's name or password is wrong"),
        _ if said.contains("authentication is not enabled") => {
            refused("it knows no users: leave the user and the password out, or enable its authentication")
        }
        7 => refused("the user may not read or write the key: give the user a role that may"),
        8 if said.contains("database space exceeded") => {
            refused("its database is full: compact and defragment it, and disarm its alarm")
        }
        3 | 5 | 9 | 11 | 12 => refused("it does not take the request"),
        // Unavailable, no leader, too slow, too many requests: another one may do.
        _ => Failure::Endpoint(said.clone()),
    }
}

/// An error of the HTTP client in words.
fn words(error: &ureq::Error) -> String {
    match error {
        ureq::Error::Timeout(_) => "no answer in time".into(),
        ureq::Error::HostNotFound => "no such host is known".into(),
        ureq::Error::Io(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
            "it closed the connection without an answer; if it speaks TLS, give the certificates for that"
                .into()
        }
        ureq::Error::Io(error) => error.to_string(),
        ureq::Error::Protocol(_) => "it does not speak HTTP as etcd does; does it want TLS?".into(),
        error => error.to_string(),
    }
}

fn tls_config(tls: &EtcdTls) -> Result<TlsConfig, ClusterError> {
    let authority = certificates(&tls.authority)?;
    let client = match &tls.client {
        None => None,
        Some((certificate, key)) => {
            let private = PrivateKey::from_pem(&bytes(key)?).map_err(|error| unusable(key, error))?;
            Some(ClientCert::new_with_certs(&certificates(certificate)?, private))
        }
    };
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&authority))
        .client_cert(client)
        .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .build())
}

fn certificates(path: &Path) -> Result<Vec<Certificate<'static>>, ClusterError> {
    let mut found = Vec::new();
    for item in ureq::tls::parse_pem(&bytes(path)?) {
        if let PemItem::Certificate(certificate) = item.map_err(|error| unusable(path, error))? {
            found.push(certificate);
        }
    }
    if found.is_empty() {
        return Err(unusable(path, "there is no certificate in it"));
    }
    Ok(found)
}

fn bytes(path: &Path) -> Result<Vec<u8>, ClusterError> {
    fs::read(path).map_err(|error| unusable(path, error))
}

fn unusable(path: &Path, reason: impl std::fmt::Display) -> ClusterError {
    ClusterError::Options(format!("{}: cannot use this for TLS with etcd: {reason}", path.display()))
}

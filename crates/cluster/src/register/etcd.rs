//! The configuration of several hosts: a key of etcd, by its JSON gateway (etcd 3.4 or newer).
//!
//! Every call has a deadline. An endpoint that does not answer in [`ATTEMPT`], or says that it cannot answer now, is left
//! for the next one: a stopped etcd keeps its connections open. Reads are linearizable, as etcd's are by default.

mod gateway;
mod options;

pub use options::{EtcdOptions, EtcdTls};

use std::time::{Duration, Instant};

use gateway::{Gateway, KeyValue, RangeAnswer, TransactionAnswer, WatchEnd, decode, encode};
use serde_json::json;

use super::{ConfigurationRegister, Revision, StoredConfiguration, SwapOutcome, envelope};
use crate::configuration::Configuration;
use crate::error::ClusterError;

/// How long an endpoint has for an answer.
const ATTEMPT: Duration = Duration::from_secs(1);

/// How long a watch believes in the silence of one endpoint, before it reads at the next one.
const SILENCE: Duration = Duration::from_secs(2);

/// The pause of a watch after all endpoints have failed.
const PAUSE: Duration = Duration::from_millis(100);

/// A configuration in etcd.
#[derive(Debug)]
pub struct EtcdRegister {
    place: String,
    key: String,
    gateway: Gateway,
}

impl EtcdRegister {
    /// Reads the files of TLS. It asks nobody yet.
    pub fn new(options: EtcdOptions) -> Result<Self, ClusterError> {
        options.check()?;
        let place = format!("etcd://{}/{}", options.endpoints.join(","), options.key);
        Ok(Self { place, key: encode(options.key.as_bytes()), gateway: Gateway::new(options)? })
    }

    fn stored(&self, found: &KeyValue) -> Result<(u64, StoredConfiguration), ClusterError> {
        let named = |error| match error {
            ClusterError::Damaged(reason) => ClusterError::Damaged(format!("{reason} ({})", self.place)),
            error => error,
        };
        let (writing, configuration) = envelope::read(&decode(&found.value)?).map_err(named)?;
        Ok((writing, StoredConfiguration { revision: found.revision()?, configuration }))
    }

    fn range(&self, deadline: Instant) -> Result<Option<(u64, StoredConfiguration)>, ClusterError> {
        let answer: RangeAnswer = self.gateway.call("kv/range", &json!({ "key": self.key }), deadline)?;
        answer.kvs.first().map(|found| self.stored(found)).transpose()
    }
}

impl ConfigurationRegister for EtcdRegister {
    fn read(&self, deadline: Instant) -> Result<Option<StoredConfiguration>, ClusterError> {
        Ok(self.range(deadline)?.map(|(_, stored)| stored))
    }

    fn compare_and_swap(
        &self,
        expected: Revision,
        next: &Configuration,
        deadline: Instant,
    ) -> Result<SwapOutcome, ClusterError> {
        let before = self.read(deadline)?;
        super::refuse_another_store(expected, before.as_ref(), next, || self.place())?;
        if before.as_ref().map_or(Revision::NONE, |before| before.revision) != expected {
            return Ok(SwapOutcome::Changed(before));
        }
        // An endpoint may have written and not answered. Then the next one finds this number.
        let own_writing = u64::from_le_bytes(super::random_bytes()?);
        let text = envelope::write(own_writing, next)?;
        let transaction = json!({
            "compare": [{ "key": self.key, "target": "MOD", "result": "EQUAL", "mod_revision": expected.0.to_string() }],
            "success": [{ "request_put": { "key": self.key, "value": encode(text.as_bytes()) } }],
            "failure": [{ "request_range": { "key": self.key } }],
        });
        let answer: TransactionAnswer = self.gateway.call("kv/txn", &transaction, deadline)?;
        if answer.succeeded {
            return Ok(SwapOutcome::Swapped(answer.revision()?));
        }
        let found = answer.found().map(|found| self.stored(found)).transpose()?;
        Ok(match found {
            Some((writing, stored)) if writing == own_writing => SwapOutcome::Swapped(stored.revision),
            found => SwapOutcome::Changed(found.map(|(_, stored)| stored)),
        })
    }

    fn watch(&self, since: Revision, deadline: Instant) -> Result<Option<StoredConfiguration>, ClusterError> {
        let request = json!({
            "create_request": { "key": self.key, "start_revision": (since.0 + 1).to_string() }
        });
        loop {
            // What happened before the watch, or between two of them, or was compacted away, shows in a read.
            match self.read(deadline) {
                Ok(Some(stored)) if stored.revision != since => return Ok(Some(stored)),
                Ok(_) => {}
                Err(error @ ClusterError::Unreachable(_)) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Err(error);
                    }
                    std::thread::sleep(left.min(PAUSE));
                    continue;
                }
                Err(error) => return Err(error),
            }
            if Instant::now() >= deadline {
                return Ok(None);
            }
            match self.gateway.watch(&request, deadline.min(Instant::now() + SILENCE)) {
                WatchEnd::Found(found) => return Ok(Some(self.stored(&found)?.1)),
                WatchEnd::Nothing if Instant::now() >= deadline => return Ok(None),
                WatchEnd::Nothing => {}
            }
        }
    }

    fn place(&self) -> String {
        self.place.clone()
    }
}

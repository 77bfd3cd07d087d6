//! What a member tells of its store (`CARAVAN.STATUS`).

use std::collections::BTreeMap;

use caravan_cluster::{Configuration, PartId};
use serde::{Deserialize, Serialize};

/// A store of several servers, as one of them sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// The name of the server that tells this.
    pub member: String,
    /// Where the configuration is: a file of its host, or `etcd://...`.
    pub place: String,
    /// Its host, as [`host_name`](crate::host_name) says there.
    pub host: String,
    /// Who is a member, and who has which part.
    pub configuration: Configuration,
    /// The copies of the parts of which this server is the primary.
    pub feeds: BTreeMap<PartId, Vec<FeedReport>>,
}

/// How a primary feeds a copy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FeedReport {
    /// The name of the server that has the copy.
    pub member: String,
    /// What carries the stream: `shm`, `rdma` or `tcp`; none if there is no connection now.
    pub carrier: Option<String>,
    /// The bytes of the stream that the copy has not applied; none if it gets no stream yet.
    pub behind_bytes: Option<u64>,
    /// How much of the memory it has been sent, while it is being filled.
    pub filled_percent: Option<u64>,
    /// Why it is out of reach.
    pub broken: Option<String>,
}

//! How to reach etcd.

use std::fmt;
use std::path::PathBuf;

use crate::error::ClusterError;
use crate::limits;

/// The port of etcd's clients.
const PORT: u16 = 2379;

/// How to reach etcd.
#[derive(Clone, PartialEq, Eq)]
pub struct EtcdOptions {
    /// The endpoints, as `host:port`. A call that gets no answer goes to the next one.
    pub endpoints: Vec<String>,
    /// The key that holds the configuration.
    pub key: String,
    /// The user's name and password, if etcd asks for them.
    pub user: Option<(String, String)>,
    /// TLS, if etcd speaks it.
    pub tls: Option<EtcdTls>,
}

/// TLS with etcd.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EtcdTls {
    /// A file with the certificates of those who may vouch for etcd, in PEM.
    pub authority: PathBuf,
    /// Files with this client's certificate and its private key, in PEM, if etcd asks for them.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl EtcdOptions {
    /// Reads `etcd://HOST[:PORT][,HOST[:PORT]...]/KEY`. User and TLS are set afterwards.
    ///
    /// ```
    /// let options = caravan_cluster::EtcdOptions::parse("etcd://a,b:12379/caravan/orders")?;
    /// assert_eq!(options.endpoints, ["a:2379", "b:12379"]);
    /// assert_eq!(options.key, "caravan/orders");
    /// # Ok::<(), caravan_cluster::ClusterError>(())
    /// ```
    pub fn parse(text: &str) -> Result<Self, ClusterError> {
        let parts = text.strip_prefix("etcd://").and_then(|rest| rest.split_once('/'));
        let (hosts, key) = parts.ok_or_else(|| {
            ClusterError::Options(format!(
                "{text:?}: this is no address of etcd, such as etcd://HOST:{PORT},HOST:{PORT}/KEY"
            ))
        })?;
        let with_port = |host: &str| {
            // An IPv6 address has colons within its brackets.
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']'));
            if has_port { host.to_owned() } else { format!("{host}:{PORT}") }
        };
        let endpoints = hosts.split(',').map(with_port).collect();
        let options = Self { endpoints, key: key.to_owned(), user: None, tls: None };
        options.check().map(|()| options)
    }

    pub(super) fn check(&self) -> Result<(), ClusterError> {
        let is_word = |byte: u8| byte.is_ascii_graphic() && !b"@/?#\"".contains(&byte);
        let is_endpoint = |endpoint: &String| {
            let port = endpoint.rsplit_once(':').filter(|(host, _)| !host.is_empty()).map(|(_, port)| port);
            endpoint.bytes().all(is_word)
                && port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 0))
        };
        if let Some(wrong) = self.endpoints.iter().find(|endpoint| !is_endpoint(endpoint)) {
            return Err(ClusterError::Options(format!(
                "{wrong:?}: this is no endpoint of etcd, such as HOST:{PORT}"
            )));
        }
        if self.endpoints.is_empty() || self.key.is_empty() || self.key.len() > limits::ADDRESS_BYTES_MAX {
            return Err(ClusterError::Options(format!(
                "etcd needs at least one endpoint, and a key of 1 to {} bytes",
                limits::ADDRESS_BYTES_MAX
            )));
        }
        Ok(())
    }
}

impl fmt::Debug for EtcdOptions {
    /// The password stays secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.user.as_ref().map(|(name, _)| name);
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("key", &self.key)
            .field("user", &user)
            .field("tls", &self.tls)
            .finish()
    }
}

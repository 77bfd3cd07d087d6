//! The certificate and the key of TLS.

use std::fs::File;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde::{Deserialize, Serialize};

use crate::error::ServeError;
use crate::limits;

/// An address at which clients speak TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// The address on TCP.
    pub address: SocketAddr,
    /// A file with the server's certificate, and those up to one that clients know, in PEM.
    pub certificate: PathBuf,
    /// A file with the certificate's private key, in PEM.
    pub key: PathBuf,
}

/// Certificate and key as their files had them: what a server proves itself by.
#[derive(Clone, Serialize, Deserialize)]
pub struct TlsIdentity {
    certificate: String,
    key: String,
}

impl TlsIdentity {
    /// Reads the files, and tries what is in them.
    pub(crate) fn read(options: &TlsOptions) -> Result<Self, ServeError> {
        let identity = Self { certificate: text(&options.certificate)?, key: text(&options.key)? };
        let chain = identity.chain().map_err(|reason| unusable(&options.certificate, reason))?;
        identity.with_chain(chain).map_err(|reason| unusable(&options.key, reason))?;
        Ok(identity)
    }

    /// Returns the configuration of a server.
    pub(crate) fn config(&self) -> Result<Arc<ServerConfig>, ServeError> {
        let config = self.chain().and_then(|chain| self.with_chain(chain));
        config.map_err(|reason| {
            ServeError::Options(format!("cannot use the certificate and its key: {reason}"))
        })
    }

    fn chain(&self) -> Result<Vec<CertificateDer<'static>>, String> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.certificate.as_bytes()).collect();
        match chain {
            Ok(chain) if chain.is_empty() => Err("there is no certificate in it".to_owned()),
            Ok(chain) => Ok(chain),
            Err(error) => Err(error.to_string()),
        }
    }

    fn with_chain(&self, chain: Vec<CertificateDer<'static>>) -> Result<Arc<ServerConfig>, String> {
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes()).map_err(|error| error.to_string())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
        config.map(Arc::new).map_err(|error| error.to_string())
    }
}

impl std::fmt::Debug for TlsIdentity {
    /// The key stays secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TlsIdentity").finish_non_exhaustive()
    }
}

/// Returns what a file has, which is text.
fn text(path: &Path) -> Result<String, ServeError> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| unusable(path, error))?;
    let bytes = file.take(limits::TLS_FILE_BYTES_MAX + 1).read_to_string(&mut text);
    match bytes.map_err(|error| unusable(path, error))? as u64 {
        0..=limits::TLS_FILE_BYTES_MAX => Ok(text),
        _ => Err(unusable(path, format!("it has more than {} bytes", limits::TLS_FILE_BYTES_MAX))),
    }
}

fn unusable(path: &Path, reason: impl ToString) -> ServeError {
    ServeError::Certificate { path: path.to_owned(), reason: reason.to_string() }
}

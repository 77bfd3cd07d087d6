//! The certificate and the key of TLS.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::error::ServeError;

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

/// Reads the files.
pub(crate) fn config(options: &TlsOptions) -> Result<Arc<ServerConfig>, ServeError> {
    let (certificate, key) = (&options.certificate, &options.key);
    let chain: Result<Vec<_>, _> = CertificateDer::pem_file_iter(certificate).and_then(Iterator::collect);
    let chain = chain.map_err(|error| unusable(certificate, error))?;
    if chain.is_empty() {
        return Err(unusable(certificate, "there is no certificate in it"));
    }
    let key = PrivateKeyDer::from_pem_file(key).map_err(|error| unusable(key, error))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, key));
    Ok(Arc::new(config.map_err(|error| unusable(&options.key, error))?))
}

fn unusable(path: &Path, reason: impl ToString) -> ServeError {
    ServeError::Certificate { path: path.to_owned(), reason: reason.to_string() }
}

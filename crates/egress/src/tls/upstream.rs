//! TLS connections to the real servers.

use std::io;
use std::sync::{Arc, OnceLock};

use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::roots::host_roots;
use crate::rules::Host;

/// The client side of TLS, which always verifies the certificate of the server. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct UpstreamTls(Arc<ClientConfig>);

impl UpstreamTls {
    /// Trusts the roots of the host. All sandboxes share one configuration.
    pub(crate) fn with_host_roots() -> Self {
        static SHARED: OnceLock<UpstreamTls> = OnceLock::new();
        SHARED.get_or_init(|| Self::new(host_roots())).clone()
    }

    /// Trusts only these roots. Roots that cannot be parsed are left out.
    pub(crate) fn new(roots: &[CertificateDer<'static>]) -> Self {
        let mut store = RootCertStore::empty();
        store.add_parsable_certificates(roots.iter().cloned());
        let config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports the default versions")
            .with_root_certificates(store)
            .with_no_client_auth();
        Self(Arc::new(config))
    }

    /// Performs the handshake with the server of `host`, and offers these protocols.
    pub(crate) async fn connect<S>(&self, server: S, host: &Host, protocols: Vec<Vec<u8>>) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = match host {
            Host::Name(name) => ServerName::try_from(name.as_str().to_owned()).map_err(io::Error::other)?,
            Host::Address(address) => ServerName::from(*address),
        };
        let mut config = ClientConfig::clone(&self.0);
        config.alpn_protocols = protocols;
        TlsConnector::from(Arc::new(config)).connect(name, server).await
    }
}

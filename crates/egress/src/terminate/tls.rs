//! The two TLS handshakes of a connection.

use std::io;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::server::Acceptor;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::{LazyConfigAcceptor, client, server};

use super::TerminationError;
use crate::context::Limits;
use crate::refusal::Refusal;
use crate::rules::Host;
use crate::secrets::SandboxCredentials;
use crate::tls::{HTTP_1_1, HTTP_2};

/// Both sides of a connection after their handshakes.
pub(super) struct Accepted<C, S> {
    pub(super) client: server::TlsStream<C>,
    /// The server, or the reason why there is no connection to it, which the client receives as a response.
    pub(super) server: Result<client::TlsStream<S>, Refusal>,
    pub(super) is_http2: bool,
}

/// Performs the handshake with the server first, and then offers its protocol to the client.
pub(super) async fn accept<C, S>(
    credentials: &SandboxCredentials,
    host: &Host,
    limits: &Limits,
    client: C,
    server: S,
) -> Result<Accepted<C, S>, TerminationError>
where
    C: AsyncRead + AsyncWrite + Unpin,
    S: AsyncRead + AsyncWrite + Unpin,
{
    let timed_out = |_| io::Error::from(io::ErrorKind::TimedOut);
    let hello = LazyConfigAcceptor::new(Acceptor::default(), client);
    let hello = timeout(limits.hello_timeout, hello).await.map_err(timed_out)??;
    let offered: Vec<Vec<u8>> = {
        let hello = hello.client_hello();
        let offered: Vec<&[u8]> = hello.alpn().map(Iterator::collect).unwrap_or_default();
        [HTTP_2, HTTP_1_1].into_iter().filter(|known| offered.contains(known)).map(<[u8]>::to_vec).collect()
    };
    let connecting = credentials.upstream.connect(server, host, offered.clone());
    let server = match timeout(limits.hello_timeout, connecting).await {
        Ok(Ok(server)) => Ok(server),
        Ok(Err(error)) => Err(Refusal::UpstreamTls(reason(&error))),
        Err(_) => Err(Refusal::UpstreamTls("timeout during the handshake".to_owned())),
    };
    let is_http2 = match &server {
        Ok(server) => server.get_ref().1.alpn_protocol() == Some(HTTP_2),
        Err(_) => offered.first().is_some_and(|first| first == HTTP_2) && offered.len() == 1,
    };
    let config = credentials.authority.server_config(host).map_err(io::Error::other)?;
    let mut config = ServerConfig::clone(&config);
    config.alpn_protocols = match (is_http2, offered.is_empty()) {
        (_, true) => Vec::new(),
        (true, false) => vec![HTTP_2.to_vec()],
        (false, false) => vec![HTTP_1_1.to_vec()],
    };
    let client = timeout(limits.hello_timeout, hello.into_stream(Arc::new(config))).await.map_err(timed_out)??;
    Ok(Accepted { client, server, is_http2 })
}

/// Returns the text of an error of rustls, which has no bytes of the server except names in its certificate.
fn reason(error: &io::Error) -> String {
    let text: String = error.to_string().chars().filter(|c| !c.is_control()).take(200).collect();
    if text.is_empty() { error.kind().to_string() } else { text }
}

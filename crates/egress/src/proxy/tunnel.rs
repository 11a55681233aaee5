//! A tunnel to one host: a `CONNECT` tunnel, or a transparent connection. The first bytes of the client determine the protocol and its checks.
//!
//! - TLS: the server name must be the host of the tunnel. A `ClientHello` without a server name is refused, unless the
//!   tunnel leads to an IP address (RFC 6066, section 3, forbids addresses as server names).
//! - HTTP/1: every request must name the host of the tunnel ([`http`]). Plain-text HTTP/2 is refused.
//! - Any other protocol is refused on ports 80 and 443. On other ports, which a rule must name, it is relayed. There the
//!   server may send first, and a protocol that switches to TLS or HTTP later is not checked.
//!
//! No byte of the client reaches the server before the protocol is known, with one exception: on other ports of hosts
//! without limits on requests, an incomplete first line is relayed after a delay, because the client may be waiting for
//! the server. If that line turns out to be an HTTP request, the tunnel is closed before the line is complete.

mod error;
mod http;
#[cfg(test)]
mod tests;

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use crate::context::Limits;
use crate::http::{HeadError, HttpDetection, detect_http};
use crate::refusal::Refusal;
use crate::relay::{IdleTimer, ReadBuffer, copy};
use crate::rules::{Host, HostPort, Policy};
use crate::terminate::{ClientProtocol, Terminator};
use crate::tls::{MAX_DETECTION_BYTES, TlsDetection, detect_tls};
pub(crate) use error::TunnelError;
use http::{TunnelledHttp, UpgradeState, relay_responses};

const HTTP_PORT: u16 = 80;
const TLS_PORT: u16 = 443;
/// Delay before the start of an incomplete first line is relayed.
const PARTIAL_LINE_DELAY: Duration = Duration::from_millis(250);
/// Maximum number of reads until the protocol is known. Every read inspects all bytes again, so that a client that sends
/// single bytes would cost much CPU time.
const MAX_DETECTION_READS: usize = 4096;

/// A tunnel to `target`, with its rules and limits.
#[derive(Debug)]
pub(crate) struct Tunnel<'a> {
    pub(crate) policy: &'a Policy,
    pub(crate) limits: &'a Limits,
    pub(crate) target: &'a HostPort,
    /// The checks of requests; `None` if there are none.
    pub(crate) terminator: Option<&'a Terminator>,
}

/// The end of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    Relayed,
    Terminated,
}

/// Reason why relaying ends.
enum Stop {
    Error(TunnelError),
    /// The connection must be terminated instead. The bytes have not been relayed.
    Terminate {
        is_tls: bool,
        first_bytes: Vec<u8>,
    },
}

impl<E: Into<TunnelError>> From<E> for Stop {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tls,
    Http,
    Other,
}

impl Tunnel<'_> {
    /// Relays bytes until both sides have ended, one side fails, or the idle timeout expires.
    pub(crate) async fn run<C, W, S>(&self, client: &mut C, to_client: &mut W, server: S) -> Result<Ended, TunnelError>
    where
        C: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (server, mut to_server) = split(server);
        let mut server = ReadBuffer::new(server);
        let idle = &IdleTimer::new(self.limits.idle_timeout);
        let upgrade = &watch::Sender::new(UpgradeState::None);
        let client_to_server = async {
            let mut first_bytes = Vec::new();
            let (protocol, sent) = self.detect_protocol(&mut *client, &mut to_server, &mut first_bytes).await?;
            if self.must_terminate(protocol, &first_bytes)? {
                return Err(Stop::Terminate { is_tls: protocol == Protocol::Tls, first_bytes });
            }
            if protocol == Protocol::Http {
                let is_allowed_name = |host: &Host| self.is_allowed_name(host);
                let head_timeout = self.limits.head_timeout;
                let http = TunnelledHttp { target: self.target, is_allowed_name, head_timeout, idle, upgrade };
                return Ok(http
                    .relay_requests(&mut first_bytes.as_slice().chain(&mut *client), &mut to_server)
                    .await?);
            }
            to_server.write_all(&first_bytes[sent..]).await?;
            Ok(copy(&mut *client, &mut to_server, idle).await?)
        };
        let server_to_client = async { Ok(relay_responses(&mut server, &mut *to_client, idle, upgrade).await?) };
        let both = async { tokio::try_join!(client_to_server, server_to_client).map(|_| ()) };
        let relayed = idle.run(both).await.unwrap_or(Err(Stop::Error(TunnelError::IdleTimeout)));
        match (relayed, self.terminator) {
            (Ok(()), _) => Ok(Ended::Relayed),
            (Err(Stop::Terminate { is_tls, first_bytes }), Some(terminator)) => {
                let server = server.into_inner().unsplit(to_server);
                terminator.run(is_tls, &first_bytes, client, to_client, server).await?;
                Ok(Ended::Terminated)
            }
            (Err(Stop::Terminate { .. }), None) => Err(Refusal::NotHttp.into()),
            (Err(Stop::Error(error)), _) => Err(error),
        }
    }

    /// Returns whether the requests of the client must be read. Fails if its protocol has none that could be.
    fn must_terminate(&self, protocol: Protocol, first_bytes: &[u8]) -> Result<bool, Refusal> {
        let Some(terminator) = self.terminator else { return Ok(false) };
        let detected = detect_tls(first_bytes);
        terminator.is_needed(match (protocol, &detected) {
            (Protocol::Tls, TlsDetection::ClientHello { server_name }) => {
                ClientProtocol::Tls { server_name: server_name.as_deref() }
            }
            (Protocol::Tls, _) => ClientProtocol::Tls { server_name: None },
            (Protocol::Http, _) => ClientProtocol::Http,
            (Protocol::Other, _) => ClientProtocol::Other,
        })
    }

    /// Reads into `bytes` until the protocol is known; returns it with the number of bytes that were already relayed.
    async fn detect_protocol<C, W>(
        &self,
        client: &mut C,
        to_server: &mut W,
        bytes: &mut Vec<u8>,
    ) -> Result<(Protocol, usize), TunnelError>
    where
        C: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        // A client may wait for the server at first, except with TLS, where the client sends first.
        let start_deadline = (self.target.port == TLS_PORT).then(|| Instant::now() + self.limits.hello_timeout);
        let mut has_ended = read_more(client, bytes, start_deadline).await?.ok_or(Refusal::BadHello)? == 0;
        let deadline = Instant::now() + self.limits.hello_timeout;
        let mut sent = 0;
        let is_only_http = self.target.port == HTTP_PORT || self.terminator.is_some_and(Terminator::allows_only_http);
        // The delay starts with the first byte that is not relayed yet: further bytes must not extend it.
        let mut relay_at = Instant::now() + PARTIAL_LINE_DELAY;
        for _ in 0..MAX_DETECTION_READS {
            let protocol = match self.classify(bytes)? {
                None if has_ended => Some(self.classify_at_end(bytes)?),
                protocol => protocol,
            };
            match protocol {
                Some(Protocol::Http) if sent > 0 => {
                    return Err(Refusal::Head(HeadError::Malformed("the request line was sent in pieces")).into());
                }
                Some(protocol) => return Ok((protocol, sent)),
                None if bytes.len() >= MAX_DETECTION_BYTES => return Err(Refusal::Head(HeadError::TooLarge).into()),
                None => {}
            }
            let may_be_tls = detect_tls(bytes) == TlsDetection::Incomplete;
            let has_unsent = sent < bytes.len();
            let read_deadline = match has_unsent {
                _ if may_be_tls || is_only_http => Some(deadline),
                true => Some(relay_at),
                false => None,
            };
            match read_more(client, bytes, read_deadline).await? {
                Some(count) => {
                    has_ended = count == 0;
                    if !has_unsent {
                        relay_at = Instant::now() + PARTIAL_LINE_DELAY;
                    }
                }
                None if may_be_tls => return Err(Refusal::BadHello.into()),
                None if is_only_http => return Err(Refusal::HeadTimeout.into()),
                None => {
                    to_server.write_all(&bytes[sent..]).await?;
                    sent = bytes.len();
                }
            }
        }
        Err(Refusal::Head(HeadError::TooLarge).into())
    }

    /// Returns the protocol of the first bytes; `None` if more bytes are needed. Fails if the protocol is not allowed.
    fn classify(&self, bytes: &[u8]) -> Result<Option<Protocol>, Refusal> {
        match detect_tls(bytes) {
            TlsDetection::Incomplete => Ok(None),
            TlsDetection::Malformed => Err(Refusal::BadHello),
            TlsDetection::ClientHello { server_name: Some(name) } => match name.parse() {
                Ok(host) if self.is_allowed_name(&host) => Ok(Some(Protocol::Tls)),
                _ => Err(Refusal::SniMismatch),
            },
            TlsDetection::ClientHello { server_name: None } => match self.target.host {
                Host::Address(_) => Ok(Some(Protocol::Tls)),
                Host::Name(_) => Err(Refusal::NoSni),
            },
            TlsDetection::NotTls if self.target.port == TLS_PORT => Err(Refusal::NotTls),
            TlsDetection::NotTls => match detect_http(bytes) {
                HttpDetection::Undecided => Ok(None),
                HttpDetection::Http => Ok(Some(Protocol::Http)),
                HttpDetection::NotHttp if self.target.port == HTTP_PORT => Err(Refusal::NotHttp),
                HttpDetection::NotHttp => Ok(Some(Protocol::Other)),
            },
        }
    }

    /// Classifies bytes that [`Self::classify`] cannot decide, after the client has ended.
    fn classify_at_end(&self, bytes: &[u8]) -> Result<Protocol, Refusal> {
        match self.target.port {
            _ if bytes.is_empty() => Ok(Protocol::Other),
            _ if detect_tls(bytes) == TlsDetection::Incomplete => Err(Refusal::BadHello),
            HTTP_PORT => Err(Refusal::NotHttp),
            _ => Ok(Protocol::Other),
        }
    }

    /// Returns whether a `ClientHello` or a request may name this host: the host of the tunnel, or, if the tunnel leads to
    /// an IP address, any host that the policy allows.
    fn is_allowed_name(&self, host: &Host) -> bool {
        let is_address = matches!(self.target.host, Host::Address(_));
        let named = HostPort { host: host.clone(), port: self.target.port };
        *host == self.target.host || is_address && self.policy.find_rule(&named).is_ok()
    }
}

/// Appends the next bytes of the client; returns their number, or `None` if the deadline passes first.
async fn read_more<C>(client: &mut C, bytes: &mut Vec<u8>, deadline: Option<Instant>) -> io::Result<Option<usize>>
where
    C: AsyncBufRead + Unpin,
{
    let mut limited = client.take(MAX_DETECTION_BYTES.saturating_sub(bytes.len()) as u64);
    let reading = limited.read_buf(bytes);
    match deadline {
        None => reading.await.map(Some),
        Some(deadline) => timeout_at(deadline, reading).await.map_or(Ok(None), |count| count.map(Some)),
    }
}

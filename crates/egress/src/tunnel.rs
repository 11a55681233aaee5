//! A `CONNECT` tunnel: the client's first bytes determine the protocol and its checks.
//!
//! - TLS: the server name must be the tunnel's host. A `ClientHello` without one is refused, unless the target of the
//!   tunnel is an IP address (RFC 6066, section 3, forbids addresses as server names).
//! - HTTP/1: every request must name the tunnel's host (`tunnelled_http`). HTTP/2 in plain text is refused.
//! - Anything else is refused on ports 80 and 443. On other ports, which a rule must name, it is relayed: there the server
//!   may speak first, and a protocol that turns to TLS or HTTP later is not checked.
//!
//! No byte of the client reaches the server before its protocol is known, with one exception: on other ports the start of
//! a first line that is not finished is relayed after a pause, since the client may be waiting for the server. If that
//! line turns out to be an HTTP request, the tunnel is closed before the line is complete.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, split};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::first_line::{FirstLine, classify};
use super::head::HeadError;
use super::hello::{MAX_OPENING, Opening, inspect};
use super::host::{Host, Target};
use super::policy::Policy;
use super::refusal::Refusal;
use super::relay::{Idle, copy};
use super::tunnelled_http::{TunnelledHttp, Upgrade, receive};

const HTTP_PORT: u16 = 80;
const TLS_PORT: u16 = 443;
/// How long the rest of an unfinished first line may take before its start is relayed.
const PAUSE: Duration = Duration::from_millis(250);
/// Reads until the protocol is known. Each inspects all bytes so far, so single bytes would cost the host much time.
const MAX_READS: usize = 4096;

/// The rules and limits of a tunnel.
#[derive(Debug)]
pub(super) struct Tunnel<'a> {
    pub(super) policy: &'a Policy,
    pub(super) target: &'a Target,
    /// Timeout for a TLS `ClientHello`.
    pub(super) hello: Duration,
    /// Timeout for the head of each plain request.
    pub(super) head: Duration,
    pub(super) idle: Duration,
}

/// Why a tunnel broke.
#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    #[error("the tunnel was closed")]
    Refused(#[source] Refusal),
    /// The first bytes are a plain request, which can be answered.
    #[error("the request was refused")]
    RefusedRequest(#[source] Refusal),
    #[error("the tunnel broke")]
    Broken(#[from] io::Error),
    #[error("the tunnel was idle")]
    Idle,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Protocol {
    Tls,
    Http,
    Other,
}

impl Tunnel<'_> {
    /// Carries bytes until both sides have ended, one has failed, or nothing moves any more.
    pub(super) async fn run<C, W, S>(&self, client: &mut C, to_client: &mut W, server: S) -> Result<(), TunnelError>
    where
        C: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let (server, mut to_server) = split(server);
        let mut server = BufReader::with_capacity(super::proxy::BUFFER, server);
        let idle = &Idle::new(self.idle);
        let upgrade = &watch::Sender::new(Upgrade::None);
        let up = async {
            let mut opening = Vec::new();
            let (protocol, sent) = self.open(client, &mut to_server, &mut opening).await?;
            if protocol == Protocol::Http {
                let may_name = |host: &Host| self.may_name(host);
                let http = TunnelledHttp { target: self.target, may_name, head_timeout: self.head, idle, upgrade };
                return http.send(&mut opening.as_slice().chain(client), &mut to_server).await;
            }
            to_server.write_all(&opening[sent..]).await?;
            Ok(copy(client, &mut to_server, idle).await?)
        };
        let down = receive(&mut server, to_client, idle, upgrade);
        let work = async { tokio::try_join!(up, down).map(|_| ()) };
        idle.guard(work).await.unwrap_or(Err(TunnelError::Idle))
    }

    /// Reads the client's first bytes until the protocol is known; returns how many of them were relayed already.
    async fn open<C, W>(
        &self,
        client: &mut C,
        to_server: &mut W,
        bytes: &mut Vec<u8>,
    ) -> Result<(Protocol, usize), TunnelError>
    where
        C: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        // a client may be silent at first, except on the port of TLS, where it speaks first
        let start = (self.target.port == TLS_PORT).then(|| Instant::now() + self.hello);
        let mut has_ended = read_some(client, bytes, start).await?.ok_or(Refusal::BadHello)? == 0;
        let deadline = Instant::now() + self.hello;
        let mut sent = 0;
        // Counted from the first byte that waits: a client that sends slowly must not wait longer.
        let mut relay_at = Instant::now() + PAUSE;
        for _ in 0..MAX_READS {
            let protocol = match self.protocol(bytes)? {
                None if has_ended => Some(self.protocol_at_end(bytes)?),
                protocol => protocol,
            };
            match protocol {
                Some(Protocol::Http) if sent > 0 => {
                    return Err(Refusal::Head(HeadError::Malformed("a request line in pieces")).into());
                }
                Some(protocol) => return Ok((protocol, sent)),
                None if bytes.len() >= MAX_OPENING => return Err(Refusal::Head(HeadError::TooLarge).into()),
                None => {}
            }
            let may_be_tls = inspect(bytes) == Opening::Incomplete;
            let until = match (may_be_tls, self.target.port) {
                (true, _) | (false, HTTP_PORT) => Some(deadline),
                _ if sent < bytes.len() => Some(relay_at),
                _ => None,
            };
            let was_waiting = sent < bytes.len();
            match read_some(client, bytes, until).await? {
                Some(count) => {
                    has_ended = count == 0;
                    if !was_waiting {
                        relay_at = Instant::now() + PAUSE;
                    }
                }
                None if may_be_tls => return Err(Refusal::BadHello.into()),
                None if self.target.port == HTTP_PORT => return Err(Refusal::HeadTimeout.into()),
                None => {
                    to_server.write_all(&bytes[sent..]).await?;
                    sent = bytes.len();
                }
            }
        }
        Err(Refusal::Head(HeadError::TooLarge).into())
    }

    /// The protocol of the first bytes, if it can be determined yet and is allowed.
    fn protocol(&self, bytes: &[u8]) -> Result<Option<Protocol>, Refusal> {
        match inspect(bytes) {
            Opening::Incomplete => Ok(None),
            Opening::Malformed => Err(Refusal::BadHello),
            Opening::Hello { server_name: Some(name) } => match name.parse() {
                Ok(host) if self.may_name(&host) => Ok(Some(Protocol::Tls)),
                _ => Err(Refusal::SniMismatch),
            },
            Opening::Hello { server_name: None } => match self.target.host {
                Host::Address(_) => Ok(Some(Protocol::Tls)),
                Host::Name(_) => Err(Refusal::NoSni),
            },
            Opening::NotTls if self.target.port == TLS_PORT => Err(Refusal::NotTls),
            Opening::NotTls => match classify(bytes) {
                FirstLine::Undecided => Ok(None),
                FirstLine::Http => Ok(Some(Protocol::Http)),
                FirstLine::Other if self.target.port == HTTP_PORT => Err(Refusal::NotHttp),
                FirstLine::Other => Ok(Some(Protocol::Other)),
            },
        }
    }

    /// The same for bytes from which the protocol cannot be determined, and after which no more will come.
    fn protocol_at_end(&self, bytes: &[u8]) -> Result<Protocol, Refusal> {
        match self.target.port {
            _ if bytes.is_empty() => Ok(Protocol::Other),
            _ if inspect(bytes) == Opening::Incomplete => Err(Refusal::BadHello),
            HTTP_PORT => Err(Refusal::NotHttp),
            _ => Ok(Protocol::Other),
        }
    }

    /// Whether a TLS greeting or a request may name this host: the tunnel's own, or an allowed name of its address.
    fn may_name(&self, host: &Host) -> bool {
        let is_address = matches!(self.target.host, Host::Address(_));
        let named = Target { host: host.clone(), port: self.target.port };
        *host == self.target.host || is_address && self.policy.admit(&named).is_ok()
    }
}

impl From<Refusal> for TunnelError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            // a client that sends such bytes uses HTTP, or a similar protocol
            Refusal::NotHttp | Refusal::Head(_) | Refusal::HeadTimeout => Self::RefusedRequest(refusal),
            refusal => Self::Refused(refusal),
        }
    }
}

/// Appends what the client sends next; `None` if the deadline passes before.
async fn read_some<C>(client: &mut C, bytes: &mut Vec<u8>, deadline: Option<Instant>) -> io::Result<Option<usize>>
where
    C: AsyncBufRead + Unpin,
{
    let mut limited = client.take(MAX_OPENING.saturating_sub(bytes.len()) as u64);
    let reading = limited.read_buf(bytes);
    match deadline {
        None => reading.await.map(Some),
        Some(deadline) => timeout_at(deadline, reading).await.map_or(Ok(None), |count| count.map(Some)),
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::hello::tests::{hello_in_pieces, hello_to, hello_to_nobody};

    fn tunnel<'a>(policy: &'a Policy, target: &'a Target) -> Tunnel<'a> {
        let [hello, head, idle] = [10, 15, 300].map(Duration::from_secs);
        Tunnel { policy, target, hello, head, idle }
    }

    /// Sends `bytes` through a tunnel and ends; gives what the server got and how it went.
    async fn sent(target: &str, bytes: &[u8]) -> (Vec<u8>, Result<(), TunnelError>) {
        let policy = Policy::parse(["a.com:*", "10.0.0.1:*"]).unwrap();
        let target = Target::parse(target, None).unwrap();
        let tunnel = tunnel(&policy, &target);
        let (ours, mut server) = duplex(64 * 1024);
        let mut client = bytes;
        let mut answer = Vec::new();
        let mut got = Vec::new();
        let (result, ()) = tokio::join!(async { tunnel.run(&mut client, &mut answer, ours).await }, async {
            server.read_to_end(&mut got).await.unwrap();
            server.shutdown().await.unwrap();
        });
        (got, result)
    }

    #[tokio::test]
    async fn greetings_to_the_same_host_pass() {
        for target in ["a.com:443", "a.com:8443", "10.0.0.1:443"] {
            let bytes = [hello_to("A.com").as_slice(), b"more"].concat();
            let (got, result) = sent(target, &bytes).await;
            assert!(result.is_ok(), "{target}");
            assert_eq!(got, bytes, "{target}");
        }
    }

    #[tokio::test]
    async fn greetings_to_others_do_not() {
        for target in ["a.com:443", "a.com:8443", "10.0.0.1:443"] {
            for name in ["evil.org", "sub.a.com", "a.com\0.evil.org", ""] {
                let (got, result) = sent(target, &hello_to(name)).await;
                assert!(matches!(result, Err(TunnelError::Refused(Refusal::SniMismatch))), "{target} {name:?}");
                assert_eq!(got, b"", "{target} {name:?}");
            }
        }
    }

    #[tokio::test]
    async fn greetings_without_a_name_pass_to_addresses_only() {
        for target in ["a.com:443", "a.com:80", "a.com:8443"] {
            let (got, result) = sent(target, &hello_to_nobody()).await;
            assert!(matches!(result, Err(TunnelError::Refused(Refusal::NoSni))), "{target}");
            assert_eq!(got, b"", "{target}");
        }
        let (got, result) = sent("10.0.0.1:443", &hello_to_nobody()).await;
        assert!(result.is_ok());
        assert_eq!(got, hello_to_nobody());
    }

    #[tokio::test]
    async fn greetings_in_pieces_are_joined() {
        let (got, result) = sent("a.com:443", &hello_in_pieces("a.com")).await;
        assert!(result.is_ok());
        assert_eq!(got, hello_in_pieces("a.com"));
        let (got, result) = sent("a.com:443", &hello_in_pieces("evil.org")).await;
        assert!(matches!(result, Err(TunnelError::Refused(Refusal::SniMismatch))));
        assert_eq!(got, b"");
    }

    #[tokio::test]
    async fn plain_requests_to_the_same_host_pass() {
        let first = "POST /1 HTTP/1.1\r\nHost: a.com\r\nContent-Length: 2\r\n\r\nok";
        let second = "GET /2 HTTP/1.1\r\nHost: a.com\r\n\r\n";
        let (got, result) = sent("a.com:80", format!("{first}{second}").as_bytes()).await;
        assert!(result.is_ok());
        let got = String::from_utf8(got).unwrap();
        assert_eq!((got.matches("Host: a.com\r\n").count(), got.matches("/2").count()), (2, 1), "{got}");
    }

    #[tokio::test]
    async fn plain_requests_to_others_do_not() {
        let good = "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n";
        for target in ["a.com:80", "a.com:8080", "10.0.0.1:80"] {
            for bad in [
                "GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n",
                "\r\nGET / HTTP/1.1\r\nHost: evil.org\r\n\r\n",
                "GET / HTTP/1.1\nHost: evil.org\n\n",
                "GET http://evil.org/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
                "CONNECT evil.org:443 HTTP/1.1\r\n\r\n",
                "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            ] {
                let (got, result) = sent(target, bad.as_bytes()).await;
                assert!(matches!(result, Err(TunnelError::RefusedRequest(_))), "{target} {bad:?} {result:?}");
                assert_eq!(got, b"", "{target} {bad:?}");
                let (got, result) = sent(target, format!("{good}{bad}").as_bytes()).await;
                assert!(matches!(result, Err(TunnelError::Refused(_))), "{target} {bad:?} {result:?}");
                assert!(!String::from_utf8_lossy(&got).contains("evil.org"), "{target} {bad:?}");
            }
        }
    }

    #[tokio::test]
    async fn other_protocols_pass_on_other_ports_only() {
        for bytes in [&b"EHLO me\r\n"[..], b"hello", b"\0\0\0\x08", b"{}"] {
            let (got, result) = sent("a.com:80", bytes).await;
            assert!(matches!(result, Err(TunnelError::RefusedRequest(Refusal::NotHttp))), "{bytes:?}");
            assert_eq!(got, b"", "{bytes:?}");
            let (got, result) = sent("a.com:2525", bytes).await;
            assert!(result.is_ok(), "{bytes:?}");
            assert_eq!(got, bytes);
        }
    }

    /// A client that sends each piece and then waits, and a server that answers nothing.
    async fn in_pieces(target: &str, pieces: &[&[u8]]) -> (Vec<u8>, Result<(), TunnelError>) {
        let policy = Policy::default();
        let target = Target::parse(target, None).unwrap();
        let tunnel = tunnel(&policy, &target);
        let ((client, mut guest), (server, mut far)) = (duplex(64), duplex(64 * 1024));
        let mut client = BufReader::new(client);
        let mut answer = Vec::new();
        let (result, _guest) = tokio::join!(async { tunnel.run(&mut client, &mut answer, server).await }, async {
            for piece in pieces {
                guest.write_all(piece).await.unwrap();
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
            guest
        });
        let mut got = Vec::new();
        far.read_to_end(&mut got).await.unwrap();
        (got, result)
    }

    #[tokio::test(start_paused = true)]
    async fn an_unfinished_line_is_relayed_unless_it_becomes_a_request() {
        let (got, result) = in_pieces("a.com:2525", &[b"hello", b" world"]).await;
        assert!(matches!(result, Err(TunnelError::Idle)), "{result:?}");
        assert_eq!(got, b"hello world");
        let (got, result) = in_pieces("a.com:2525", &[b"GE", b"T / HTT", b"P/1.1\r\nHost: evil.org\r\n\r\n"]).await;
        assert!(matches!(result, Err(TunnelError::RefusedRequest(Refusal::Head(_)))), "{result:?}");
        assert_eq!(got, b"GET / HTT");
        let (got, result) = in_pieces("a.com:80", &[b"GE", b"T / HTT"]).await;
        assert!(matches!(result, Err(TunnelError::RefusedRequest(Refusal::HeadTimeout))), "{result:?}");
        assert_eq!(got, b"");
        let (got, result) = in_pieces("a.com:80", &[b"GET / HTTP/1.1\r\n"]).await;
        assert!(matches!(result, Err(TunnelError::RefusedRequest(Refusal::HeadTimeout))), "{result:?}");
        assert_eq!(got, b"");
    }

    #[tokio::test(start_paused = true)]
    async fn slow_bytes_are_relayed_while_more_of_them_come() {
        let policy = Policy::default();
        let target = Target::parse("a.com:2525", None).unwrap();
        let tunnel = tunnel(&policy, &target);
        let ((client, mut guest), (server, mut far)) = (duplex(64), duplex(64));
        let (mut client, mut answer) = (BufReader::new(client), Vec::new());
        let run = tunnel.run(&mut client, &mut answer, server);
        let drip = async {
            for _ in 0..40 {
                guest.write_all(b".").await.unwrap();
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        let relayed = async {
            let mut first = [0; 3];
            far.read_exact(&mut first).await.unwrap();
            first
        };
        tokio::select! {
            first = relayed => assert_eq!(&first, b"..."),
            () = drip => panic!("nothing was relayed"),
            ended = run => panic!("{ended:?}"),
        }
    }

    #[tokio::test]
    async fn an_endless_first_line_is_refused() {
        let (got, result) = sent("a.com:2525", &b"word ".repeat(MAX_OPENING)).await;
        assert!(matches!(result, Err(TunnelError::RefusedRequest(Refusal::Head(HeadError::TooLarge)))), "{result:?}");
        assert_eq!(got, b"");
    }

    #[tokio::test]
    async fn a_websocket_is_relayed_once_the_server_agrees() {
        let request = "GET / HTTP/1.1\r\nHost: a.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
        for (status, passes) in [("101 Switching Protocols", true), ("200 OK", false)] {
            let policy = Policy::default();
            let target = Target::parse("a.com:80", None).unwrap();
            let tunnel = tunnel(&policy, &target);
            let ((client, mut guest), (server, mut far)) = (duplex(1024), duplex(1024));
            let (client, mut to_client) = split(client);
            let mut client = BufReader::new(client);
            // sent along with the request: it waits for the server's response
            guest.write_all(format!("{request}\x01\x02frame").as_bytes()).await.unwrap();
            let (_, got) = tokio::join!(async { tunnel.run(&mut client, &mut to_client, server).await }, async {
                let mut got = vec![0; request.len()];
                far.read_exact(&mut got).await.unwrap();
                assert_eq!(got, request.as_bytes());
                let response = format!("HTTP/1.1 {status}\r\n\r\n");
                far.write_all(response.as_bytes()).await.unwrap();
                let mut seen = vec![0; response.len()];
                guest.read_exact(&mut seen).await.unwrap();
                assert_eq!(seen, response.as_bytes());
                guest.shutdown().await.unwrap();
                let mut rest = Vec::new();
                far.read_to_end(&mut rest).await.unwrap();
                drop(far);
                rest
            });
            assert_eq!(got, if passes { &b"\x01\x02frame"[..] } else { b"" }, "{status}");
        }
    }

    #[tokio::test]
    async fn port_443_is_for_tls() {
        let (got, result) = sent("a.com:443", b"SSH-2.0").await;
        assert!(matches!(result, Err(TunnelError::Refused(Refusal::NotTls))));
        assert_eq!(got, b"");
        let (got, result) = sent("a.com:443", b"\x16\x03\x01").await;
        assert!(matches!(result, Err(TunnelError::Refused(Refusal::BadHello))));
        assert_eq!(got, b"");
        let (got, result) = sent("a.com:22", b"SSH-2.0").await;
        assert!(result.is_ok());
        assert_eq!(got, b"SSH-2.0");
    }

    #[tokio::test(start_paused = true)]
    async fn half_a_greeting_and_silence_run_out() {
        let policy = Policy::default();
        for (target, bytes, expected) in [
            ("a.com:443", &b""[..], "the tunnel was closed"),
            ("a.com:443", b"\x16\x03", "the tunnel was closed"),
            ("a.com:22", b"\x16\x03", "the tunnel was closed"),
            ("a.com:22", b"", "the tunnel was idle"),
        ] {
            let target = Target::parse(target, None).unwrap();
            let tunnel = tunnel(&policy, &target);
            let (client, mut guest) = duplex(64);
            let (server, _far) = duplex(64);
            guest.write_all(bytes).await.unwrap();
            let mut client = BufReader::new(client);
            let result = tunnel.run(&mut client, &mut Vec::new(), server).await;
            assert_eq!(result.unwrap_err().to_string(), expected, "{target}");
        }
    }
}

//! Plain HTTP inside a `CONNECT` tunnel: every request is checked before it reaches the server.
//!
//! Each request must name the tunnel's host, in its Host field and in an absolute target. Heads are written anew from what
//! was parsed, so that the server cannot read them differently. Responses are relayed unchanged. A WebSocket upgrade is
//! possible with the first request only; after the server's `101` the bytes are relayed without further checks. Upgrades
//! to any other protocol (such as h2c) are removed from the request.

use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::body::{Body, BodyError};
use super::head::{Field, Head, HeadError};
use super::host::{Host, Target};
use super::refusal::Refusal;
use super::relay::{Idle, copy};
use super::request::{RequestLine, split_uri};
use super::tunnel::TunnelError;

const MAX_HEAD: usize = 16 * 1024;
const MAX_RESPONSE_HEAD: usize = 32 * 1024;
const MAX_INTERIM_RESPONSES: usize = 8;

/// The state of a requested upgrade of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upgrade {
    None,
    Requested,
    Declined,
    Done,
}

/// The checks for the requests of one tunnel.
pub(super) struct TunnelledHttp<'a, F> {
    pub(super) target: &'a Target,
    /// Whether a request may name this host.
    pub(super) may_name: F,
    pub(super) head_timeout: Duration,
    pub(super) idle: &'a Idle,
    pub(super) upgrade: &'a watch::Sender<Upgrade>,
}

impl<F: Fn(&Host) -> bool> TunnelledHttp<'_, F> {
    /// Passes requests on until the client ends, a request is refused, or the connection is upgraded.
    pub(super) async fn send<C, W>(&self, client: &mut C, to_server: &mut W) -> Result<(), TunnelError>
    where
        C: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut is_first = true;
        loop {
            if client.fill_buf().await?.is_empty() {
                return Ok(to_server.shutdown().await?);
            }
            let request = match self.read(client, is_first).await {
                Ok(request) => request,
                Err(Refusal::Head(HeadError::Closed | HeadError::Read(_))) => {
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                }
                // nothing was sent to the server yet, so the client can get an error response
                Err(refusal) if is_first => return Err(TunnelError::RefusedRequest(refusal)),
                Err(refusal) => return Err(TunnelError::Refused(refusal)),
            };
            is_first = false;
            self.idle.touch();
            if request.upgrades {
                self.upgrade.send_replace(Upgrade::Requested);
            }
            to_server.write_all(&request.head).await?;
            request.body.copy(client, to_server, self.idle).await.map_err(|error| match error {
                BodyError::Malformed => TunnelError::Refused(Refusal::Head(HeadError::Malformed("the body"))),
                BodyError::Read(error) | BodyError::Write(error) => TunnelError::Broken(error),
            })?;
            if request.upgrades && self.upgraded().await {
                return Ok(copy(client, to_server, self.idle).await?);
            }
        }
    }

    async fn read<C: AsyncBufRead + Unpin>(&self, client: &mut C, is_first: bool) -> Result<Checked, Refusal> {
        let head = timeout(self.head_timeout, Head::read(client, MAX_HEAD))
            .await
            .map_err(|_| Refusal::HeadTimeout)?
            .map_err(Refusal::Head)?;
        Checked::parse(&head, self.target, &self.may_name, is_first).map_err(Refusal::Head)
    }

    /// Waits for the server's response to an upgrade.
    async fn upgraded(&self) -> bool {
        let mut upgrade = self.upgrade.subscribe();
        let decided = upgrade.wait_for(|upgrade| matches!(upgrade, Upgrade::Declined | Upgrade::Done)).await;
        matches!(decided.as_deref(), Ok(Upgrade::Done))
    }
}

/// Relays what the server sends, and watches for the response to an upgrade.
pub(super) async fn receive<S, W>(
    server: &mut S,
    to_client: &mut W,
    idle: &Idle,
    upgrade: &watch::Sender<Upgrade>,
) -> Result<(), TunnelError>
where
    S: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    loop {
        let ready = server.fill_buf().await?;
        let count = ready.len();
        if *upgrade.borrow() == Upgrade::Requested {
            let is_done = read_upgrade_response(server, to_client).await?;
            upgrade.send_replace(if is_done { Upgrade::Done } else { Upgrade::Declined });
            continue;
        }
        if count == 0 {
            return Ok(to_client.shutdown().await?);
        }
        to_client.write_all(ready).await?;
        server.consume(count);
        idle.touch();
    }
}

/// Passes response heads on up to the final one; returns whether it is `101 Switching Protocols`.
async fn read_upgrade_response<S, W>(server: &mut S, to_client: &mut W) -> Result<bool, TunnelError>
where
    S: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let bad = |error| TunnelError::Refused(Refusal::Response(error));
    for _ in 0..=MAX_INTERIM_RESPONSES {
        let head = Head::read(server, MAX_RESPONSE_HEAD).await.map_err(bad)?;
        let status = head.start.split(|&b| b == b' ').nth(1).unwrap_or_default();
        let mut out = Vec::new();
        head.write(&mut out);
        to_client.write_all(&out).await?;
        if status == b"101" || !status.starts_with(b"1") {
            return Ok(status == b"101");
        }
    }
    Err(bad(HeadError::Malformed("too many interim answers")))
}

/// A request that may be sent to the server.
#[derive(Debug)]
struct Checked {
    head: Vec<u8>,
    body: Body,
    upgrades: bool,
}

impl Checked {
    fn parse(
        head: &Head,
        target: &Target,
        may_name: impl Fn(&Host) -> bool,
        may_upgrade: bool,
    ) -> Result<Self, HeadError> {
        let RequestLine { method, uri, body, .. } = RequestLine::parse(head)?;
        if method == "CONNECT" {
            return Err(HeadError::Malformed("CONNECT inside a tunnel"));
        }
        let is_allowed = |named: &Target| named.port == target.port && may_name(&named.host);
        if !uri.starts_with('/') && uri != "*" {
            let (authority, _) = split_uri(uri)?;
            let named = Target::parse(authority, Some(80)).map_err(HeadError::Host)?;
            if !is_allowed(&named) {
                return Err(HeadError::HostMismatch);
            }
        }
        let mut hosts = head.all("host");
        let host = match (hosts.next(), hosts.next()) {
            (None, _) => target.clone(),
            (Some(host), None) => std::str::from_utf8(host)
                .ok()
                .and_then(|host| Target::parse(host, Some(target.port)).ok())
                .filter(is_allowed)
                .ok_or(HeadError::HostMismatch)?,
            _ => return Err(HeadError::HostMismatch),
        };
        let upgrades = may_upgrade && body == Body::Length(0) && asks_for_websocket(head);
        let mut out = [&head.start, b"\r\nHost: ".as_slice()].concat();
        out.extend_from_slice(host.authority(80).as_bytes());
        out.extend_from_slice(b"\r\n");
        for field in &head.fields {
            let is_framing = ["host", "content-length", "transfer-encoding"].iter().any(|name| field.is(name));
            let is_upgrade = field.is("http2-settings") || field.is("upgrade") && !upgrades;
            if !is_framing && !is_upgrade {
                field.write(&mut out);
            }
        }
        if body != Body::Length(0) || head.all("content-length").next().is_some() {
            body.write_field(&mut out);
        }
        out.extend_from_slice(b"\r\n");
        Ok(Self { head: out, body, upgrades })
    }
}

fn asks_for_websocket(head: &Head) -> bool {
    let mut protocols = head.all("upgrade");
    let is_websocket = protocols.next().is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
    is_websocket && protocols.next().is_none()
}

impl Field {
    fn write(&self, out: &mut Vec<u8>) {
        for part in [self.name.as_bytes(), b": ", &self.value, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
}

impl Head {
    /// Writes the head as it was parsed.
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.start);
        out.extend_from_slice(b"\r\n");
        self.fields.iter().for_each(|field| field.write(out));
        out.extend_from_slice(b"\r\n");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, may_upgrade: bool) -> Result<Checked, HeadError> {
        let target = Target::parse("a.test:8080", None).unwrap();
        let head = Head::parse(text.as_bytes())?;
        Checked::parse(&head, &target, |host| *host == target.host, may_upgrade)
    }

    fn sent(text: &str, may_upgrade: bool) -> String {
        String::from_utf8(check(text, may_upgrade).unwrap().head).unwrap()
    }

    #[test]
    fn requests_to_the_host_are_written_anew() {
        assert_eq!(
            sent("POST /x HTTP/1.1\r\nA: 1\r\nhost: A.test.\r\ncontent-length: 03\r\nB: 2\r\n\r\n", true),
            "POST /x HTTP/1.1\r\nHost: a.test:8080\r\nA: 1\r\nB: 2\r\nContent-Length: 3\r\n\r\n"
        );
        assert_eq!(sent("OPTIONS * HTTP/1.0\r\n\r\n", true), "OPTIONS * HTTP/1.0\r\nHost: a.test:8080\r\n\r\n");
        assert!(check("GET http://a.test:8080/ HTTP/1.1\r\nHost: a.test:8080\r\n\r\n", true).is_ok());
    }

    #[test]
    fn requests_to_other_hosts_are_refused() {
        for (text, code) in [
            ("GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n", "host-mismatch"),
            ("GET / HTTP/1.1\r\nHost: a.test\r\nHost: evil.test\r\n\r\n", "host-mismatch"),
            ("GET / HTTP/1.1\r\nHost: a.test:81\r\n\r\n", "host-mismatch"),
            ("GET / HTTP/1.1\r\nHost: a.test, evil.test\r\n\r\n", "host-mismatch"),
            ("GET http://evil.test:8080/ HTTP/1.1\r\nHost: a.test:8080\r\n\r\n", "host-mismatch"),
            ("GET http://a.test/ HTTP/1.1\r\nHost: a.test:8080\r\n\r\n", "host-mismatch"),
            ("GET evil.test/ HTTP/1.1\r\nHost: a.test:8080\r\n\r\n", "not-for-proxy"),
            ("CONNECT evil.test:443 HTTP/1.1\r\nHost: a.test:8080\r\n\r\n", "bad-request"),
            ("PRI * HTTP/2.0\r\n\r\n", "bad-request"),
            ("\r\nGET / HTTP/1.1\r\nHost: a.test\r\n\r\n", "bad-request"),
            (
                "GET / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n",
                "bad-request",
            ),
        ] {
            assert_eq!(check(text, true).unwrap_err().code(), code, "{text:?}");
        }
    }

    #[test]
    fn only_a_first_request_may_upgrade_and_only_to_websocket() {
        let ask = |protocol: &str| format!("GET / HTTP/1.1\r\nUpgrade: {protocol}\r\nHTTP2-Settings: x\r\n\r\n");
        let upgrades = |text: &str, may_upgrade| check(text, may_upgrade).unwrap().upgrades;
        assert!(upgrades(&ask("WebSocket"), true));
        assert!(!upgrades(&ask("websocket"), false));
        assert!(!upgrades(&ask("h2c"), true));
        assert!(!upgrades(&ask("websocket, h2c"), true));
        assert_eq!(sent(&ask("h2c"), true), "GET / HTTP/1.1\r\nHost: a.test:8080\r\n\r\n");
        assert!(sent(&ask("websocket"), true).contains("\r\nUpgrade: websocket\r\n"));
    }
}

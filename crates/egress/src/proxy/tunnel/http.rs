//! Plain HTTP inside a `CONNECT` tunnel. Every request is checked before it reaches the server.
//!
//! Each request must name the host of the tunnel, in its Host field and in an absolute request target. Heads are written
//! from the parsed values, so that the server cannot read them differently. Responses are relayed unchanged. Only the
//! first request may upgrade the connection, and only to WebSocket; after the `101` of the server, bytes are relayed
//! without further checks. Upgrades to any other protocol (such as h2c) are removed from the request.

use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::timeout;

use super::error::TunnelError;
use crate::http::{
    BodyError, BodyFraming, Head, HeadError, MAX_INTERIM_RESPONSES, MAX_REQUEST_HEAD_BYTES, MAX_RESPONSE_HEAD_BYTES,
    RequestLine, split_absolute_uri,
};
use crate::refusal::Refusal;
use crate::relay::{IdleTimer, copy};
use crate::rules::{Host, HostPort};

/// The state of an upgrade of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UpgradeState {
    None,
    Requested,
    Declined,
    Accepted,
}

/// The checks for the requests of one tunnel.
pub(super) struct TunnelledHttp<'a, F> {
    pub(super) target: &'a HostPort,
    /// Returns whether a request may name this host.
    pub(super) is_allowed_name: F,
    pub(super) head_timeout: Duration,
    pub(super) idle: &'a IdleTimer,
    pub(super) upgrade: &'a watch::Sender<UpgradeState>,
}

impl<F: Fn(&Host) -> bool> TunnelledHttp<'_, F> {
    /// Relays requests until the client ends or a request is refused; after an upgrade, relays all bytes.
    pub(super) async fn relay_requests<C, W>(&self, client: &mut C, to_server: &mut W) -> Result<(), TunnelError>
    where
        C: AsyncBufRead + Unpin,
        W: AsyncWrite + Unpin,
    {
        let mut is_first = true;
        loop {
            if client.fill_buf().await?.is_empty() {
                return Ok(to_server.shutdown().await?);
            }
            let request = match self.read_request(client, is_first).await {
                Ok(request) => request,
                Err(Refusal::Head(HeadError::Closed | HeadError::Read(_))) => {
                    return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
                }
                // The server has not received anything yet, so that the client can receive an error response.
                Err(refusal) if is_first => return Err(TunnelError::RefusedRequest(refusal)),
                Err(refusal) => return Err(TunnelError::Refused(refusal)),
            };
            is_first = false;
            self.idle.touch();
            if request.is_upgrade {
                self.upgrade.send_replace(UpgradeState::Requested);
            }
            to_server.write_all(&request.head).await?;
            request.body.copy(client, to_server, self.idle).await.map_err(|error| match error {
                BodyError::Malformed => TunnelError::Refused(Refusal::Head(HeadError::Malformed("invalid body"))),
                BodyError::Read(error) | BodyError::Write(error) => TunnelError::Io(error),
            })?;
            if request.is_upgrade && self.wait_for_upgrade().await {
                return Ok(copy(client, to_server, self.idle).await?);
            }
        }
    }

    async fn read_request<C: AsyncBufRead + Unpin>(
        &self,
        client: &mut C,
        is_first: bool,
    ) -> Result<CheckedRequest, Refusal> {
        let head = timeout(self.head_timeout, Head::read(client, MAX_REQUEST_HEAD_BYTES))
            .await
            .map_err(|_| Refusal::HeadTimeout)?
            .map_err(Refusal::Head)?;
        CheckedRequest::parse(&head, self.target, &self.is_allowed_name, is_first).map_err(Refusal::Head)
    }

    /// Waits for the response to an upgrade; returns whether the server accepted it.
    async fn wait_for_upgrade(&self) -> bool {
        let mut upgrade = self.upgrade.subscribe();
        let decided = upgrade.wait_for(|state| matches!(state, UpgradeState::Declined | UpgradeState::Accepted)).await;
        matches!(decided.as_deref(), Ok(UpgradeState::Accepted))
    }
}

/// Relays the bytes of the server and detects the response to an upgrade.
pub(super) async fn relay_responses<S, W>(
    server: &mut S,
    to_client: &mut W,
    idle: &IdleTimer,
    upgrade: &watch::Sender<UpgradeState>,
) -> Result<(), TunnelError>
where
    S: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    loop {
        let ready = server.fill_buf().await?;
        let count = ready.len();
        if *upgrade.borrow() == UpgradeState::Requested {
            let is_accepted = relay_upgrade_response(server, to_client).await?;
            upgrade.send_replace(if is_accepted { UpgradeState::Accepted } else { UpgradeState::Declined });
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

/// Relays response heads up to the final one; returns whether it is `101 Switching Protocols`.
async fn relay_upgrade_response<S, W>(server: &mut S, to_client: &mut W) -> Result<bool, TunnelError>
where
    S: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let invalid = |error| TunnelError::Refused(Refusal::Response(error));
    for _ in 0..=MAX_INTERIM_RESPONSES {
        let head = Head::read(server, MAX_RESPONSE_HEAD_BYTES).await.map_err(invalid)?;
        let status = head.start_line.split(|&b| b == b' ').nth(1).unwrap_or_default();
        let mut out = Vec::new();
        head.write(&mut out);
        to_client.write_all(&out).await?;
        if status == b"101" || !status.starts_with(b"1") {
            return Ok(status == b"101");
        }
    }
    Err(invalid(HeadError::Malformed("too many interim responses")))
}

/// A request that may be sent to the server.
#[derive(Debug)]
struct CheckedRequest {
    /// The head as the server receives it.
    head: Vec<u8>,
    body: BodyFraming,
    is_upgrade: bool,
}

impl CheckedRequest {
    fn parse(
        head: &Head,
        target: &HostPort,
        is_allowed_name: impl Fn(&Host) -> bool,
        may_upgrade: bool,
    ) -> Result<Self, HeadError> {
        let RequestLine { method, uri, body, .. } = RequestLine::parse(head)?;
        if method == "CONNECT" {
            return Err(HeadError::Malformed("CONNECT inside a tunnel"));
        }
        let is_allowed = |named: &HostPort| named.port == target.port && is_allowed_name(&named.host);
        if !uri.starts_with('/') && uri != "*" {
            let (authority, _) = split_absolute_uri(uri)?;
            let named = HostPort::parse(authority, Some(80)).map_err(HeadError::Host)?;
            if !is_allowed(&named) {
                return Err(HeadError::HostMismatch);
            }
        }
        let mut hosts = head.values("host");
        let host = match (hosts.next(), hosts.next()) {
            (None, _) => target.clone(),
            (Some(host), None) => std::str::from_utf8(host)
                .ok()
                .and_then(|host| HostPort::parse(host, Some(target.port)).ok())
                .filter(is_allowed)
                .ok_or(HeadError::HostMismatch)?,
            _ => return Err(HeadError::HostMismatch),
        };
        let is_upgrade = may_upgrade && body == BodyFraming::Length(0) && requests_websocket(head);
        let mut out = [&head.start_line, b"\r\nHost: ".as_slice()].concat();
        out.extend_from_slice(host.authority(80).as_bytes());
        out.extend_from_slice(b"\r\n");
        for field in &head.fields {
            let is_rewritten = ["host", "content-length", "transfer-encoding"].iter().any(|name| field.is_named(name));
            let is_removed = field.is_named("http2-settings") || field.is_named("upgrade") && !is_upgrade;
            if !is_rewritten && !is_removed {
                field.write(&mut out);
            }
        }
        if body != BodyFraming::Length(0) || head.values("content-length").next().is_some() {
            body.write_field(&mut out);
        }
        out.extend_from_slice(b"\r\n");
        Ok(Self { head: out, body, is_upgrade })
    }
}

fn requests_websocket(head: &Head) -> bool {
    let mut protocols = head.values("upgrade");
    let is_websocket = protocols.next().is_some_and(|protocol| protocol.eq_ignore_ascii_case(b"websocket"));
    is_websocket && protocols.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, may_upgrade: bool) -> Result<CheckedRequest, HeadError> {
        let target = HostPort::parse("a.test:8080", None).unwrap();
        let head = Head::parse(text.as_bytes())?;
        CheckedRequest::parse(&head, &target, |host| *host == target.host, may_upgrade)
    }

    fn forwarded(text: &str, may_upgrade: bool) -> String {
        String::from_utf8(check(text, may_upgrade).unwrap().head).unwrap()
    }

    #[test]
    fn requests_to_tunnel_host_are_rewritten() {
        assert_eq!(
            forwarded("POST /x HTTP/1.1\r\nA: 1\r\nhost: A.test.\r\ncontent-length: 03\r\nB: 2\r\n\r\n", true),
            "POST /x HTTP/1.1\r\nHost: a.test:8080\r\nA: 1\r\nB: 2\r\nContent-Length: 3\r\n\r\n"
        );
        assert_eq!(forwarded("OPTIONS * HTTP/1.0\r\n\r\n", true), "OPTIONS * HTTP/1.0\r\nHost: a.test:8080\r\n\r\n");
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
    fn only_first_request_may_upgrade_and_only_to_websocket() {
        let upgrade_to = |protocol: &str| format!("GET / HTTP/1.1\r\nUpgrade: {protocol}\r\nHTTP2-Settings: x\r\n\r\n");
        let is_upgrade = |text: &str, may_upgrade| check(text, may_upgrade).unwrap().is_upgrade;
        assert!(is_upgrade(&upgrade_to("WebSocket"), true));
        assert!(!is_upgrade(&upgrade_to("websocket"), false));
        assert!(!is_upgrade(&upgrade_to("h2c"), true));
        assert!(!is_upgrade(&upgrade_to("websocket, h2c"), true));
        assert_eq!(forwarded(&upgrade_to("h2c"), true), "GET / HTTP/1.1\r\nHost: a.test:8080\r\n\r\n");
        assert!(forwarded(&upgrade_to("websocket"), true).contains("\r\nUpgrade: websocket\r\n"));
    }
}

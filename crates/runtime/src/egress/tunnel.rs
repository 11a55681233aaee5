//! A `CONNECT` tunnel: bytes both ways, once the guest's first ones have been looked at.
//!
//! No byte of the guest reaches the server before it is known not to greet another server by TLS.
//! On port 443 only TLS passes. On other ports the server may speak first, and a protocol that
//! turns to TLS later on is not looked at again.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader, split};
use tokio::time::timeout;

use super::hello::{MAX_OPENING, Opening, inspect};
use super::host::{Host, Target};
use super::policy::Policy;
use super::refusal::Refusal;
use super::relay::{Idle, copy};

const TLS_PORT: u16 = 443;

/// What a tunnel is held to.
#[derive(Debug)]
pub(super) struct Tunnel<'a> {
    pub(super) policy: &'a Policy,
    pub(super) target: &'a Target,
    pub(super) hello: Duration,
    pub(super) idle: Duration,
}

/// Why a tunnel broke.
#[derive(Debug, thiserror::Error)]
pub(super) enum TunnelError {
    #[error("the tunnel was closed")]
    Refused(#[source] Refusal),
    #[error("the tunnel broke")]
    Broken(#[from] io::Error),
    #[error("the tunnel was idle")]
    Idle,
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
        let idle = Idle::new(self.idle);
        let tls_only = self.target.port == TLS_PORT;
        let work = async {
            if tls_only {
                let opening = timeout(self.hello, self.opening(client))
                    .await
                    .map_err(|_| TunnelError::Refused(Refusal::BadHello))??;
                to_server.write_all(&opening).await?;
            }
            let up = async {
                if !tls_only {
                    let opening = self.opening(client).await?;
                    to_server.write_all(&opening).await?;
                }
                Ok(copy(client, &mut to_server, &idle).await?)
            };
            let down = async { Ok(copy(&mut server, to_client, &idle).await?) };
            tokio::try_join!(up, down).map(|_| ())
        };
        idle.guard(work).await.unwrap_or(Err(TunnelError::Idle))
    }

    /// Reads the guest's first bytes, for as long as they might be a greeting, and judges them.
    async fn opening<C>(&self, client: &mut C) -> Result<Vec<u8>, TunnelError>
    where
        C: AsyncBufRead + Unpin,
    {
        let mut bytes = Vec::new();
        let mut limit = MAX_OPENING as u64;
        // a guest may stay silent at first; once it has begun, it has to finish
        limit -= client.take(limit).read_buf(&mut bytes).await? as u64;
        let rest = async {
            loop {
                match inspect(&bytes) {
                    Opening::Incomplete => {}
                    opening => return Ok(Some(opening)),
                }
                match client.take(limit).read_buf(&mut bytes).await? {
                    0 => return Ok(None),
                    count => limit -= count as u64,
                }
            }
        };
        let opening = timeout(self.hello, rest).await.unwrap_or(Ok::<_, io::Error>(Some(Opening::Malformed)))?;
        let verdict = match opening {
            None if bytes.is_empty() => Ok(()),
            Some(Opening::NotTls) if self.target.port == TLS_PORT => Err(Refusal::NotTls),
            Some(Opening::NotTls | Opening::Hello { server_name: None }) => Ok(()),
            Some(Opening::Hello { server_name: Some(name) }) if self.may_greet(&name) => Ok(()),
            Some(Opening::Hello { .. }) => Err(Refusal::SniMismatch),
            None | Some(Opening::Malformed | Opening::Incomplete) => Err(Refusal::BadHello),
        };
        verdict.map(|()| bytes).map_err(TunnelError::Refused)
    }

    fn may_greet(&self, name: &str) -> bool {
        let Ok(host) = name.parse::<Host>() else {
            return false;
        };
        let by_address = matches!(self.target.host, Host::Address(_));
        let port = self.target.port;
        host == self.target.host || by_address && self.policy.admit(&Target { host, port }).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;
    use crate::egress::hello::tests::hello_to;

    /// Sends `bytes` through a tunnel and ends; gives what the server got and how it went.
    async fn sent(target: &str, bytes: &[u8]) -> (Vec<u8>, Result<(), TunnelError>) {
        let policy = Policy::parse(["a.com:*", "10.0.0.1:*"]).unwrap();
        let target = Target::parse(target, None).unwrap();
        let tunnel =
            Tunnel { policy: &policy, target: &target, hello: Duration::from_secs(10), idle: Duration::from_secs(300) };
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
            let tunnel = Tunnel {
                policy: &policy,
                target: &target,
                hello: Duration::from_secs(10),
                idle: Duration::from_secs(300),
            };
            let (client, mut guest) = duplex(64);
            let (server, _far) = duplex(64);
            guest.write_all(bytes).await.unwrap();
            let mut client = BufReader::new(client);
            let result = tunnel.run(&mut client, &mut Vec::new(), server).await;
            assert_eq!(result.unwrap_err().to_string(), expected, "{target}");
        }
    }
}

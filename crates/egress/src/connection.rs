//! One connection of the guest, from its head to its end.

use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::decision::Decision;
use super::dial::dial;
use super::forward::ForwardError;
use super::head::{Head, HeadError};
use super::host::Target;
use super::proxy::{BUFFER, Limits, Proxy};
use super::refusal::Refusal;
use super::request::{Kind, Request};
use super::tunnel::{Tunnel, TunnelError};

const MAX_HEAD: usize = 16 * 1024;
/// How long, and how much, a guest may still send after its answer: closing on unread bytes resets
/// the connection, and a guest that is still sending would not get to read the answer.
const LINGER: Duration = Duration::from_secs(2);
const MAX_LINGER_BYTES: u64 = 16 * 1024 * 1024;

/// Serves one connection.
pub(super) async fn serve<R, W>(proxy: &Proxy, from_client: R, mut to_client: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut client = BufReader::with_capacity(BUFFER, from_client);
    let request = match read_request(proxy, &mut client).await {
        Ok(request) => request,
        Err(Refusal::Head(HeadError::Closed | HeadError::Read(_))) => return,
        Err(refusal) => {
            refuse(proxy, Decision::default(), &refusal);
            return answer(&mut client, &mut to_client, &refusal, None).await;
        }
    };
    let target = &request.target;
    let mut decision = Decision {
        method: Some(request.method.clone()),
        host: Some(target.host.clone()),
        port: Some(target.port),
        ..Decision::default()
    };
    let server = match dial(proxy, target, &mut decision).await {
        Ok(server) => server,
        Err(refusal) => {
            refuse(proxy, decision, &refusal);
            return answer(&mut client, &mut to_client, &refusal, Some(target)).await;
        }
    };
    proxy.log.record(Decision { allowed: true, reason: "allowed", ..decision.clone() });

    match &request.kind {
        Kind::Tunnel => {
            const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";
            let Limits { hello, head, idle, .. } = proxy.limits;
            let tunnel = Tunnel { policy: &proxy.policy, target, hello, head, idle };
            if !send(&mut to_client, ESTABLISHED).await {
                return;
            }
            match tunnel.run(&mut client, &mut to_client, server).await {
                Err(TunnelError::Refused(refusal)) => refuse(proxy, decision, &refusal),
                Err(TunnelError::RefusedRequest(refusal)) => {
                    refuse(proxy, decision, &refusal);
                    answer(&mut client, &mut to_client, &refusal, Some(target)).await;
                }
                Ok(()) | Err(TunnelError::Broken(_) | TunnelError::Idle) => {}
            }
        }
        Kind::Forward(forward) => {
            let idle = proxy.limits.idle;
            match forward.run(&mut client, &mut to_client, server, idle).await {
                Ok(()) => linger(&mut client, &mut to_client).await,
                Err(ForwardError::Unanswered(refusal)) => {
                    refuse(proxy, decision, &refusal);
                    answer(&mut client, &mut to_client, &refusal, Some(target)).await;
                }
                Err(ForwardError::Broken) => {}
            }
        }
    }
}

/// Tells a connection beyond the limit that it is one too many.
pub(super) async fn turn_away<R, W>(proxy: &Proxy, from_client: R, mut to_client: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let refusal = Refusal::TooManyConnections;
    refuse(proxy, Decision::default(), &refusal);
    let mut client = BufReader::with_capacity(BUFFER, from_client);
    answer(&mut client, &mut to_client, &refusal, None).await;
}

async fn read_request<C>(proxy: &Proxy, client: &mut C) -> Result<Request, Refusal>
where
    C: AsyncBufRead + Unpin,
{
    let head = timeout(proxy.limits.head, Head::read(client, MAX_HEAD))
        .await
        .map_err(|_| Refusal::HeadTimeout)?
        .map_err(Refusal::Head)?;
    Request::parse(&head).map_err(Refusal::Head)
}

fn refuse(proxy: &Proxy, decision: Decision, refusal: &Refusal) {
    proxy.log.record(Decision { allowed: false, reason: refusal.code(), ..decision });
}

async fn answer<C, W>(client: &mut C, to_client: &mut W, refusal: &Refusal, target: Option<&Target>)
where
    C: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let text = refusal.response(target);
    if send(to_client, text.as_bytes()).await {
        linger(client, to_client).await;
    }
}

/// Whether the guest could be sent a few bytes.
async fn send<W: AsyncWrite + Unpin>(to_client: &mut W, bytes: &[u8]) -> bool {
    matches!(timeout(LINGER, to_client.write_all(bytes)).await, Ok(Ok(())))
}

/// Ends our side, then lets the guest end its own.
async fn linger<C, W>(client: &mut C, to_client: &mut W)
where
    C: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let ending = async {
        to_client.shutdown().await?;
        let mut rest = client.take(MAX_LINGER_BYTES);
        tokio::io::copy(&mut rest, &mut tokio::io::sink()).await
    };
    // a guest that does not end in time is cut off, which is all that is left to do
    let _ = timeout(LINGER, ending).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{duplex, split};

    use super::*;
    use crate::{DecisionLog, Policy};

    #[tokio::test(start_paused = true)]
    async fn a_slow_head_is_cut_off() {
        let (log, mut decisions) = DecisionLog::bounded(8);
        let proxy = Proxy::new(Policy::default(), log);
        let (ours, guest) = duplex(1024);
        let (from_client, to_client) = split(ours);
        let (mut from_proxy, mut to_proxy) = split(guest);
        let trickle = async {
            let mut interval = tokio::time::interval(Duration::from_secs(5));
            while to_proxy.write_all(b"G").await.is_ok() {
                interval.tick().await;
            }
        };
        let mut seen = String::new();
        tokio::join!(serve(&proxy, from_client, to_client), trickle, async {
            from_proxy.read_to_string(&mut seen).await.unwrap();
        });
        assert!(seen.starts_with("HTTP/1.1 408 "), "{seen}");
        assert_eq!(decisions.recv().await.unwrap().reason, "head-timeout");
    }
}

//! One connection of the guest, from its request head to its end.

use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::forward::ForwardError;
use super::request::{ProxyRequest, RequestKind};
use super::tunnel::{Tunnel, TunnelError};
use crate::context::Context;
use crate::decision::Decision;
use crate::http::{Head, HeadError, MAX_REQUEST_HEAD_BYTES};
use crate::refusal::Refusal;
use crate::relay::BUFFER_BYTES;
use crate::rules::HostPort;
use crate::upstream;

/// Limits on the time and the bytes that a guest may still send after the response. Closing a socket with unread bytes
/// resets the connection, and a guest that is still sending could not read the response.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_DISCARDED_BYTES: u64 = 16 * 1024 * 1024;

/// Serves one connection.
pub(super) async fn serve_connection<R, W>(context: &Context, from_client: R, mut to_client: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut client = BufReader::with_capacity(BUFFER_BYTES, from_client);
    let request = match read_request(context, &mut client).await {
        Ok(request) => request,
        Err(Refusal::Head(HeadError::Closed | HeadError::Read(_))) => return,
        Err(refusal) => {
            log_refusal(context, Decision::default(), &refusal);
            return send_refusal(&mut client, &mut to_client, &refusal, None).await;
        }
    };
    let target = &request.target;
    let mut decision = Decision {
        method: Some(request.method.clone()),
        host: Some(target.host.clone()),
        port: Some(target.port),
        ..Decision::default()
    };
    let server = match upstream::connect(context, target, &mut decision).await {
        Ok(server) => server,
        Err(refusal) => {
            log_refusal(context, decision, &refusal);
            return send_refusal(&mut client, &mut to_client, &refusal, Some(target)).await;
        }
    };
    context.log.record(Decision { is_allowed: true, reason: "allowed", ..decision.clone() });

    match &request.kind {
        RequestKind::Tunnel => {
            const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";
            let tunnel = Tunnel { policy: &context.policy, limits: &context.limits, target };
            if !send(&mut to_client, ESTABLISHED).await {
                return;
            }
            match tunnel.run(&mut client, &mut to_client, server).await {
                Err(TunnelError::Refused(refusal)) => log_refusal(context, decision, &refusal),
                Err(TunnelError::RefusedRequest(refusal)) => {
                    log_refusal(context, decision, &refusal);
                    send_refusal(&mut client, &mut to_client, &refusal, Some(target)).await;
                }
                Ok(()) | Err(TunnelError::Io(_) | TunnelError::IdleTimeout) => {}
            }
        }
        RequestKind::Forward(forward) => {
            let idle_timeout = context.limits.idle_timeout;
            match forward.run(&mut client, &mut to_client, server, idle_timeout).await {
                Ok(()) => close(&mut client, &mut to_client).await,
                Err(ForwardError::NoResponse(refusal)) => {
                    log_refusal(context, decision, &refusal);
                    send_refusal(&mut client, &mut to_client, &refusal, Some(target)).await;
                }
                Err(ForwardError::Interrupted) => {}
            }
        }
    }
}

/// Rejects a connection over the limit with a response.
pub(super) async fn reject_connection<R, W>(context: &Context, from_client: R, mut to_client: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let refusal = Refusal::TooManyConnections;
    log_refusal(context, Decision::default(), &refusal);
    let mut client = BufReader::with_capacity(BUFFER_BYTES, from_client);
    send_refusal(&mut client, &mut to_client, &refusal, None).await;
}

async fn read_request<C>(context: &Context, client: &mut C) -> Result<ProxyRequest, Refusal>
where
    C: AsyncBufRead + Unpin,
{
    let head = timeout(context.limits.head_timeout, Head::read(client, MAX_REQUEST_HEAD_BYTES))
        .await
        .map_err(|_| Refusal::HeadTimeout)?
        .map_err(Refusal::Head)?;
    ProxyRequest::parse(&head).map_err(Refusal::Head)
}

fn log_refusal(context: &Context, decision: Decision, refusal: &Refusal) {
    context.log.record(Decision { is_allowed: false, reason: refusal.code(), ..decision });
}

async fn send_refusal<C, W>(client: &mut C, to_client: &mut W, refusal: &Refusal, target: Option<&HostPort>)
where
    C: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let response = refusal.response(target);
    if send(to_client, response.as_bytes()).await {
        close(client, to_client).await;
    }
}

/// Sends a few bytes to the guest; returns whether that succeeded.
async fn send<W: AsyncWrite + Unpin>(to_client: &mut W, bytes: &[u8]) -> bool {
    matches!(timeout(CLOSE_TIMEOUT, to_client.write_all(bytes)).await, Ok(Ok(())))
}

/// Ends the sending side, then discards input until the guest closes its side.
async fn close<C, W>(client: &mut C, to_client: &mut W)
where
    C: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let drain = async {
        to_client.shutdown().await?;
        let mut input = client.take(MAX_DISCARDED_BYTES);
        tokio::io::copy(&mut input, &mut tokio::io::sink()).await
    };
    // A guest that does not close in time is disconnected.
    let _ = timeout(CLOSE_TIMEOUT, drain).await;
}

#[cfg(test)]
mod tests {
    use tokio::io::{duplex, split};

    use super::*;
    use crate::context::Limits;
    use crate::name_lookup::NameLookup;
    use crate::{DecisionLog, Policy};

    #[tokio::test(start_paused = true)]
    async fn slow_request_head_times_out() {
        let (log, mut decisions) = DecisionLog::bounded(8);
        let (policy, limits, lookup) = (Policy::default(), Limits::default(), NameLookup::system());
        let context = Context { policy, limits, lookup, log };
        let (proxy_end, guest_end) = duplex(1024);
        let (from_client, to_client) = split(proxy_end);
        let (mut from_proxy, mut to_proxy) = split(guest_end);
        let send_slowly = async {
            let mut interval = tokio::time::interval(Duration::from_secs(5));
            while to_proxy.write_all(b"G").await.is_ok() {
                interval.tick().await;
            }
        };
        let mut received = String::new();
        tokio::join!(serve_connection(&context, from_client, to_client), send_slowly, async {
            from_proxy.read_to_string(&mut received).await.unwrap();
        });
        assert!(received.starts_with("HTTP/1.1 408 "), "{received}");
        assert_eq!(decisions.recv().await.unwrap().reason, "head-timeout");
    }
}

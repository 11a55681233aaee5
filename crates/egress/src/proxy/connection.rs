//! One connection of the guest, from its request head to its end.

use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::forward::ForwardError;
use super::request::{ProxyRequest, RequestKind};
use super::tunnel::{Ended, Tunnel, TunnelError};
use crate::context::Context;
use crate::decision::Decision;
use crate::http::{Head, HeadError, MAX_REQUEST_HEAD_BYTES};
use crate::refusal::Refusal;
use crate::relay::ReadBuffer;
use crate::rules::HostPort;
use crate::upstream;

/// Limits on the time and the bytes that a guest may still send after the response. Closing a socket with unread bytes
/// resets the connection, and a guest that is still sending could not read the response.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_DISCARDED_BYTES: u64 = 16 * 1024 * 1024;

/// Serves one connection.
pub(crate) async fn serve_connection<R, W>(context: &Context, from_client: R, mut to_client: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut client = ReadBuffer::new(from_client);
    let request = match read_request(context, &mut client).await {
        Ok(request) => request,
        Err(Refusal::Head(HeadError::Closed | HeadError::Read(_))) => return,
        Err(refusal) => {
            context.record_refusal(Decision::default(), &refusal);
            return send_refusal(context, &mut client, &mut to_client, &refusal, None).await;
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
            context.record_refusal(decision, &refusal);
            return send_refusal(context, &mut client, &mut to_client, &refusal, Some(target)).await;
        }
    };
    context.log.record(Decision { is_allowed: true, reason: "allowed", ..decision.clone() });

    match &request.kind {
        RequestKind::Tunnel => {
            const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection Established\r\n\r\n";
            let policy = context.policy.snapshot();
            let terminator = context.terminator(&policy, target, &decision);
            let terminator = Some(&terminator);
            let tunnel = Tunnel { policy: &policy, limits: &context.limits, target, terminator };
            if !send(&mut to_client, ESTABLISHED).await {
                return;
            }
            match tunnel.run(&mut client, &mut to_client, server).await {
                Err(TunnelError::Refused(refusal)) => context.record_refusal(decision, &refusal),
                Err(TunnelError::RefusedRequest(refusal)) => {
                    context.record_refusal(decision, &refusal);
                    send_refusal(context, &mut client, &mut to_client, &refusal, Some(target)).await;
                }
                // A client that was refused may still be sending.
                Ok(Ended::Terminated) => close(&mut client, &mut to_client).await,
                Ok(Ended::Relayed) | Err(TunnelError::Io(_) | TunnelError::IdleTimeout) => {}
            }
        }
        RequestKind::Forward(forward) => {
            let terminator = context.terminator(&context.policy.snapshot(), target, &decision);
            if terminator.checks_plain_http() {
                let _ = terminator.run(false, &forward.head, &mut client, &mut to_client, server).await;
                return close(&mut client, &mut to_client).await;
            }
            let idle_timeout = context.limits.idle_timeout;
            match forward.run(&mut client, &mut to_client, server, idle_timeout).await {
                Ok(()) => close(&mut client, &mut to_client).await,
                Err(ForwardError::NoResponse(refusal)) => {
                    context.record_refusal(decision, &refusal);
                    send_refusal(context, &mut client, &mut to_client, &refusal, Some(target)).await;
                }
                Err(ForwardError::Interrupted) => {}
            }
        }
    }
}

/// Rejects a connection over the limit with a response.
pub(crate) async fn reject_connection<R, W>(context: &Context, from_client: R, mut to_client: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let refusal = Refusal::TooManyConnections;
    context.record_refusal(Decision::default(), &refusal);
    let mut client = ReadBuffer::new(from_client);
    send_refusal(context, &mut client, &mut to_client, &refusal, None).await;
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

/// Sends a refusal as an HTTP response, and ends the connection.
pub(crate) async fn send_refusal<C, W>(
    context: &Context,
    client: &mut C,
    to_client: &mut W,
    refusal: &Refusal,
    target: Option<&HostPort>,
) where
    C: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let remedy = context.remedy.lock().clone();
    let response = refusal.response(target, &remedy);
    if send(to_client, response.as_bytes()).await {
        close(client, to_client).await;
    }
}

/// Sends a few bytes to the guest; returns whether that succeeded.
pub(crate) async fn send<W: AsyncWrite + Unpin>(to_client: &mut W, bytes: &[u8]) -> bool {
    matches!(timeout(CLOSE_TIMEOUT, to_client.write_all(bytes)).await, Ok(Ok(())))
}

/// Ends the sending side, then discards input until the guest closes its side.
pub(crate) async fn close<C, W>(client: &mut C, to_client: &mut W)
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
    use crate::{DecisionLog, Policy};

    #[tokio::test(start_paused = true)]
    async fn slow_request_head_times_out() {
        let (log, mut decisions) = DecisionLog::bounded(8);
        let context = Context::new(Policy::default(), log);
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

//! Connections of guests to the address of a name. The guest does not know that it talks to the host.
//!
//! The address that the guest dialled determines the name; the rule, the lookup and the checks of the traffic are the same
//! as in a `CONNECT` tunnel to that name. A guest that speaks HTTP receives a refusal as a response, one that speaks TLS
//! as an alert; otherwise the connection is closed.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncWrite};
use tokio::time::timeout;

use crate::context::Context;
use crate::decision::{Decision, Source};
use crate::http::{HttpDetection, detect_http};
use crate::proxy::{Ended, Tunnel, TunnelError, close, send, send_refusal};
use crate::refusal::Refusal;
use crate::relay::ReadBuffer;
use crate::rules::{Host, HostPort};
use crate::tls::{Alert, TlsDetection, detect_tls};
use crate::upstream;

/// Timeout for the first bytes of a refused guest, which determine the form of the refusal.
const FIRST_BYTES_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves one connection to `dialled`.
pub(crate) async fn serve_connection<R, W>(context: &Context, dialled: SocketAddr, from_client: R, mut to_client: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut client = ReadBuffer::new(from_client);
    let port = dialled.port();
    let mut decision = Decision { source: Source::Transparent, port: Some(port), ..Decision::default() };
    // The name stays in the table until the connection ends.
    let Some(open) = context.names.open(dialled.ip()) else {
        let host = Host::Address(dialled.ip().to_canonical());
        let target = HostPort { host: host.clone(), port };
        context.record_refusal(Decision { host: Some(host), ..decision }, &Refusal::UnknownAddress);
        return refuse(context, &mut client, &mut to_client, &Refusal::UnknownAddress, &target).await;
    };
    let target = HostPort { host: Host::Name((*open.name).clone()), port };
    decision.host = Some(target.host.clone());
    let server = match upstream::connect(context, &target, &mut decision).await {
        Ok(server) => server,
        Err(refusal) => {
            context.record_refusal(decision, &refusal);
            return refuse(context, &mut client, &mut to_client, &refusal, &target).await;
        }
    };
    context.log.record(Decision { is_allowed: true, reason: "allowed", ..decision.clone() });

    let policy = context.policy.snapshot();
    let terminator = context.terminator(&policy, &target, &decision);
    let tunnel = Tunnel { policy: &policy, limits: &context.limits, target: &target, terminator: Some(&terminator) };
    match tunnel.run(&mut client, &mut to_client, server).await {
        Err(TunnelError::RefusedRequest(refusal)) => {
            context.record_refusal(decision, &refusal);
            send_refusal(context, &mut client, &mut to_client, &refusal, Some(&target)).await;
        }
        Err(TunnelError::Refused(refusal)) => {
            context.record_refusal(decision, &refusal);
            if matches!(refusal, Refusal::SniMismatch | Refusal::NoSni | Refusal::BadHello | Refusal::NoAuthority) {
                send_alert(&mut client, &mut to_client, &refusal).await;
            }
        }
        // A client that was refused may still be sending.
        Ok(Ended::Terminated) => close(&mut client, &mut to_client).await,
        Ok(Ended::Relayed) | Err(TunnelError::Io(_) | TunnelError::IdleTimeout) => {}
    }
}

/// Refuses a connection before any byte of the guest was read.
async fn refuse<C, W>(context: &Context, client: &mut C, to_client: &mut W, refusal: &Refusal, target: &HostPort)
where
    C: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let Ok(Ok(first_bytes)) = timeout(FIRST_BYTES_TIMEOUT, client.fill_buf()).await else { return };
    if first_bytes.is_empty() {
        return;
    }
    if detect_tls(first_bytes) != TlsDetection::NotTls {
        send_alert(client, to_client, refusal).await;
    } else if target.port == 80 || detect_http(first_bytes) == HttpDetection::Http {
        send_refusal(context, client, to_client, refusal, Some(target)).await;
    }
}

async fn send_alert<C, W>(client: &mut C, to_client: &mut W, refusal: &Refusal)
where
    C: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let alert = match refusal {
        Refusal::SniMismatch | Refusal::UnknownAddress => Alert::UnrecognizedName,
        Refusal::Resolve(_) | Refusal::ResolveTimeout | Refusal::Connect(_) | Refusal::ConnectTimeout => {
            Alert::InternalError
        }
        _ => Alert::AccessDenied,
    };
    if send(to_client, &alert.record()).await {
        close(client, to_client).await;
    }
}

#[cfg(test)]
mod tests;

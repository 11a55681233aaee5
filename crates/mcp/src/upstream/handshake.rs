//! Negotiates the era of the protocol (see `era`): first the probe `server/discover` for the modern era, then the
//! `initialize` handshake of the legacy era.
//!
//! Only a response of the modern era proves that a server supports it. If the server returns an error that legacy
//! servers use for unknown methods, or does not respond, `initialize` is sent. A probe without a response stays pending
//! during the handshake, because a server that is slow to start responds to the probe first. See the versioning page of
//! the 2026-07-28 specification.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::connection::{Connection, RequestEra};
use super::era::{Era, LEGACY_VERSIONS, MODERN_VERSIONS};
use super::error::{RpcError, UpstreamError};
use super::{Eras, OutgoingCall};

/// Time to wait for the response to the probe before `initialize` is sent too.
const PROBE_TIMEOUT: Duration = Duration::from_secs(2);

enum ProbeResult {
    Modern(Era, Value),
    Legacy,
}

/// Negotiates the era. Returns it with the result of `server/discover` or `initialize`, which describes the server.
pub(super) async fn negotiate(connection: &Arc<Connection>, eras: Eras) -> Result<(Era, Value), UpstreamError> {
    if eras == Eras::LegacyOnly {
        return initialize(connection).await;
    }
    let negotiated = probe_then_initialize(connection).await;
    match negotiated {
        // A server that exits on an unknown method would exit on the probe of the next connection too.
        Err(UpstreamError::Closed { reason, .. }) if !connection.transport.is_http() => {
            Err(UpstreamError::ClosedDuringProbe(reason))
        }
        negotiated => negotiated,
    }
}

async fn probe_then_initialize(connection: &Arc<Connection>) -> Result<(Era, Value), UpstreamError> {
    let mut probe = pin!(discover(connection, MODERN_VERSIONS[0]));
    let negotiated = match tokio::time::timeout(PROBE_TIMEOUT, &mut probe).await {
        Ok(Ok(ProbeResult::Modern(era, description))) => return Ok((era, description)),
        Ok(Ok(ProbeResult::Legacy)) => initialize(connection).await,
        Ok(Err(error)) => return Err(error),
        Err(_) => {
            let mut handshake = pin!(initialize(connection));
            tokio::select! {
                // The probe was sent first, so its response has precedence if both are ready.
                biased;
                probed = &mut probe => match probed? {
                    ProbeResult::Modern(era, description) => return Ok((era, description)),
                    ProbeResult::Legacy => handshake.await,
                },
                negotiated = &mut handshake => negotiated,
            }
        }
    };
    match negotiated {
        // A modern server rejects `initialize` and lists the versions that it supports.
        Err(UpstreamError::Rpc(error)) if error.code == RpcError::UNSUPPORTED_PROTOCOL_VERSION => {
            let Some(version) = newest_common(&versions_in(&error)) else { return Err(UpstreamError::Rpc(error)) };
            match discover(connection, version).await? {
                ProbeResult::Modern(era, description) => Ok((era, description)),
                ProbeResult::Legacy => Err(UpstreamError::Rpc(error)),
            }
        }
        negotiated => negotiated,
    }
}

async fn discover(connection: &Arc<Connection>, version: &str) -> Result<ProbeResult, UpstreamError> {
    let mut tried = vec![version.to_owned()];
    loop {
        let era = Era::Modern(tried.last().cloned().unwrap_or_default());
        let error = match connection.call(request("server/discover", json!({})), RequestEra::Probe(&era)).await {
            Ok((description, _)) => {
                let supported = versions(description.get("supportedVersions"));
                return Ok(match newest_common(&supported) {
                    Some(version) => ProbeResult::Modern(Era::Modern(version.to_owned()), description),
                    None => ProbeResult::Legacy,
                });
            }
            Err(error) => error,
        };
        match error {
            UpstreamError::Rpc(error) if error.code == RpcError::UNSUPPORTED_PROTOCOL_VERSION => {
                let supported = versions_in(&error);
                match newest_common(&supported) {
                    Some(version) if tried.len() < 2 => tried.push(version.to_owned()),
                    _ if supported.is_empty()
                        || supported.iter().any(|version| LEGACY_VERSIONS.contains(&version.as_str())) =>
                    {
                        return Ok(ProbeResult::Legacy);
                    }
                    _ => {
                        let versions = supported.join(", ");
                        return Err(UpstreamError::Refused(format!(
                            "the server supports only the protocol versions {versions}"
                        )));
                    }
                }
            }
            UpstreamError::Rpc(error)
                if matches!(error.code, RpcError::MISSING_CLIENT_CAPABILITY | RpcError::HEADER_MISMATCH) =>
            {
                return Err(UpstreamError::Rpc(error));
            }
            UpstreamError::HttpStatus { status: 401 | 403 | 407 | 429, .. } => return Err(error),
            UpstreamError::Closed { may_have_run: true, .. } if connection.transport.is_http() => {
                return Ok(ProbeResult::Legacy);
            }
            UpstreamError::Rpc(_) | UpstreamError::HttpStatus { .. } | UpstreamError::TooLarge => {
                return Ok(ProbeResult::Legacy);
            }
            error => return Err(error),
        }
    }
}

/// Performs the handshake of the legacy era: `initialize`, then `notifications/initialized`.
pub(super) async fn initialize(connection: &Arc<Connection>) -> Result<(Era, Value), UpstreamError> {
    let params = json!({
        "protocolVersion": LEGACY_VERSIONS[0],
        "capabilities": connection.client.capabilities,
        "clientInfo": connection.client.info(),
    });
    let (description, _) = connection.call(request("initialize", params), RequestEra::Handshake).await?;
    let Some(version) = description.get("protocolVersion").and_then(Value::as_str) else {
        return Err(UpstreamError::Refused("the result of `initialize` has no protocol version".into()));
    };
    if !LEGACY_VERSIONS.contains(&version) {
        let version: String = version.chars().take(40).collect();
        return Err(UpstreamError::Refused(format!("the server uses the unknown protocol version {version:?}")));
    }
    let era = Era::Legacy(version.to_owned());
    connection.transport.set_era(&era);
    connection.notify("notifications/initialized", None).await?;
    Ok((era, description))
}

fn request(method: &str, params: Value) -> OutgoingCall {
    OutgoingCall {
        method: method.to_owned(),
        params: Some(params),
        cancel: CancellationToken::new(),
        // The caller has a timeout for the whole handshake.
        idle_timeout: Some(Duration::from_secs(3600)),
        related: None,
    }
}

fn versions(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).filter(|version| version.len() <= 40).take(32).map(str::to_owned).collect()
}

fn versions_in(error: &RpcError) -> Vec<String> {
    versions(error.data.as_ref().and_then(|data| data.get("supported")))
}

fn newest_common(supported: &[String]) -> Option<&'static str> {
    MODERN_VERSIONS.iter().copied().find(|version| supported.iter().any(|supported| supported == version))
}

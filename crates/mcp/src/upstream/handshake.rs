//! Agreeing on a protocol: the modern one is tried first, then the handshake of the legacy one.
//!
//! Only an answer of the modern era is proof of it. An error that legacy servers give to what they do not
//! know, or silence, leads to `initialize`; a question that went unanswered stays open meanwhile, since a
//! server that is slow to start answers it first. See the versioning page of the 2026-07-28 specification.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::era::{Era, LEGACY_VERSIONS, MODERN_VERSIONS};
use super::error::{RpcError, UpstreamError};
use super::rpc::{Connection, Style};
use super::{Eras, Outgoing};

/// After this long without an answer, `initialize` is sent too.
const PROBE: Duration = Duration::from_secs(2);

/// What the question for the era has shown.
enum Verdict {
    Modern(Era, Value),
    Legacy,
}

/// Agrees on an era and says what the server told of itself.
pub(super) async fn agree(connection: &Arc<Connection>, eras: Eras) -> Result<(Era, Value), UpstreamError> {
    if eras == Eras::LegacyOnly {
        return initialize(connection).await;
    }
    let agreed = probe_first(connection).await;
    match agreed {
        // A server that dies of the question would do so again.
        Err(UpstreamError::Closed { why, .. }) if !connection.link.is_http() => Err(UpstreamError::EndedInProbe(why)),
        agreed => agreed,
    }
}

async fn probe_first(connection: &Arc<Connection>) -> Result<(Era, Value), UpstreamError> {
    let mut probe = pin!(discover(connection, MODERN_VERSIONS[0]));
    let agreed = match tokio::time::timeout(PROBE, &mut probe).await {
        Ok(Ok(Verdict::Modern(era, about))) => return Ok((era, about)),
        Ok(Ok(Verdict::Legacy)) => initialize(connection).await,
        Ok(Err(error)) => return Err(error),
        Err(_) => {
            let mut handshake = pin!(initialize(connection));
            tokio::select! {
                // A server answers in order: what it says to the first question counts.
                biased;
                verdict = &mut probe => match verdict? {
                    Verdict::Modern(era, about) => return Ok((era, about)),
                    Verdict::Legacy => handshake.await,
                },
                agreed = &mut handshake => agreed,
            }
        }
    };
    match agreed {
        // The server is modern after all: it names what it speaks.
        Err(UpstreamError::Rpc(error)) if error.code == RpcError::UNSUPPORTED_PROTOCOL_VERSION => {
            let Some(version) = mutual(&named_versions(&error)) else { return Err(UpstreamError::Rpc(error)) };
            match discover(connection, version).await? {
                Verdict::Modern(era, about) => Ok((era, about)),
                Verdict::Legacy => Err(UpstreamError::Rpc(error)),
            }
        }
        agreed => agreed,
    }
}

async fn discover(connection: &Arc<Connection>, version: &str) -> Result<Verdict, UpstreamError> {
    let mut tried = vec![version.to_owned()];
    loop {
        let era = Era::Modern(tried.last().cloned().unwrap_or_default());
        let error = match connection.call(request("server/discover", json!({})), Style::Trying(&era)).await {
            Ok((about, _)) => {
                let supported = versions(about.get("supportedVersions"));
                return Ok(match mutual(&supported) {
                    Some(version) => Verdict::Modern(Era::Modern(version.to_owned()), about),
                    None => Verdict::Legacy,
                });
            }
            Err(error) => error,
        };
        match error {
            UpstreamError::Rpc(error) if error.code == RpcError::UNSUPPORTED_PROTOCOL_VERSION => {
                let supported = named_versions(&error);
                match mutual(&supported) {
                    Some(version) if tried.len() < 2 => tried.push(version.to_owned()),
                    _ if supported.is_empty() || supported.iter().any(|it| LEGACY_VERSIONS.contains(&it.as_str())) => {
                        return Ok(Verdict::Legacy);
                    }
                    _ => {
                        let spoken = supported.join(", ");
                        return Err(UpstreamError::Refused(format!("the server speaks only versions {spoken}")));
                    }
                }
            }
            UpstreamError::Rpc(error)
                if matches!(error.code, RpcError::MISSING_CLIENT_CAPABILITY | RpcError::HEADER_MISMATCH) =>
            {
                return Err(UpstreamError::Rpc(error));
            }
            UpstreamError::Denied { status: 401 | 403 | 407 | 429, .. } => return Err(error),
            UpstreamError::Closed { may_have_run: true, .. } if connection.link.is_http() => {
                return Ok(Verdict::Legacy);
            }
            UpstreamError::Rpc(_) | UpstreamError::Denied { .. } | UpstreamError::TooLarge => {
                return Ok(Verdict::Legacy);
            }
            other => return Err(other),
        }
    }
}

/// The handshake of the legacy era, up to the word that it is done.
pub(super) async fn initialize(connection: &Arc<Connection>) -> Result<(Era, Value), UpstreamError> {
    let params = json!({
        "protocolVersion": LEGACY_VERSIONS[0],
        "capabilities": connection.who.capabilities,
        "clientInfo": connection.who.info(),
    });
    let (about, _) = connection.call(request("initialize", params), Style::Bare).await?;
    let Some(version) = about.get("protocolVersion").and_then(Value::as_str) else {
        return Err(UpstreamError::Refused("the server named no protocol version".into()));
    };
    if !LEGACY_VERSIONS.contains(&version) {
        let version: String = version.chars().take(40).collect();
        return Err(UpstreamError::Refused(format!("the server speaks version {version:?}, which is not known here")));
    }
    let era = Era::Legacy(version.to_owned());
    connection.link.agreed(&era);
    connection.notify("notifications/initialized", None).await?;
    Ok((era, about))
}

fn request(method: &str, params: Value) -> Outgoing {
    Outgoing {
        method: method.to_owned(),
        params: Some(params),
        cancel: CancellationToken::new(),
        // The whole of it has a deadline.
        deadline: Some(Duration::from_secs(3600)),
        related: None,
    }
}

fn versions(list: Option<&Value>) -> Vec<String> {
    let list = list.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    list.iter().filter_map(Value::as_str).filter(|version| version.len() <= 40).take(32).map(str::to_owned).collect()
}

fn named_versions(error: &RpcError) -> Vec<String> {
    versions(error.data.as_ref().and_then(|data| data.get("supported")))
}

fn mutual(supported: &[String]) -> Option<&'static str> {
    MODERN_VERSIONS.iter().copied().find(|version| supported.iter().any(|it| it == version))
}

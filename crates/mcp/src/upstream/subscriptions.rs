//! The subscription to list changes of a modern server, opened for the lists that the server can watch.
//!
//! Its notifications have the same names as in the legacy era and are passed on unchanged.

use std::sync::Weak;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::OutgoingCall;
use super::connection::{Connection, RequestEra};
use super::error::{RpcError, UpstreamError};

const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);
/// Lifetime after which a stream counts as stable, so that the delay starts anew.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// The lists, with the names of their capabilities and of their members in the request.
const LISTS: [(&str, &str); 3] =
    [("tools", "toolsListChanged"), ("prompts", "promptsListChanged"), ("resources", "resourcesListChanged")];

/// Returns the lists whose changes the server reports.
pub(super) fn watchable_lists(about: &Value) -> Vec<(&'static str, &'static str)> {
    let changes = |list: &str| about["capabilities"][list]["listChanged"] == Value::Bool(true);
    LISTS.into_iter().filter(|(list, _)| changes(list)).collect()
}

/// Keeps the stream open. After a gap every list counts as changed, because a notification may have been missed.
pub(super) async fn run(connection: Weak<Connection>, lists: Vec<(&'static str, &'static str)>) {
    let requested: Map<_, _> = lists.iter().map(|(_, key)| ((*key).to_owned(), Value::Bool(true))).collect();
    let params = Value::Object(Map::from_iter([("notifications".to_owned(), Value::Object(requested))]));
    let mut delay = FIRST_DELAY;
    loop {
        let Some(live) = connection.upgrade() else { return };
        let started = Instant::now();
        let listen = OutgoingCall {
            method: "subscriptions/listen".to_owned(),
            params: Some(params.clone()),
            cancel: CancellationToken::new(),
            idle_timeout: Some(Duration::MAX),
            related: None,
        };
        let outcome = live.call(listen, RequestEra::Negotiated).await;
        drop(live);
        match outcome {
            Err(UpstreamError::Rpc(error)) if error.code == RpcError::METHOD_NOT_FOUND => return,
            Err(UpstreamError::HttpStatus { .. } | UpstreamError::Refused(_)) => return,
            _ => {}
        }
        if started.elapsed() >= STABLE_AFTER {
            delay = FIRST_DELAY;
        }
        tokio::time::sleep(delay).await;
        delay = (delay * 2).min(MAX_DELAY);
        let Some(live) = connection.upgrade() else { return };
        for (list, _) in &lists {
            live.emit_notification(format!("notifications/{list}/list_changed"));
        }
    }
}

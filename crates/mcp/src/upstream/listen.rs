//! The stream of changes of a modern server: one is kept open for the lists that it says can change.
//!
//! What comes on it is handed on under the names that the legacy era has for it, which are the same.

use std::sync::Weak;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::Outgoing;
use super::error::{RpcError, UpstreamError};
use super::rpc::{Connection, Style};

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A stream that lasted so long was a good one.
const GOOD: Duration = Duration::from_secs(60);

/// The lists that change, as capabilities and as the names in the request.
const LISTS: [(&str, &str); 3] =
    [("tools", "toolsListChanged"), ("prompts", "promptsListChanged"), ("resources", "resourcesListChanged")];

/// The lists of which the server says that it tells when they change.
pub(super) fn changing(about: &Value) -> Vec<(&'static str, &'static str)> {
    let changes = |list: &str| about["capabilities"][list]["listChanged"] == Value::Bool(true);
    LISTS.into_iter().filter(|(list, _)| changes(list)).collect()
}

/// Keeps the stream open. After a gap every list counts as changed.
pub(super) async fn keep(connection: Weak<Connection>, lists: Vec<(&'static str, &'static str)>) {
    let wanted: Map<_, _> = lists.iter().map(|(_, key)| ((*key).to_owned(), Value::Bool(true))).collect();
    let params = Value::Object(Map::from_iter([("notifications".to_owned(), Value::Object(wanted))]));
    let mut pause = FIRST_PAUSE;
    loop {
        let Some(live) = connection.upgrade() else { return };
        let began = Instant::now();
        let listen = Outgoing {
            method: "subscriptions/listen".to_owned(),
            params: Some(params.clone()),
            cancel: CancellationToken::new(),
            deadline: Some(Duration::MAX),
            related: None,
        };
        let ended = live.call(listen, Style::Agreed).await;
        drop(live);
        match ended {
            Err(UpstreamError::Rpc(error)) if error.code == RpcError::METHOD_NOT_FOUND => return,
            Err(UpstreamError::Denied { .. } | UpstreamError::Refused(_)) => return,
            _ => {}
        }
        if began.elapsed() >= GOOD {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
        let Some(live) = connection.upgrade() else { return };
        for (list, _) in &lists {
            live.tell(format!("notifications/{list}/list_changed"));
        }
    }
}

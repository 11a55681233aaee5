//! Reads all pages of a list, within limits.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::OutgoingCall;
use super::connection::{Connection, RequestEra};
use super::error::UpstreamError;
use super::transport::Transport;

const MAX_PAGES: usize = 1000;
const MAX_ITEMS: usize = 10_000;
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Limits all pages together.
const LIST_TIMEOUT: Duration = Duration::from_secs(60);

pub(super) async fn list(connection: &Arc<Connection>, method: &str, key: &str) -> Result<Vec<Value>, UpstreamError> {
    tokio::time::timeout(LIST_TIMEOUT, read_pages(connection, method, key))
        .await
        .unwrap_or(Err(UpstreamError::TimedOut))
}

async fn read_pages(connection: &Arc<Connection>, method: &str, key: &str) -> Result<Vec<Value>, UpstreamError> {
    let reject = |reason: &str| Err(UpstreamError::Refused(format!("{method} {reason}")));
    let mut items = Vec::new();
    let mut bytes = 0;
    let mut seen = HashSet::new();
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let params = cursor.map(|cursor| Value::Object(Map::from_iter([("cursor".to_owned(), cursor.into())])));
        let page = OutgoingCall {
            method: method.to_owned(),
            params,
            cancel: CancellationToken::new(),
            idle_timeout: Some(LIST_TIMEOUT),
            related: None,
        };
        let (mut page, size) = connection.call(page, RequestEra::Negotiated).await?;
        bytes += size;
        let Some(Value::Array(page_items)) = page.get_mut(key).map(Value::take) else {
            return reject(&format!("returned no list of {key}"));
        };
        items.extend(page_items);
        if items.len() > MAX_ITEMS {
            return reject(&format!("returned more than {MAX_ITEMS} {key}"));
        }
        if bytes > MAX_BYTES {
            return Err(UpstreamError::TooLarge);
        }
        cursor = page.get("nextCursor").and_then(Value::as_str).filter(|next| !next.is_empty()).map(str::to_owned);
        match &cursor {
            None => {
                if method == "tools/list"
                    && let Transport::Http(http) = &connection.transport
                {
                    http.set_header_parameters(&items);
                }
                return Ok(items);
            }
            Some(next) if !seen.insert(next.clone()) => return reject("returned the same cursor twice"),
            Some(_) => {}
        }
    }
    reject(&format!("returned more than {MAX_PAGES} pages"))
}

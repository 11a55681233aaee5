//! Lists over all their pages, within bounds.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use super::Outgoing;
use super::error::UpstreamError;
use super::link::Link;
use super::rpc::{Connection, Style};

const MAX_PAGES: usize = 1000;
const MAX_ITEMS: usize = 10_000;
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// For all pages together.
const DEADLINE: Duration = Duration::from_secs(60);

pub(super) async fn list(connection: &Arc<Connection>, method: &str, key: &str) -> Result<Vec<Value>, UpstreamError> {
    tokio::time::timeout(DEADLINE, pages(connection, method, key)).await.unwrap_or(Err(UpstreamError::TimedOut))
}

async fn pages(connection: &Arc<Connection>, method: &str, key: &str) -> Result<Vec<Value>, UpstreamError> {
    let refuse = |why: &str| Err(UpstreamError::Refused(format!("{method} {why}")));
    let mut items = Vec::new();
    let mut bytes = 0;
    let mut seen = HashSet::new();
    let mut cursor: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let params = cursor.map(|cursor| Value::Object(Map::from_iter([("cursor".to_owned(), cursor.into())])));
        let page = Outgoing {
            method: method.to_owned(),
            params,
            cancel: CancellationToken::new(),
            deadline: Some(DEADLINE),
            related: None,
        };
        let (mut page, size) = connection.call(page, Style::Agreed).await?;
        bytes += size;
        let Some(Value::Array(found)) = page.get_mut(key).map(Value::take) else {
            return refuse(&format!("gave no list of {key}"));
        };
        items.extend(found);
        if items.len() > MAX_ITEMS {
            return refuse(&format!("gave more than {MAX_ITEMS} {key}"));
        }
        if bytes > MAX_BYTES {
            return Err(UpstreamError::TooLarge);
        }
        cursor = page.get("nextCursor").and_then(Value::as_str).filter(|next| !next.is_empty()).map(str::to_owned);
        match &cursor {
            None => {
                if method == "tools/list"
                    && let Link::Http(http) = &connection.link
                {
                    http.learn(&items);
                }
                return Ok(items);
            }
            Some(next) if !seen.insert(next.clone()) => return refuse("goes round in circles: a cursor came twice"),
            Some(_) => {}
        }
    }
    refuse(&format!("has more than {MAX_PAGES} pages"))
}

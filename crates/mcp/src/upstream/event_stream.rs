//! Reads a response that is an event stream, chunk by chunk.

use std::sync::Arc;

use reqwest::Response;

use super::connection::Connection;
use super::event_parser::{Event, EventParser};
use super::large_message_slots::RECHECK_INTERVAL;

/// Reads the next chunk and handles the messages that it completes. Returns false at the end of the stream. `origin` is
/// the call that the stream belongs to.
pub(super) async fn read_chunk(
    connection: &Arc<Connection>,
    response: &mut Response,
    parser: &mut EventParser,
    origin: Option<u64>,
) -> Result<bool, reqwest::Error> {
    let mut emit = |event: Event<'_>| match event {
        Event::Message { name: "message", data } => {
            connection.receive(&data, origin);
        }
        Event::Message { .. } => {}
        Event::TooLarge { head, error } => connection.receive_oversized(head, &[], origin, error),
    };
    let chunk = loop {
        if !parser.limit.is_large() {
            break response.chunk().await?;
        }
        if let Ok(chunk) = tokio::time::timeout(RECHECK_INTERVAL, response.chunk()).await {
            break chunk?;
        }
        let buffered = parser.buffered_bytes();
        connection.update_limit(&mut parser.limit, buffered, origin).await;
        parser.check_limit(0, &mut emit);
    };
    let Some(chunk) = chunk else { return Ok(false) };
    connection.record_activity();
    let buffered = parser.buffered_bytes();
    connection.update_limit(&mut parser.limit, buffered + chunk.len(), origin).await;
    parser.feed(&chunk, emit);
    Ok(true)
}

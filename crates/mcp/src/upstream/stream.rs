//! A response that is a stream of events, read piece by piece.

use std::sync::Arc;

use reqwest::Response;

use super::events::{Event, Parser};
use super::large_message_slots::GLANCE;
use super::rpc::Connection;

/// Reads the next piece and hands on the messages that it ends; false at the end of the stream. `origin` is the call
/// whose stream it is.
pub(super) async fn pump(
    connection: &Arc<Connection>,
    response: &mut Response,
    parser: &mut Parser,
    origin: Option<u64>,
) -> Result<bool, reqwest::Error> {
    let mut tell = |event: Event<'_>| match event {
        Event::Message { name: "message", data } => {
            connection.receive(&data, origin);
        }
        Event::Message { .. } => {}
        Event::TooLarge { head, why } => connection.receive_oversized(head, &[], origin, why),
    };
    let chunk = loop {
        if !parser.room.is_large() {
            break response.chunk().await?;
        }
        if let Ok(chunk) = tokio::time::timeout(GLANCE, response.chunk()).await {
            break chunk?;
        }
        let held = parser.held();
        connection.make_room(&mut parser.room, held, origin).await;
        parser.fit(0, &mut tell);
    };
    let Some(chunk) = chunk else { return Ok(false) };
    connection.heard();
    let held = parser.held();
    connection.make_room(&mut parser.room, held + chunk.len(), origin).await;
    parser.feed(&chunk, tell);
    Ok(true)
}

//! The stream of a legacy server for messages that belong to no call.

use std::sync::{Arc, Weak};
use std::time::Duration;

use reqwest::header::HeaderValue;
use tokio::time::Instant;

use super::Http;
use crate::upstream::connection::Connection;
use crate::upstream::event_parser::EventParser;
use crate::upstream::event_stream;
use crate::upstream::remote;
use crate::upstream::transport::Transport;

const FIRST_DELAY: Duration = Duration::from_secs(1);
const MAX_DELAY: Duration = Duration::from_secs(60);

/// Keeps the stream open, one for each session. A server without such a stream is not asked again in that session.
pub(crate) async fn read_notifications(connection: Weak<Connection>) {
    let Some(first) = connection.upgrade() else { return };
    let Transport::Http(http) = &first.transport else { return };
    let mut opened_sessions = http.opened_sessions.subscribe();
    drop(first);
    loop {
        tokio::select! {
            () = read_session(&connection) => {
                // The server has no such stream in this session.
                if opened_sessions.changed().await.is_err() {
                    return;
                }
            }
            changed = opened_sessions.changed() => if changed.is_err() {
                return;
            }
        }
    }
}

async fn read_session(connection: &Weak<Connection>) {
    let mut parser = EventParser::default();
    let mut delay = FIRST_DELAY;
    loop {
        let started = Instant::now();
        {
            let Some(live) = connection.upgrade() else { return };
            let Transport::Http(http) = &live.transport else { return };
            if !read_stream(&live, http, &mut parser).await {
                return;
            }
        }
        parser.reset();
        if started.elapsed() > MAX_DELAY {
            delay = FIRST_DELAY;
        }
        tokio::time::sleep(parser.retry().map_or(delay, |retry| retry.clamp(FIRST_DELAY, MAX_DELAY))).await;
        delay = (delay * 2).min(MAX_DELAY);
    }
}

/// Reads one stream to its end. Returns whether a retry can succeed.
async fn read_stream(connection: &Arc<Connection>, http: &Http, parser: &mut EventParser) -> bool {
    let last = parser.last_id().and_then(|last| HeaderValue::from_str(last).ok());
    let Ok(mut response) = http.open_event_stream(last).await else { return true };
    if !response.status().is_success() {
        return response.status().is_server_error();
    }
    if !remote::has_content_type(&response, "text/event-stream") {
        return false;
    }
    while let Ok(true) = event_stream::read_chunk(connection, &mut response, parser, None).await {}
    true
}

//! The stream of what a legacy server says outside of any call.

use std::sync::{Arc, Weak};
use std::time::Duration;

use reqwest::header::HeaderValue;
use tokio::time::Instant;

use super::Http;
use crate::upstream::events::Parser;
use crate::upstream::link::Link;
use crate::upstream::remote;
use crate::upstream::rpc::Connection;
use crate::upstream::stream;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Keeps the stream open, one for each session. A server that has none says so once.
pub(crate) async fn hear(connection: Weak<Connection>) {
    let Some(first) = connection.upgrade() else { return };
    let Link::Http(http) = &first.link else { return };
    let mut generation = http.generation.subscribe();
    drop(first);
    loop {
        tokio::select! {
            () = hear_session(&connection) => {
                // There is nothing to hear in this session.
                if generation.changed().await.is_err() {
                    return;
                }
            }
            changed = generation.changed() => if changed.is_err() {
                return;
            }
        }
    }
}

async fn hear_session(connection: &Weak<Connection>) {
    let mut parser = Parser::default();
    let mut pause = FIRST_PAUSE;
    loop {
        let began = Instant::now();
        {
            let Some(live) = connection.upgrade() else { return };
            let Link::Http(http) = &live.link else { return };
            if !hear_once(&live, http, &mut parser).await {
                return;
            }
        }
        parser.restart();
        if began.elapsed() > LONGEST_PAUSE {
            pause = FIRST_PAUSE;
        }
        tokio::time::sleep(parser.retry().map_or(pause, |retry| retry.clamp(FIRST_PAUSE, LONGEST_PAUSE))).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Reads one stream to its end. Says whether another try makes sense.
async fn hear_once(connection: &Arc<Connection>, http: &Http, parser: &mut Parser) -> bool {
    let last = parser.last_id().and_then(|last| HeaderValue::from_str(last).ok());
    let Ok(mut response) = http.events(last).await else { return true };
    if !response.status().is_success() {
        return response.status().is_server_error();
    }
    if !remote::is_type(&response, "text/event-stream") {
        return false;
    }
    while let Ok(true) = stream::pump(connection, &mut response, parser, None).await {}
    true
}

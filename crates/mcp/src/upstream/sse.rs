//! HTTP with SSE, the transport of 2024-11-05: one event stream from the server, and a POST for every message to it.
//!
//! The server sends the URL for the POSTs on the stream. It must have the same origin, since the configured headers are
//! sent there too.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Response, Url};

use super::connection::Connection;
use super::error::{EndReason, UpstreamError};
use super::event_parser::{Event, EventParser};
use super::event_stream;
use super::received::ReceivedMessage;
use super::remote::{self, RemoteServer};
use super::transport::OutgoingMessage;

/// Maximum number of bytes before the URL.
const MAX_PREAMBLE_BYTES: usize = 64 * 1024;

pub(super) struct Sse {
    server: RemoteServer,
    endpoint: Url,
}

/// The stream, with the parts that were read during opening.
pub(super) struct OpenedStream {
    response: Response,
    parser: EventParser,
    /// Messages that arrived together with the URL.
    early: Vec<ReceivedMessage<'static>>,
}

impl Sse {
    /// Opens the stream and waits for the URL.
    pub(super) async fn open(server: RemoteServer) -> Result<(Self, OpenedStream), UpstreamError> {
        tokio::time::timeout(server.timeout, Self::open_stream(&server))
            .await
            .unwrap_or(Err(UpstreamError::TimedOut))
            .map(|(endpoint, stream)| (Self { server, endpoint }, stream))
    }

    async fn open_stream(server: &RemoteServer) -> Result<(Url, OpenedStream), UpstreamError> {
        let request = server.client.get(server.url.clone()).headers(server.headers.clone());
        let request = request.header(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let mut response = request.send().await.map_err(remote::exchange_error)?;
        if !response.status().is_success() {
            return Err(remote::status_error(response.status()));
        }
        if !remote::has_content_type(&response, "text/event-stream") {
            return Err(UpstreamError::Refused("the response of the server is not an event stream".into()));
        }
        let mut parser = EventParser::default();
        let (mut endpoint, mut early, mut bytes) = (None, Vec::new(), 0);
        while let Some(chunk) = response.chunk().await.map_err(remote::exchange_error)? {
            bytes += chunk.len();
            parser.feed(&chunk, |event| match event {
                Event::Message { name: "endpoint", data } if endpoint.is_none() => {
                    endpoint = Some(String::from_utf8_lossy(data.bytes()).into_owned());
                }
                Event::Message { name: "message", data } => early.push(data),
                _ => {}
            });
            if let Some(endpoint) = endpoint {
                let endpoint = same_origin(&server.url, endpoint.trim())?;
                return Ok((endpoint, OpenedStream { response, parser, early }));
            }
            if bytes > MAX_PREAMBLE_BYTES {
                break;
            }
        }
        Err(UpstreamError::Refused("the server sent no URL for messages".into()))
    }

    pub(super) fn read_timeout(&self) -> Duration {
        self.server.read_timeout
    }

    /// Posts a message. The response arrives on the stream.
    pub(super) async fn send(&self, connection: &Connection, message: OutgoingMessage) -> Result<(), UpstreamError> {
        let request = self.server.client.post(self.endpoint.clone()).headers(self.server.headers.clone());
        let request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let request = request.timeout(self.server.timeout).body(message.body);
        let response = request.send().await.map_err(remote::exchange_error)?;
        connection.record_activity();
        if response.status().is_success() { Ok(()) } else { Err(remote::status_error(response.status())) }
    }
}

fn same_origin(base: &Url, endpoint: &str) -> Result<Url, UpstreamError> {
    let endpoint = base.join(endpoint).ok();
    endpoint
        .filter(|endpoint| endpoint.origin() == base.origin() && endpoint.origin().is_tuple())
        .ok_or_else(|| UpstreamError::Refused("the URL for messages has another origin than the server".into()))
}

/// Reads messages until the stream or the connection ends.
pub(super) async fn read(connection: Arc<Connection>, opened: OpenedStream) {
    let OpenedStream { mut response, mut parser, early } = opened;
    for message in early {
        connection.receive(&message, None);
    }
    let reason = loop {
        match event_stream::read_chunk(&connection, &mut response, &mut parser, None).await {
            Ok(true) => {}
            Ok(false) => break "the server ended the event stream".to_owned(),
            Err(error) => break remote::describe(error),
        }
    };
    connection.close(EndReason::Lost(reason));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_for_messages_must_have_same_origin() {
        let base = Url::parse("https://a.example/sse?k=1").unwrap();
        assert_eq!(same_origin(&base, "/m?s=2").unwrap().as_str(), "https://a.example/m?s=2");
        assert_eq!(same_origin(&base, "https://a.example:443/m").unwrap().as_str(), "https://a.example/m");
        for elsewhere in
            ["http://a.example/m", "https://b.example/m", "//b.example/m", "https://a.example:8443/", "data:x"]
        {
            assert!(same_origin(&base, elsewhere).is_err(), "{elsewhere}");
        }
    }
}

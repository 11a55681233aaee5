//! The transport of 2024-11-05: one stream of events from the server, and a POST for every message to it.
//!
//! The server names the address for the POSTs on the stream. It has to be of the same origin: the headers of
//! the entry go there too.

use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{ACCEPT, CONTENT_TYPE, HeaderValue};
use reqwest::{Response, Url};

use super::error::{EndReason, UpstreamError};
use super::events::{Event, Parser};
use super::link::Parcel;
use super::raw::Received;
use super::remote::{self, Place};
use super::rpc::Connection;
use super::stream;

/// So much may come before the address.
const MAX_PREAMBLE_BYTES: usize = 64 * 1024;

pub(super) struct Sse {
    place: Place,
    endpoint: Url,
}

/// The stream, and what was read of it.
pub(super) struct Stream {
    response: Response,
    parser: Parser,
    /// Messages that came with the address.
    early: Vec<Received<'static>>,
}

impl Sse {
    /// Opens the stream and waits for the address.
    pub(super) async fn open(place: Place) -> Result<(Self, Stream), UpstreamError> {
        tokio::time::timeout(place.timeout, Self::open_stream(&place))
            .await
            .unwrap_or(Err(UpstreamError::TimedOut))
            .map(|(endpoint, stream)| (Self { place, endpoint }, stream))
    }

    async fn open_stream(place: &Place) -> Result<(Url, Stream), UpstreamError> {
        let request = place.client.get(place.url.clone()).headers(place.headers.clone());
        let request = request.header(ACCEPT, HeaderValue::from_static("text/event-stream"));
        let mut response = request.send().await.map_err(remote::broken)?;
        if !response.status().is_success() {
            return Err(remote::denied(response.status()));
        }
        if !remote::is_type(&response, "text/event-stream") {
            return Err(UpstreamError::Refused("the server gave no stream of events".into()));
        }
        let mut parser = Parser::default();
        let (mut endpoint, mut early, mut bytes) = (None, Vec::new(), 0);
        while let Some(chunk) = response.chunk().await.map_err(remote::broken)? {
            bytes += chunk.len();
            parser.feed(&chunk, |event| match event {
                Event::Message { name: "endpoint", data } if endpoint.is_none() => {
                    endpoint = Some(String::from_utf8_lossy(data.bytes()).into_owned());
                }
                Event::Message { name: "message", data } => early.push(data),
                _ => {}
            });
            if let Some(endpoint) = endpoint {
                let endpoint = same_origin(&place.url, endpoint.trim())?;
                return Ok((endpoint, Stream { response, parser, early }));
            }
            if bytes > MAX_PREAMBLE_BYTES {
                break;
            }
        }
        Err(UpstreamError::Refused("the server named no address for messages".into()))
    }

    pub(super) fn read_timeout(&self) -> Duration {
        self.place.read_timeout
    }

    /// Posts a message; an answer comes on the stream.
    pub(super) async fn deliver(&self, connection: &Connection, parcel: Parcel) -> Result<(), UpstreamError> {
        let request = self.place.client.post(self.endpoint.clone()).headers(self.place.headers.clone());
        let request = request.header(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let request = request.timeout(self.place.timeout).body(parcel.body);
        let response = request.send().await.map_err(remote::broken)?;
        connection.heard();
        if response.status().is_success() { Ok(()) } else { Err(remote::denied(response.status())) }
    }
}

fn same_origin(base: &Url, endpoint: &str) -> Result<Url, UpstreamError> {
    let endpoint = base.join(endpoint).ok();
    endpoint
        .filter(|endpoint| endpoint.origin() == base.origin() && endpoint.origin().is_tuple())
        .ok_or_else(|| UpstreamError::Refused("the server wants messages at another origin".into()))
}

/// Reads what the server says, until it ends or the connection does.
pub(super) async fn read(connection: Arc<Connection>, opened: Stream) {
    let Stream { mut response, mut parser, early } = opened;
    for message in early {
        connection.receive(&message, None);
    }
    let why = loop {
        match stream::pump(&connection, &mut response, &mut parser, None).await {
            Ok(true) => {}
            Ok(false) => break "the server ended the stream of events".to_owned(),
            Err(error) => break remote::describe(error),
        }
    };
    connection.close(EndReason::Lost(why));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_to_no_other_origin() {
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

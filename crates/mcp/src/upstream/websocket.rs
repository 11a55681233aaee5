//! The WebSocket transport: one message per WebSocket message, subprotocol `mcp`.
//!
//! The library returns a message only when all of it is in memory, so the received bytes are limited below it (`meter`).
//! A message cannot be skipped: one over the limit ends the connection.

mod meter;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use self::meter::{Meter, Metered};
use super::connection::Connection;
use super::error::{EndReason, UpstreamError};
use super::large_message_slots::{MAX_RAW_BYTES, MAX_SMALL_BYTES, RECHECK_INTERVAL, SizeLimit};
use super::outbox::STALL_TIMEOUT;
use super::received::ReceivedMessage;
use super::remote::{self, RemoteTarget};

/// Maximum number of messages that wait to be written.
const MAX_QUEUED_MESSAGES: usize = 32;
/// Number of consecutive invalid messages that ends the connection.
const MAX_MALFORMED_IN_A_ROW: usize = 100;
/// Size of the header of a control frame from the server.
const CONTROL_HEADER_BYTES: usize = 2;
/// Framing and TLS add less than the size of a message divided by this.
const OVERHEAD_DIVISOR: usize = 8;

pub(super) struct WebSocket {
    queue: mpsc::Sender<Vec<u8>>,
    pub(super) read_timeout: Duration,
}

pub(super) struct OpenedSocket {
    socket: WebSocketStream<MaybeTlsStream<Metered<TcpStream>>>,
    meter: Arc<Meter>,
    queued: mpsc::Receiver<Vec<u8>>,
}

impl WebSocket {
    pub(super) async fn open(target: &RemoteTarget) -> Result<(Self, OpenedSocket), UpstreamError> {
        let url = remote::parse_url(&target.url, &["ws", "wss"])?;
        let rejected = |error: &Error| UpstreamError::Refused(format!("the WebSocket cannot be opened: {error}"));
        let mut request = url.as_str().into_client_request().map_err(|error| rejected(&error))?;
        request.headers_mut().extend(remote::parse_headers(target)?);
        request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("mcp"));
        let config =
            WebSocketConfig::default().max_message_size(Some(MAX_RAW_BYTES)).max_frame_size(Some(MAX_RAW_BYTES));
        let meter = Meter::new(MAX_SMALL_BYTES);
        let open = async {
            let stream = connect(&url).await.map_err(Error::Io)?;
            let stream = Metered::new(stream, Arc::clone(&meter));
            super::tls::select_provider();
            tokio_tungstenite::client_async_tls_with_config(request, stream, Some(config), None).await
        };
        let opened = tokio::time::timeout(target.timeout, open).await.map_err(|_| UpstreamError::TimedOut)?;
        let socket = match opened {
            Ok((socket, _)) => socket,
            Err(Error::Http(response)) => return Err(remote::status_error(response.status())),
            Err(Error::Io(error)) => return Err(UpstreamError::closed(false, error.to_string())),
            Err(error) => return Err(rejected(&error)),
        };
        let (queue, queued) = mpsc::channel(MAX_QUEUED_MESSAGES);
        Ok((Self { queue, read_timeout: target.read_timeout }, OpenedSocket { socket, meter, queued }))
    }

    pub(super) async fn send(&self, message: Vec<u8>) -> Result<(), UpstreamError> {
        match self.queue.send_timeout(message, STALL_TIMEOUT).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                Err(UpstreamError::closed(false, "the server does not read its messages"))
            }
            Err(mpsc::error::SendTimeoutError::Closed(_)) => {
                Err(UpstreamError::closed(false, "the connection is closed"))
            }
        }
    }

    pub(super) fn try_send(&self, message: Vec<u8>) {
        let _ = self.queue.try_send(message);
    }
}

/// Sends and receives messages until the server closes the socket or the connection ends.
pub(super) async fn run(connection: Arc<Connection>, opened: OpenedSocket) {
    let OpenedSocket { socket, meter, mut queued } = opened;
    let (mut sink, mut stream) = socket.split();
    let write = async {
        while let Some(message) = queued.recv().await {
            let Ok(text) = String::from_utf8(message) else { continue };
            match tokio::time::timeout(STALL_TIMEOUT, sink.send(Message::text(text))).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return format!("writing to the server failed: {error}"),
                Err(_) => return "the server does not read its messages".to_owned(),
            }
        }
        "the connection is closed".to_owned()
    };
    let read = async {
        let mut malformed = 0;
        let mut limit = SizeLimit::default();
        loop {
            let next = tokio::select! {
                biased;
                next = stream.next() => next,
                () = meter.wait_until_full() => match allow_more(&connection, &meter, &mut limit).await {
                    Ok(()) => continue,
                    Err(reason) => return reason,
                },
                () = tokio::time::sleep(RECHECK_INTERVAL), if limit.is_large() => match allow_more(&connection, &meter, &mut limit).await {
                    Ok(()) => continue,
                    Err(reason) => return reason,
                },
            };
            let data = match next {
                Some(Ok(Message::Text(text))) => text.into(),
                Some(Ok(Message::Binary(data))) => data,
                Some(Ok(control)) => {
                    // A control frame can arrive between the frames of a message.
                    meter.subtract(control.len() + CONTROL_HEADER_BYTES);
                    connection.record_activity();
                    continue;
                }
                Some(Err(Error::Capacity(_))) => {
                    connection.receive_oversized(&[], &[], None, UpstreamError::TooLarge);
                    return too_large(MAX_RAW_BYTES);
                }
                Some(Err(error)) => return format!("reading from the server failed: {error}"),
                None => return "the server closed the connection".to_owned(),
            };
            meter.subtract(usize::MAX);
            meter.allow(MAX_SMALL_BYTES);
            let is_message = connection.receive(&ReceivedMessage::owned(data, limit.take_slot()), None);
            malformed = if is_message { 0 } else { malformed + 1 };
            if malformed >= MAX_MALFORMED_IN_A_ROW {
                return format!("the server sent {malformed} consecutive messages that are not JSON-RPC");
            }
        }
    };
    let reason = tokio::select! { reason = write => reason, reason = read => reason };
    connection.close(EndReason::Lost(reason));
}

/// Allows the next part of a message if it is within its limit. In steps, since the limit can change meanwhile.
async fn allow_more(connection: &Connection, meter: &Meter, limit: &mut SizeLimit) -> Result<(), String> {
    connection.record_activity();
    let received = meter.received();
    connection.update_limit(limit, received, None).await;
    let max_bytes = limit.max_bytes();
    if received > max_bytes + max_bytes / OVERHEAD_DIVISOR {
        connection.receive_oversized(&[], &[], None, limit.error());
        return Err(too_large(max_bytes));
    }
    meter.allow(received + MAX_SMALL_BYTES);
    Ok(())
}

fn too_large(limit: usize) -> String {
    format!("the server sent a message larger than {} MiB", limit >> 20)
}

async fn connect(url: &reqwest::Url) -> io::Result<TcpStream> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, url.port_or_known_default().unwrap_or(443))).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

//! WebSocket: a message a frame, subprotocol `mcp`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use ringfence_runtime::servers::RemoteSettings;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use super::error::{EndReason, UpstreamError};
use super::outbox::STALL;
use super::remote;
use super::rpc::{Connection, MAX_MESSAGE_BYTES};

/// So many messages wait to be written.
const MAX_QUEUED: usize = 32;
const MAX_MALFORMED_IN_A_ROW: usize = 100;

pub(super) struct Socket {
    queue: mpsc::Sender<Vec<u8>>,
    pub(super) read_timeout: Duration,
}

pub(super) struct Halves {
    socket: WebSocketStream<MaybeTlsStream<TcpStream>>,
    queued: mpsc::Receiver<Vec<u8>>,
}

impl Socket {
    pub(super) async fn open(settings: &RemoteSettings) -> Result<(Self, Halves), UpstreamError> {
        let url = remote::address(&settings.url, &["ws", "wss"])?;
        let refuse = |error: &Error| UpstreamError::Refused(format!("the websocket did not open: {error}"));
        let mut request = url.as_str().into_client_request().map_err(|error| refuse(&error))?;
        request.headers_mut().extend(remote::headers(settings)?);
        request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("mcp"));
        let config = WebSocketConfig::default()
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        let open = tokio_tungstenite::connect_async_with_config(request, Some(config), true);
        let opened = tokio::time::timeout(settings.timeout, open).await.map_err(|_| UpstreamError::TimedOut)?;
        let socket = match opened {
            Ok((socket, _)) => socket,
            Err(Error::Http(response)) => return Err(remote::denied(response.status())),
            Err(Error::Io(error)) => return Err(UpstreamError::lost(false, error.to_string())),
            Err(error) => return Err(refuse(&error)),
        };
        let (queue, queued) = mpsc::channel(MAX_QUEUED);
        Ok((Self { queue, read_timeout: settings.sse_read_timeout }, Halves { socket, queued }))
    }

    pub(super) async fn send(&self, message: Vec<u8>) -> Result<(), UpstreamError> {
        match self.queue.send_timeout(message, STALL).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendTimeoutError::Timeout(_)) => {
                Err(UpstreamError::lost(false, "the server does not read its messages"))
            }
            Err(mpsc::error::SendTimeoutError::Closed(_)) => {
                Err(UpstreamError::lost(false, "the connection is closed"))
            }
        }
    }

    pub(super) fn try_send(&self, message: Vec<u8>) {
        let _ = self.queue.try_send(message);
    }
}

/// Moves messages in both directions, until the server ends or the connection does.
pub(super) async fn run(connection: Arc<Connection>, halves: Halves) {
    let Halves { socket, mut queued } = halves;
    let (mut sink, mut stream) = socket.split();
    let write = async {
        while let Some(message) = queued.recv().await {
            let Ok(text) = String::from_utf8(message) else { continue };
            match tokio::time::timeout(STALL, sink.send(Message::text(text))).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => return format!("writing to the server failed: {error}"),
                Err(_) => return "the server does not read its messages".to_owned(),
            }
        }
        "the connection is closed".to_owned()
    };
    let read = async {
        let mut malformed = 0;
        loop {
            let data = match stream.next().await {
                Some(Ok(Message::Text(text))) => text.into(),
                Some(Ok(Message::Binary(data))) => data,
                Some(Ok(_)) => {
                    connection.heard();
                    continue;
                }
                Some(Err(Error::Capacity(_))) => {
                    connection.receive_oversized(&[], &[], None);
                    return "the server sent a message larger than 16 MiB".to_owned();
                }
                Some(Err(error)) => return format!("reading from the server failed: {error}"),
                None => return "the server closed the connection".to_owned(),
            };
            malformed = if connection.receive(&data, None) { 0 } else { malformed + 1 };
            if malformed >= MAX_MALFORMED_IN_A_ROW {
                return format!("the server sent {malformed} messages in a row that are not JSON-RPC");
            }
        }
    };
    let why = tokio::select! { why = write => why, why = read => why };
    connection.close(EndReason::Lost(why));
}

//! WebSocket: a message a frame, subprotocol `mcp`.
//!
//! A message is in memory before it is seen here, so what comes is metered underneath (`meter`). Nothing can be skipped:
//! a message that there is no room for ends the connection.

mod meter;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use ringfence_entries::RemoteSettings;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{MaybeTlsStream, WebSocketStream};

use self::meter::{Meter, Metered};
use super::error::{EndReason, UpstreamError};
use super::large_message_slots::{GLANCE, MAX_RAW_BYTES, Room, SMALL_BYTES};
use super::outbox::STALL;
use super::raw::Received;
use super::remote;
use super::rpc::Connection;

/// So many messages wait to be written.
const MAX_QUEUED: usize = 32;
const MAX_MALFORMED_IN_A_ROW: usize = 100;
/// Of a message of the server's that is not data.
const CONTROL_HEADER_BYTES: usize = 2;
/// Frames, and TLS, make a message larger on its way: by less than the size divided by this.
const OVERHEAD_DIVISOR: usize = 8;

pub(super) struct Socket {
    queue: mpsc::Sender<Vec<u8>>,
    pub(super) read_timeout: Duration,
}

pub(super) struct Halves {
    socket: WebSocketStream<MaybeTlsStream<Metered<TcpStream>>>,
    meter: Arc<Meter>,
    queued: mpsc::Receiver<Vec<u8>>,
}

impl Socket {
    pub(super) async fn open(settings: &RemoteSettings) -> Result<(Self, Halves), UpstreamError> {
        let url = remote::address(&settings.url, &["ws", "wss"])?;
        let refuse = |error: &Error| UpstreamError::Refused(format!("the websocket did not open: {error}"));
        let mut request = url.as_str().into_client_request().map_err(|error| refuse(&error))?;
        request.headers_mut().extend(remote::headers(settings)?);
        request.headers_mut().insert("sec-websocket-protocol", HeaderValue::from_static("mcp"));
        let config =
            WebSocketConfig::default().max_message_size(Some(MAX_RAW_BYTES)).max_frame_size(Some(MAX_RAW_BYTES));
        let meter = Meter::new(SMALL_BYTES);
        let open = async {
            let stream = connect(&url).await.map_err(Error::Io)?;
            let stream = Metered::new(stream, Arc::clone(&meter));
            super::tls::select_provider();
            tokio_tungstenite::client_async_tls_with_config(request, stream, Some(config), None).await
        };
        let opened = tokio::time::timeout(settings.timeout, open).await.map_err(|_| UpstreamError::TimedOut)?;
        let socket = match opened {
            Ok((socket, _)) => socket,
            Err(Error::Http(response)) => return Err(remote::denied(response.status())),
            Err(Error::Io(error)) => return Err(UpstreamError::lost(false, error.to_string())),
            Err(error) => return Err(refuse(&error)),
        };
        let (queue, queued) = mpsc::channel(MAX_QUEUED);
        Ok((Self { queue, read_timeout: settings.sse_read_timeout }, Halves { socket, meter, queued }))
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
    let Halves { socket, meter, mut queued } = halves;
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
        let mut room = Room::default();
        loop {
            let next = tokio::select! {
                biased;
                next = stream.next() => next,
                () = meter.is_full() => match admit(&connection, &meter, &mut room).await {
                    Ok(()) => continue,
                    Err(why) => return why,
                },
                () = tokio::time::sleep(GLANCE), if room.is_large() => match admit(&connection, &meter, &mut room).await {
                    Ok(()) => continue,
                    Err(why) => return why,
                },
            };
            let data = match next {
                Some(Ok(Message::Text(text))) => text.into(),
                Some(Ok(Message::Binary(data))) => data,
                Some(Ok(other)) => {
                    // It may have come in the middle of a message.
                    meter.forget(other.len() + CONTROL_HEADER_BYTES);
                    connection.heard();
                    continue;
                }
                Some(Err(Error::Capacity(_))) => {
                    connection.receive_oversized(&[], &[], None, UpstreamError::TooLarge);
                    return too_large(MAX_RAW_BYTES);
                }
                Some(Err(error)) => return format!("reading from the server failed: {error}"),
                None => return "the server closed the connection".to_owned(),
            };
            meter.forget(usize::MAX);
            meter.allow(SMALL_BYTES);
            let is_message = connection.receive(&Received::own(data, room.leave()), None);
            malformed = if is_message { 0 } else { malformed + 1 };
            if malformed >= MAX_MALFORMED_IN_A_ROW {
                return format!("the server sent {malformed} messages in a row that are not JSON-RPC");
            }
        }
    };
    let why = tokio::select! { why = write => why, why = read => why };
    connection.close(EndReason::Lost(why));
}

/// Lets more of a message come, if it may: by another step, since whether it is waited for can change.
async fn admit(connection: &Connection, meter: &Meter, room: &mut Room) -> Result<(), String> {
    connection.heard();
    let received = meter.received();
    connection.make_room(room, received, None).await;
    let limit = room.limit();
    if received > limit + limit / OVERHEAD_DIVISOR {
        connection.receive_oversized(&[], &[], None, room.excess());
        return Err(too_large(limit));
    }
    meter.allow(received + SMALL_BYTES);
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

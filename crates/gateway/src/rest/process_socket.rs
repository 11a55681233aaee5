//! `…/processes/{pid}/ws`: the standard input and output of a process over a WebSocket, one line in each message.
//!
//! Messages are not queued: if the client does not read, the process blocks when its pipe is full, and the other way
//! round.
//! The process keeps running when the connection ends.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use ringfence_backend::{Input, LineTooLong, Lines, MAX_LINE_BYTES};
use ringfence_core::{Failure, Kind, Principal};
use ringfence_session::{Attachment, ProcessEnd};
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::path::NumberPath;
use super::{HandlerResult, Rest, RestError};

const PING_PERIOD: Duration = Duration::from_secs(30);

/// Maximum time without a message from the client. A live client responds to pings.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

const IDLE_REASON: &str = "the client did not respond to pings";

/// Maximum time for the client to accept a message.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum size of a message that is read. Larger than the limit of a line, so that the client learns why a line is
/// refused: closing a connection with unread bytes would reset it, and the reason would be lost.
const MAX_MESSAGE_BYTES: usize = 4 * MAX_LINE_BYTES;

/// Maximum time for the closing handshake.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum time between the end of a process's output and the end of the process.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) async fn open(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    NumberPath(id, pid): NumberPath<u32>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> HandlerResult {
    let upgrade = upgrade.map_err(|rejection| RestError {
        failure: Failure::new(Kind::Validation, rejection.body_text()).hint("connect with a WebSocket client"),
        status: Some(rejection.status()),
    })?;
    let attachment = rest.sessions()?.attach(&principal, &id, pid)?;
    let shutdown = rest.shutdown.clone();
    let upgrade = upgrade.protocols(["mcp"]).max_message_size(MAX_MESSAGE_BYTES).max_frame_size(MAX_MESSAGE_BYTES);
    Ok(upgrade.on_upgrade(move |socket| relay(socket, attachment, shutdown)))
}

/// Relays messages until either side ends, then closes the connection.
async fn relay(socket: WebSocket, mut attachment: Attachment, shutdown: CancellationToken) {
    let keep_alive = attachment.keep_alive();
    let (input, lines, ending) = attachment.parts();
    let (mut to_client, mut from_client) = socket.split();
    let close_frame = tokio::select! {
        close_frame = send_output(&mut to_client, lines, ending, &keep_alive) => close_frame,
        close_frame = receive_input(&mut from_client, input, &keep_alive) => close_frame,
        () = shutdown.cancelled() => close(close_code::AWAY, "the server is shutting down"),
    };
    // Before the closing handshake, so that the next client need not wait for it.
    drop(attachment);
    let closing = async {
        let _ = to_client.send(Message::Close(Some(close_frame))).await;
        while let Some(Ok(_)) = from_client.next().await {}
    };
    let _ = timeout(CLOSE_TIMEOUT, closing).await;
}

/// Sends the output of the process to the client until either ends.
async fn send_output(
    to_client: &mut SplitSink<WebSocket, Message>,
    lines: &mut Lines,
    mut ending: ProcessEnd,
    keep_alive: &(impl Fn() + Send + Sync),
) -> CloseFrame {
    let mut pings = interval(PING_PERIOD);
    loop {
        let message = tokio::select! {
            line = lines.next() => match line {
                Ok(Some(line)) => {
                    keep_alive();
                    String::from_utf8(line).map_or_else(
                        |error| Message::Binary(error.into_bytes().into()),
                        |text| Message::Text(text.into()),
                    )
                }
                Ok(None) => return close_at_end(&mut ending).await,
                Err(too_long) => return close(close_code::SIZE, &too_long.to_string()),
            },
            _ = pings.tick() => Message::Ping(Vec::new().into()),
        };
        match timeout(SEND_TIMEOUT, to_client.send(message)).await {
            Ok(Ok(())) => {}
            _ => return close(close_code::POLICY, "the client does not read its messages"),
        }
    }
}

async fn close_at_end(ending: &mut ProcessEnd) -> CloseFrame {
    match timeout(EXIT_TIMEOUT, ending.wait()).await {
        Ok(info) => match info.exit_code {
            Some(code) => close(close_code::NORMAL, &format!("the process exited with code {code}")),
            None => close(close_code::NORMAL, "the session ended"),
        },
        Err(_) => close(close_code::NORMAL, "the process closed its output"),
    }
}

/// Writes the messages of the client to the process until either ends.
async fn receive_input(
    from_client: &mut SplitStream<WebSocket>,
    input: &Input,
    keep_alive: &(impl Fn() + Send + Sync),
) -> CloseFrame {
    let mut buffered = None;
    loop {
        let message = match buffered.take() {
            Some(message) => Ok(Some(message)),
            None => timeout(IDLE_TIMEOUT, from_client.next()).await,
        };
        let text = match message {
            Ok(Some(Ok(Message::Text(text)))) => text,
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => continue,
            Ok(Some(Ok(Message::Binary(_)))) => {
                return close(close_code::UNSUPPORTED, "send text messages, one line in each");
            }
            Ok(Some(Ok(Message::Close(_))) | None) => return close(close_code::NORMAL, ""),
            Ok(Some(Err(_))) => return close(close_code::SIZE, "malformed or too large message"),
            Err(_) => return close(close_code::POLICY, IDLE_REASON),
        };
        let line = text.strip_suffix('\n').unwrap_or(&text);
        if line.len() > MAX_LINE_BYTES {
            return close(close_code::SIZE, &LineTooLong.to_string());
        }
        if line.contains('\n') {
            return close(close_code::POLICY, "a message must be one line");
        }
        keep_alive();
        let writing = input.write_line(line);
        let idle_timer = sleep(IDLE_TIMEOUT);
        tokio::pin!(writing, idle_timer);
        // While the process does not read, a disconnect of the client is still noticed, so that the next client can
        // attach. At most one further message is buffered; after that, a disconnect is only noticed by sending.
        let written = loop {
            tokio::select! {
                written = &mut writing => break written,
                message = from_client.next(), if buffered.is_none() => match message {
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => idle_timer.as_mut().reset(Instant::now() + IDLE_TIMEOUT),
                    Some(Ok(Message::Close(_))) | None => return close(close_code::NORMAL, ""),
                    Some(message) => buffered = Some(message),
                },
                // With a buffered message nothing is received, so the client may seem idle.
                () = &mut idle_timer, if buffered.is_none() => return close(close_code::POLICY, IDLE_REASON),
            }
        };
        if written.is_err() {
            // The process has ended or closed its input; `send_output` reports the end after the remaining output.
            return std::future::pending().await;
        }
    }
}

fn close(code: u16, reason: &str) -> CloseFrame {
    CloseFrame { code, reason: reason.into() }
}

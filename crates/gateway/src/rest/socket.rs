//! `…/processes/{pid}/ws`: a process's input and output over a WebSocket, a line a message.
//!
//! Nothing is kept in between: a client that does not read stops the process's output at its pipe, and a process that
//! does not read stops the client. The end of the connection leaves the process running.

use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade, close_code};
use futures_util::stream::{SplitSink, SplitStream};
use futures_util::{SinkExt as _, StreamExt as _};
use ringfence_backend::{Input, LineTooLong, Lines, MOST_LINE_BYTES};
use ringfence_core::{Failure, Kind, Principal};
use ringfence_session::{Attachment, Ending};
use tokio::time::{Instant, interval, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::path::OfNumber;
use super::{Answer, Refusal, Rest};

/// How often a silent client is asked for a sign of life, and how long it may be silent.
const PING_PERIOD: Duration = Duration::from_secs(30);
const SILENCE: Duration = Duration::from_secs(90);

const SILENT: &str = "the client gave no sign of life";

/// How long a message may take to be accepted by the client.
const SEND_PATIENCE: Duration = Duration::from_secs(60);

/// What is read of a message. More than a line may have, so that one that is too long can be refused in order: a
/// connection that is closed on unread bytes is reset, and the reason lost.
const MOST_MESSAGE_BYTES: usize = 4 * MOST_LINE_BYTES;

/// How long the client may take to take leave.
const FAREWELL: Duration = Duration::from_secs(5);

/// How long the end of a process may come after the end of its output.
const END_PATIENCE: Duration = Duration::from_secs(5);

pub(super) async fn open(
    State(rest): State<Rest>,
    Extension(principal): Extension<Principal>,
    OfNumber(id, pid): OfNumber<u32>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Answer {
    let upgrade = upgrade.map_err(|rejection| Refusal {
        failure: Failure::new(Kind::Validation, rejection.body_text()).hint("connect with a WebSocket client"),
        status: Some(rejection.status()),
    })?;
    let attachment = rest.sessions()?.attach(&principal, &id, pid)?;
    let shutdown = rest.shutdown.clone();
    let upgrade = upgrade.protocols(["mcp"]).max_message_size(MOST_MESSAGE_BYTES).max_frame_size(MOST_MESSAGE_BYTES);
    Ok(upgrade.on_upgrade(move |socket| converse(socket, attachment, shutdown)))
}

async fn converse(socket: WebSocket, mut attachment: Attachment, shutdown: CancellationToken) {
    let keep_alive = attachment.keep_alive();
    let (input, lines, ending) = attachment.parts();
    let (mut to_client, mut from_client) = socket.split();
    let farewell = tokio::select! {
        farewell = send(&mut to_client, lines, ending, &keep_alive) => farewell,
        farewell = receive(&mut from_client, input, &keep_alive) => farewell,
        () = shutdown.cancelled() => close(close_code::AWAY, "the server is ending"),
    };
    // The next client need not wait for this one to take leave.
    drop(attachment);
    let leave = async {
        let _ = to_client.send(Message::Close(Some(farewell))).await;
        while let Some(Ok(_)) = from_client.next().await {}
    };
    let _ = timeout(FAREWELL, leave).await;
}

/// From the process to the client, until either ends.
async fn send(
    to_client: &mut SplitSink<WebSocket, Message>,
    lines: &mut Lines,
    mut ending: Ending,
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
                Ok(None) => return tell_end(&mut ending).await,
                Err(too_long) => return close(close_code::SIZE, &too_long.to_string()),
            },
            _ = pings.tick() => Message::Ping(Vec::new().into()),
        };
        match timeout(SEND_PATIENCE, to_client.send(message)).await {
            Ok(Ok(())) => {}
            _ => return close(close_code::POLICY, "the client does not read"),
        }
    }
}

async fn tell_end(ending: &mut Ending) -> CloseFrame {
    match timeout(END_PATIENCE, ending.wait()).await {
        Ok(info) => match info.exit_code {
            Some(code) => close(close_code::NORMAL, &format!("the process exited with code {code}")),
            None => close(close_code::NORMAL, "the session ended"),
        },
        Err(_) => close(close_code::NORMAL, "the process has closed its output"),
    }
}

/// From the client to the process, until either ends.
async fn receive(
    from_client: &mut SplitStream<WebSocket>,
    input: &Input,
    keep_alive: &(impl Fn() + Send + Sync),
) -> CloseFrame {
    let mut next = None;
    loop {
        let message = match next.take() {
            Some(message) => Ok(Some(message)),
            None => timeout(SILENCE, from_client.next()).await,
        };
        let text = match message {
            Ok(Some(Ok(Message::Text(text)))) => text,
            Ok(Some(Ok(Message::Ping(_) | Message::Pong(_)))) => continue,
            Ok(Some(Ok(Message::Binary(_)))) => return close(close_code::UNSUPPORTED, "send text, a line a message"),
            Ok(Some(Ok(Message::Close(_))) | None) => return close(close_code::NORMAL, ""),
            Ok(Some(Err(_))) => return close(close_code::SIZE, "a message is malformed, or far too long"),
            Err(_) => return close(close_code::POLICY, SILENT),
        };
        let line = text.strip_suffix('\n').unwrap_or(&text);
        if line.len() > MOST_LINE_BYTES {
            return close(close_code::SIZE, &LineTooLong.to_string());
        }
        if line.contains('\n') {
            return close(close_code::POLICY, "a message is one line");
        }
        keep_alive();
        let writing = input.write_line(line);
        let silence = sleep(SILENCE);
        tokio::pin!(writing, silence);
        // A client that leaves while the process does not read is not kept waiting, nor is the one after it. One message
        // more is taken; whoever has sent that must read on to be seen to leave.
        let written = loop {
            tokio::select! {
                written = &mut writing => break written,
                message = from_client.next(), if next.is_none() => match message {
                    Some(Ok(Message::Ping(_) | Message::Pong(_))) => silence.as_mut().reset(Instant::now() + SILENCE),
                    Some(Ok(Message::Close(_))) | None => return close(close_code::NORMAL, ""),
                    Some(message) => next = Some(message),
                },
                // Where one more has come, nothing is listened to that could break the silence.
                () = &mut silence, if next.is_none() => return close(close_code::POLICY, SILENT),
            }
        };
        if written.is_err() {
            // Its end is told by the other direction; there may still be output.
            return std::future::pending().await;
        }
    }
}

fn close(code: u16, reason: &str) -> CloseFrame {
    CloseFrame { code, reason: reason.into() }
}

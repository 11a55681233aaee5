//! The connections of one sandbox to the mirror: HTTP/1.1 with persistent connections, GET and HEAD only.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::Inner;
use super::guest::Guest;
use super::response::{Response, SendBody};
use super::service::Request;
use crate::http::{BodyFraming, Head, HeadError, MAX_REQUEST_HEAD_BYTES, RequestLine};

/// Maximum number of connections of one sandbox. Further ones wait.
const MAX_CONNECTIONS: usize = 128;
/// Maximum time between requests, and for the head of a request.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);
/// Limits on the time and the bytes that a guest may still send after a refusal.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
const MAX_DISCARDED_BYTES: u64 = 16 << 20;
const MAX_ACCEPT_FAILURES: u32 = 50;
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Serves a listener. When this future is dropped, all connections are closed.
pub(super) async fn serve(mirror: Arc<Inner>, listener: std::net::TcpListener, guest: Arc<Guest>) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    let mut served = JoinSet::new();
    let mut failures = 0;
    loop {
        while served.len() >= MAX_CONNECTIONS {
            served.join_next().await;
        }
        let accepted = tokio::select! {
            Some(_) = served.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) if failures == MAX_ACCEPT_FAILURES => return Err(error),
            Err(_) => {
                failures += 1;
                sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        failures = 0;
        let (Ok(()), Ok(local)) = (stream.set_nodelay(true), stream.local_addr()) else { continue };
        let (mirror, guest) = (Arc::clone(&mirror), Arc::clone(&guest));
        let base = format!("http://{local}");
        served.spawn(async move {
            let (from_guest, to_guest) = stream.into_split();
            serve_connection(&mirror, &guest, &base, from_guest, to_guest).await;
        });
    }
}

/// Serves the requests of one connection, one after the other.
async fn serve_connection<R, W>(mirror: &Arc<Inner>, guest: &Arc<Guest>, base: &str, from_guest: R, mut to_guest: W)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let mut from_guest = BufReader::new(from_guest);
    loop {
        let head = match timeout(HEAD_TIMEOUT, Head::read(&mut from_guest, MAX_REQUEST_HEAD_BYTES)).await {
            Ok(Ok(head)) => head,
            Err(_) | Ok(Err(HeadError::Closed | HeadError::Read(_))) => return,
            Ok(Err(error)) => return refuse(&mut from_guest, &mut to_guest, bad_request(&error)).await,
        };
        let line = match RequestLine::parse(&head) {
            Ok(line) => line,
            Err(error) => return refuse(&mut from_guest, &mut to_guest, bad_request(&error)).await,
        };
        let send_body = match line.method {
            "GET" => SendBody::Yes,
            "HEAD" => SendBody::No,
            _ => {
                let text = "the package mirror is read-only: it has no login, publish or audit";
                let mut response = Response::text("405 Method Not Allowed", "method", text);
                response.fields.push(("Allow", "GET, HEAD".into()));
                return refuse(&mut from_guest, &mut to_guest, response).await;
            }
        };
        if line.body != BodyFraming::Length(0) {
            let error = HeadError::Malformed("a request of this method has a body");
            return refuse(&mut from_guest, &mut to_guest, bad_request(&error)).await;
        }
        let text = |name| head.values(name).next().and_then(|value| std::str::from_utf8(value).ok());
        let is_kept = line.version == b"HTTP/1.1"
            && !text("connection").is_some_and(|value| value.to_ascii_lowercase().contains("close"));
        let request = Request {
            target: line.uri,
            accept: text("accept").unwrap_or_default(),
            range: text("range"),
            if_none_match: text("if-none-match"),
        };
        let response = mirror.respond(guest, &request, base).await;
        let connection = if is_kept { "keep-alive" } else { "close" };
        let written = response.write(&mut to_guest, send_body, connection).await;
        if written.is_err() || !is_kept {
            return;
        }
    }
}

fn bad_request(error: &HeadError) -> Response {
    Response::text("400 Bad Request", error.code(), &error.to_string())
}

/// Sends a refusal and ends the connection. Closing a socket with unread bytes resets the connection, and a guest that is
/// still sending could not read the response.
async fn refuse<R, W>(from_guest: &mut R, to_guest: &mut W, response: Response)
where
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    if response.write(to_guest, SendBody::Yes, "close").await.is_ok() {
        let drain = async {
            to_guest.shutdown().await?;
            tokio::io::copy(&mut from_guest.take(MAX_DISCARDED_BYTES), &mut tokio::io::sink()).await
        };
        let _ = timeout(CLOSE_TIMEOUT, drain).await;
    }
}

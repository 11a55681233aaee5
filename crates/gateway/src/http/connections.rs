//! Serves connections, and closes those whose clients are slow, silent or dead.
//!
//! A client must authenticate within a deadline, and may be closed earlier to make room (`connection_table`). A few
//! connections over the limit are accepted, for probes and to answer requests with 503. All others get a 503 without
//! their request being read, so that a busy server does not look like a dead one.

use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::time::Sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::access::{Access, Origin};
use super::app::App;
use super::connection_table::{ConnectionTable, Slot};
use super::incoming::Incoming;
use super::last_words::LastWords;

/// How long a client may take for the head of a request, and be silent between requests.
const HEAD: Duration = Duration::from_secs(60);

/// Maximum time until a request of a client has passed authentication.
const AUTHENTICATION: Duration = Duration::from_secs(10);

/// Maximum time for the request head on a connection that is only refused.
const REFUSED_HEAD: Duration = Duration::from_secs(2);

/// How long a client may take nothing of what it is sent.
const STALL: Duration = Duration::from_secs(60);

/// How long to rest when no connection can be accepted, for want of descriptors.
const REST: Duration = Duration::from_millis(100);

/// How long answers under way may still take once the server is told to end.
/// A supervisor waits little longer, and the sessions are to be ended too.
const FAREWELL: Duration = Duration::from_secs(2);

/// What those hear for whom there is no room at all.
const OVERFULL: &str = concat!(
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nContent-Length: 61\r\n",
    "Connection: close\r\n\r\n",
    r#"{"error":"too many connections","hint":"try again shortly"}"#,
    "\r\n"
);

pub(super) async fn serve(
    mut incoming: Incoming,
    app: &Arc<App>,
    table: &Arc<ConnectionTable>,
    access: &Access,
    shutdown: &CancellationToken,
) {
    let tasks = TaskTracker::new();
    loop {
        let (stream, place) = tokio::select! {
            accepted = incoming.next() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!("no connection can be accepted: {error}");
                    tokio::time::sleep(REST).await;
                    continue;
                }
            },
            () = shutdown.cancelled() => break,
        };
        let words = place.and_then(LastWords::new);
        // A client that has already disconnected has no address.
        let Ok(peer) = stream.peer_addr() else { continue };
        let Some(slot) = table.admit(peer.ip(), access.judge(&stream)) else {
            turn_away(&stream);
            continue;
        };
        // The kernel gives up a client that is gone, whose connection would look open for long.
        let patience = u32::try_from(STALL.as_millis()).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, patience);
        tasks.spawn(converse(Connection::new(stream, words, slot), Arc::clone(app), shutdown.clone()));
    }
    drop(incoming);
    tasks.close();
    if tokio::time::timeout(FAREWELL, tasks.wait()).await.is_err() {
        tracing::warn!("connections were still open when the server ended");
    }
}

/// Tells a client without hearing it. What a new connection is sent at first has room in its buffer.
fn turn_away(stream: &TcpStream) {
    // A connection is reset that is closed over something unread.
    let _ = recv(stream, &mut [0; 4096], RecvFlags::DONTWAIT);
    let _ = send(stream, OVERFULL.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

async fn converse(connection: Connection, app: Arc<App>, shutdown: CancellationToken) {
    let (peer, evicted) = (connection.slot.peer.clone(), connection.slot.evicted.clone());
    let is_refused = peer.is_crowded() || matches!(peer.origin(), Origin::Refused(_));
    let head = if is_refused { REFUSED_HEAD } else { HEAD };
    let has_asked = Arc::new(AtomicBool::new(false));
    let (asked, words) = (Arc::clone(&has_asked), connection.words.clone());
    let client = peer.clone();
    let answer = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        asked.store(true, Ordering::Relaxed);
        let (words, version) = (words.clone(), request.version());
        if let Some(words) = &words {
            words.begins();
            request.extensions_mut().insert(words.clone());
        }
        request.extensions_mut().insert(client.clone());
        let app = Arc::clone(&app);
        async move {
            let response = app.answer(request).await;
            Ok::<_, Infallible>(match words {
                Some(words) => words.follow(version, response),
                None => response,
            })
        }
    });
    let conversation = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head)
        .keep_alive(!is_refused)
        .serve_connection(TokioIo::new(connection), answer)
        .with_upgrades();
    let mut conversation = std::pin::pin!(conversation);
    let not_authenticated = async {
        tokio::time::sleep(AUTHENTICATION).await;
        if peer.is_authenticated() {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = conversation.as_mut() => ended,
        () = evicted.cancelled() => return,
        () = not_authenticated => {
            // A probe, or a refusal that is being sent, may finish.
            if !has_asked.load(Ordering::Relaxed) {
                return;
            }
            conversation.as_mut().graceful_shutdown();
            let Ok(ended) = tokio::time::timeout(FAREWELL, conversation).await else { return };
            ended
        }
        () = shutdown.cancelled() => {
            // One that has not asked anything yet is not idle to the eyes of hyper, which would wait for its head.
            if !has_asked.load(Ordering::Relaxed) {
                return;
            }
            conversation.as_mut().graceful_shutdown();
            conversation.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection failed: {error}");
    }
}

/// A stream that fails when its other end has taken nothing for long, and keeps its place until it is closed.
struct Connection {
    stream: TcpStream,
    stalled: Option<Pin<Box<Sleep>>>,
    /// Where somebody has the connection too.
    words: Option<LastWords>,
    slot: Slot,
    has_written: bool,
}

impl Drop for Connection {
    fn drop(&mut self) {
        if self.slot.evicted.is_cancelled() && !self.has_written {
            turn_away(&self.stream);
        }
    }
}

impl Connection {
    fn new(stream: TcpStream, words: Option<LastWords>, slot: Slot) -> Self {
        Self { stream, stalled: None, words, slot, has_written: false }
    }

    fn about_to_write(&mut self, bytes: usize) {
        self.has_written = true;
        if let Some(words) = &self.words {
            words.writes(bytes);
        }
    }

    /// Ends a wait that takes too long.
    fn watch(&mut self, written: Poll<io::Result<usize>>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let (Poll::Ready(Ok(bytes)), Some(words)) = (&written, &self.words) {
            words.wrote(*bytes);
        }
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(tokio::time::sleep(STALL)));
        ready!(stalled.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client takes nothing of what it is sent")))
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before
            && let Some(words) = &self.words
        {
            words.heard(buffer.filled().len() - before);
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.about_to_write(bytes.len());
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.about_to_write(slices.iter().map(|slice| slice.len()).sum());
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        // Asked for only when nothing is left that was to be written.
        if let (Poll::Ready(Ok(())), Some(words)) = (&flushed, &self.words) {
            words.flushed();
        }
        flushed
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use axum::Router;
    use axum::routing::get;
    use futures_util::StreamExt as _;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::super::HttpOptions;
    use super::super::connection_table::EXTRA;
    use super::*;
    use crate::share::Principals;

    /// Of time that is passed over when there is nothing to do.
    const LONG: Duration = Duration::from_secs(3600);

    fn owner() -> Access {
        Access::new(&HttpOptions::default())
    }

    fn table(limit: usize) -> Arc<ConnectionTable> {
        ConnectionTable::new(limit, Principals::One)
    }

    async fn start(app: Router) -> (std::net::SocketAddr, CancellationToken) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let ended = shutdown.clone();
        let app = Arc::new(App::new(app, None));
        tokio::spawn(async move { serve(listener.into(), &app, &table(1), &owner(), &ended).await });
        (address, shutdown)
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_is_silent_or_stops_in_the_head_is_closed() {
        let (address, _shutdown) = start(Router::new()).await;
        for says in ["", "GET / HTTP/1.1\r\nHost: lo"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(says.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            let closed = tokio::time::timeout(LONG, stream.read_to_end(&mut answer)).await;
            assert!(closed.is_ok(), "{says:?} holds its place");
        }
    }

    #[tokio::test]
    async fn whoever_comes_beyond_all_room_is_told_so() {
        let (address, _shutdown) = start(Router::new()).await;
        let mut held = Vec::new();
        for _ in 0..=EXTRA {
            held.push(TcpStream::connect(address).await.unwrap());
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("\r\nRetry-After: 1\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}: {}", body.len());
        assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["error"], "too many connections");
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_who_waits_for_nothing_holds_up_the_end() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let (app, ended) = (Arc::new(App::new(Router::new(), None)), shutdown.clone());
        let server = tokio::spawn(async move { serve(listener.into(), &app, &table(9), &owner(), &ended).await });
        let half = "GET / HTTP/1.1\r\nHost: lo";
        let whole = format!("{half}\r\n\r\n");
        let mut held = Vec::new();
        for says in [String::new(), half.to_owned(), whole.clone(), format!("{whole}{half}")] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(says.as_bytes()).await.unwrap();
            if says.starts_with(&whole) {
                let mut answer = [0; 12];
                stream.read_exact(&mut answer).await.unwrap();
                assert_eq!(&answer, b"HTTP/1.1 404");
            }
            held.push(stream);
        }
        // Time passes only while there is nothing else to do.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let told = tokio::time::Instant::now();
        shutdown.cancel();
        server.await.unwrap();
        assert_eq!(told.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_loses_its_place() {
        let (dropped, mut witness) = tokio::sync::mpsc::channel::<()>(1);
        let body = move || {
            let dropped = dropped.clone();
            // More than all buffers between here and there hold.
            let pieces = futures_util::stream::iter(0..1 << 16).map(move |_| {
                let _held = &dropped;
                Ok::<_, std::convert::Infallible>(axum::body::Bytes::from_static(&[b'x'; 4096]))
            });
            std::future::ready(axum::body::Body::from_stream(pieces))
        };
        let app = Router::new().route("/", get(body.clone()));
        drop(body);
        let (address, shutdown) = start(app).await;
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut first = [0; 12];
        stream.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200");
        shutdown.cancel();
        // The body is dropped although the client is still there, and the server then ends.
        assert_eq!(tokio::time::timeout(LONG, witness.recv()).await, Ok(None));
        drop(stream);
    }
}

//! Serves connections, and closes those whose clients are slow, silent or dead.
//!
//! A client must authenticate within a deadline, and its connection may be closed earlier in favour of others
//! (`connection_table`). A few connections over the limit are accepted, for probes and to refuse requests with 503. All
//! others get a 503 without their request being read, so that a busy server does not look like a dead one.

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

use super::app::Handler;
use super::authenticator::{Authenticator, Origin};
use super::connection_table::{ConnectionTable, Slot};
use super::crash_reply::CrashReply;
use super::incoming::Incoming;

/// Maximum time for the head of a request, and between requests.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

/// Maximum time until a request of a client has passed authentication.
const AUTHENTICATION_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum time for the request head on a connection that is only refused.
const REFUSED_HEAD_TIMEOUT: Duration = Duration::from_secs(2);

/// Maximum time for which a client reads nothing of what it is sent.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

/// Pause after a connection could not be accepted, for example because no descriptors are free.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum time for responses in progress at shutdown. A supervisor waits little longer, and sessions end after this.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The response to connections that are not served at all.
const TOO_MANY_CONNECTIONS: &str = concat!(
    "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nContent-Length: 61\r\n",
    "Connection: close\r\n\r\n",
    r#"{"error":"too many connections","hint":"try again shortly"}"#,
    "\r\n"
);

pub(super) async fn serve(
    mut incoming: Incoming,
    handler: &Arc<impl Handler>,
    table: &Arc<ConnectionTable>,
    authenticator: &impl Authenticator,
    shutdown: &CancellationToken,
) {
    let tasks = TaskTracker::new();
    loop {
        let (stream, crash_reply) = tokio::select! {
            accepted = incoming.next() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::debug!("cannot accept a connection: {error}");
                    tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
                    continue;
                }
            },
            () = shutdown.cancelled() => break,
        };
        let crash_reply = crash_reply.and_then(CrashReply::new);
        // A client that has already disconnected has no address.
        let Ok(peer) = stream.peer_addr() else { continue };
        let Some(slot) = table.admit(peer.ip(), authenticator.classify(&stream)) else {
            turn_away(&stream);
            continue;
        };
        // Lets the kernel close the connection of a client that is gone, which would look open for long.
        let timeout_ms = u32::try_from(WRITE_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
        let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, timeout_ms);
        tasks.spawn(serve_connection(
            Connection::new(stream, crash_reply, slot),
            Arc::clone(handler),
            shutdown.clone(),
        ));
    }
    drop(incoming);
    tasks.close();
    if tokio::time::timeout(SHUTDOWN_TIMEOUT, tasks.wait()).await.is_err() {
        tracing::warn!("connections were still open when the server ended");
    }
}

/// Sends a 503 without reading the request. The send buffer of a new connection is large enough for it.
fn turn_away(stream: &TcpStream) {
    // A socket that is closed with unread data resets the connection, and the client may lose the response.
    let _ = recv(stream, &mut [0; 4096], RecvFlags::DONTWAIT);
    let _ = send(stream, TOO_MANY_CONNECTIONS.as_bytes(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

async fn serve_connection(connection: Connection, handler: Arc<impl Handler>, shutdown: CancellationToken) {
    let (peer, evicted) = (connection.slot.peer.clone(), connection.slot.evicted.clone());
    let is_refused = peer.is_over_limit() || matches!(peer.origin(), Origin::Refused(_));
    let head_timeout = if is_refused { REFUSED_HEAD_TIMEOUT } else { HEAD_TIMEOUT };
    let has_request = Arc::new(AtomicBool::new(false));
    let (request_seen, crash_reply) = (Arc::clone(&has_request), connection.crash_reply.clone());
    let client = peer.clone();
    let service = service_fn(move |mut request: hyper::Request<hyper::body::Incoming>| {
        request_seen.store(true, Ordering::Relaxed);
        let (crash_reply, version) = (crash_reply.clone(), request.version());
        if let Some(crash_reply) = &crash_reply {
            crash_reply.head_read();
            request.extensions_mut().insert(crash_reply.clone());
        }
        request.extensions_mut().insert(client.clone());
        let handler = Arc::clone(&handler);
        async move {
            let response = handler.handle(request).await;
            Ok::<_, Infallible>(match crash_reply {
                Some(crash_reply) => crash_reply.track(version, response),
                None => response,
            })
        }
    });
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(head_timeout)
        .keep_alive(!is_refused)
        .serve_connection(TokioIo::new(connection), service)
        .with_upgrades();
    let mut http = std::pin::pin!(http);
    let not_authenticated = async {
        tokio::time::sleep(AUTHENTICATION_TIMEOUT).await;
        if peer.is_authenticated() {
            std::future::pending::<()>().await;
        }
    };
    let ended = tokio::select! {
        ended = http.as_mut() => ended,
        () = evicted.cancelled() => return,
        () = not_authenticated => {
            // A probe, or a refusal that is being sent, may finish.
            if !has_request.load(Ordering::Relaxed) {
                return;
            }
            http.as_mut().graceful_shutdown();
            let Ok(ended) = tokio::time::timeout(SHUTDOWN_TIMEOUT, http).await else { return };
            ended
        }
        () = shutdown.cancelled() => {
            // hyper would wait for the head of the first request.
            if !has_request.load(Ordering::Relaxed) {
                return;
            }
            http.as_mut().graceful_shutdown();
            http.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!("a connection failed: {error}");
    }
}

/// A stream that fails if its client reads nothing for too long, and keeps its slot until it is closed.
struct Connection {
    stream: TcpStream,
    write_deadline: Option<Pin<Box<Sleep>>>,
    /// Present if a supervisor has the connection too.
    crash_reply: Option<CrashReply>,
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
    fn new(stream: TcpStream, crash_reply: Option<CrashReply>, slot: Slot) -> Self {
        Self { stream, write_deadline: None, crash_reply, slot, has_written: false }
    }

    fn before_write(&mut self, bytes: usize) {
        self.has_written = true;
        if let Some(crash_reply) = &self.crash_reply {
            crash_reply.before_write(bytes);
        }
    }

    /// Fails a write that has been pending for too long.
    fn after_write(&mut self, written: Poll<io::Result<usize>>, context: &mut Context<'_>) -> Poll<io::Result<usize>> {
        if let (Poll::Ready(Ok(bytes)), Some(crash_reply)) = (&written, &self.crash_reply) {
            crash_reply.written(*bytes);
        }
        if written.is_ready() {
            self.write_deadline = None;
            return written;
        }
        let deadline = self.write_deadline.get_or_insert_with(|| Box::pin(tokio::time::sleep(WRITE_TIMEOUT)));
        ready!(deadline.as_mut().poll(context));
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read its responses")))
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
            && let Some(crash_reply) = &self.crash_reply
        {
            crash_reply.bytes_read(buffer.filled().len() - before);
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.before_write(bytes.len());
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.after_write(written, context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.before_write(slices.iter().map(|slice| slice.len()).sum());
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.after_write(written, context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        // hyper flushes only when everything so far was written.
        if let (Poll::Ready(Ok(())), Some(crash_reply)) = (&flushed, &self.crash_reply) {
            crash_reply.flushed();
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

    use super::super::app::Routes;
    use super::super::authenticator::tests::OwnerOnly;
    use super::super::connection_table::EXTRA;
    use super::*;
    use crate::fair_pool::Principals;

    /// Paused time advances at once when there is nothing to do.
    const LONG: Duration = Duration::from_secs(3600);

    fn table(limit: usize) -> Arc<ConnectionTable> {
        ConnectionTable::new(limit, Principals::One)
    }

    async fn start(app: Router) -> (std::net::SocketAddr, CancellationToken) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let ended = shutdown.clone();
        let app = Arc::new(Routes::new(app));
        tokio::spawn(async move { serve(listener.into(), &app, &table(1), &OwnerOnly, &ended).await });
        (address, shutdown)
    }

    #[tokio::test(start_paused = true)]
    async fn connection_without_a_complete_head_is_closed() {
        let (address, _shutdown) = start(Router::new()).await;
        for sent in ["", "GET / HTTP/1.1\r\nHost: lo"] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut response = Vec::new();
            let closed = tokio::time::timeout(LONG, stream.read_to_end(&mut response)).await;
            assert!(closed.is_ok(), "{sent:?} stays open");
        }
    }

    #[tokio::test]
    async fn connection_over_all_limits_gets_a_503() {
        let (address, _shutdown) = start(Router::new()).await;
        let mut open = Vec::new();
        for _ in 0..=EXTRA {
            open.push(TcpStream::connect(address).await.unwrap());
        }
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        let (head, body) = response.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 ") && head.contains("\r\nRetry-After: 1\r\n"), "{head}");
        assert!(head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())), "{head}: {}", body.len());
        assert_eq!(serde_json::from_str::<serde_json::Value>(body).unwrap()["error"], "too many connections");
    }

    #[tokio::test(start_paused = true)]
    async fn idle_connections_do_not_delay_the_shutdown() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, shutdown) = (listener.local_addr().unwrap(), CancellationToken::new());
        let (app, ended) = (Arc::new(Routes::new(Router::new())), shutdown.clone());
        let server = tokio::spawn(async move { serve(listener.into(), &app, &table(9), &OwnerOnly, &ended).await });
        let half = "GET / HTTP/1.1\r\nHost: lo";
        let complete = format!("{half}\r\n\r\n");
        let mut open = Vec::new();
        for sent in [String::new(), half.to_owned(), complete.clone(), format!("{complete}{half}")] {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(sent.as_bytes()).await.unwrap();
            if sent.starts_with(&complete) {
                let mut status = [0; 12];
                stream.read_exact(&mut status).await.unwrap();
                assert_eq!(&status, b"HTTP/1.1 404");
            }
            open.push(stream);
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
        let start = tokio::time::Instant::now();
        shutdown.cancel();
        server.await.unwrap();
        assert_eq!(start.elapsed(), Duration::ZERO);
    }

    #[tokio::test(start_paused = true)]
    async fn client_that_does_not_read_loses_its_connection() {
        let (dropped, mut witness) = tokio::sync::mpsc::channel::<()>(1);
        let body = move || {
            let dropped = dropped.clone();
            // More than all buffers on the way can hold.
            let pieces = futures_util::stream::iter(0..1 << 16).map(move |_| {
                let _dropped = &dropped;
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

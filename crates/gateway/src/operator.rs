//! The REST API for the operator, over a Unix socket. The operator sees all sessions.
//!
//! The kernel authenticates clients (`SO_PEERCRED`): only the user of the server and root are accepted.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::serve::Listener;
use ringfence_core::Principal;
use ringfence_mcp::fair_pool::Principals;
use ringfence_mcp::http::refuse;
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{Gateway, rest};

const MAX_REQUESTS: usize = 64;
const MAX_BODY_BYTES: usize = 4 << 20;

/// Time to wait after `accept` failed, for example because of too many open files.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// Maximum time for open requests to finish at shutdown. The sessions end after it.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves until `shutdown`. Accepts clients with the user id `owner` and root.
pub async fn serve_operator(listener: UnixListener, owner: u32, gateway: Gateway, shutdown: CancellationToken) {
    let permits = Arc::new(Semaphore::new(MAX_REQUESTS));
    let app = rest::routes(gateway, MAX_BODY_BYTES, Principals::One, &shutdown)
        .layer(Extension(Principal::operator()))
        .layer(from_fn_with_state(permits, limit_requests));
    let server =
        axum::serve(OwnerOnly { listener, owner }, app).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    tokio::select! {
        served = async { server.await } => if let Err(error) = served {
            tracing::warn!("the operator socket stopped serving: {error}");
        },
        () = async { shutdown.cancelled().await; tokio::time::sleep(SHUTDOWN_TIMEOUT).await } => {}
    }
}

async fn limit_requests(State(permits): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(_permit) = permits.try_acquire() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many concurrent requests", "try again shortly");
    };
    next.run(request).await
}

struct OwnerOnly {
    listener: UnixListener,
    owner: u32,
}

impl Listener for OwnerOnly {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (UnixStream, SocketAddr) {
        loop {
            match self.listener.accept().await {
                Ok((stream, address)) => match stream.peer_cred() {
                    Ok(peer) if peer.uid() == self.owner || peer.uid() == 0 => return (stream, address),
                    Ok(peer) => tracing::warn!("refused a connection of uid {} to the operator socket", peer.uid()),
                    Err(_) => {}
                },
                Err(_) => tokio::time::sleep(ACCEPT_RETRY_DELAY).await,
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

//! The REST routes for whoever runs the server, over a Unix socket, with sight of all sessions.
//!
//! The kernel says who connects: only the server's own user and root are heard.

use std::sync::Arc;
use std::time::Duration;

use axum::Extension;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn_with_state};
use axum::response::Response;
use axum::serve::Listener;
use ringfence_core::Principal;
use tokio::net::unix::SocketAddr;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::{Gateway, rest};
use ringfence_mcp::fair_pool::Principals;
use ringfence_mcp::http::refuse;

const MOST_REQUESTS: usize = 64;
const MOST_BODY_BYTES: usize = 4 << 20;

/// How long to rest when no connection can be accepted, for want of descriptors.
const REST: Duration = Duration::from_millis(100);

/// How long answers under way may still take once the server is told to end; the sessions are ended after it.
const FAREWELL: Duration = Duration::from_secs(2);

/// Serves until `shutdown`. Those with the user id `owner`, and root, are let in.
pub async fn serve_operator(listener: UnixListener, owner: u32, gateway: Gateway, shutdown: CancellationToken) {
    let room = Arc::new(Semaphore::new(MOST_REQUESTS));
    let app = rest::routes(gateway, MOST_BODY_BYTES, Principals::One, &shutdown)
        .layer(Extension(Principal::operator()))
        .layer(from_fn_with_state(room, pass));
    let server =
        axum::serve(OwnerOnly { listener, owner }, app).with_graceful_shutdown(shutdown.clone().cancelled_owned());
    tokio::select! {
        served = async { server.await } => if let Err(error) = served {
            tracing::warn!("the operator's socket is no longer served: {error}");
        },
        () = async { shutdown.cancelled().await; tokio::time::sleep(FAREWELL).await } => {}
    }
}

async fn pass(State(room): State<Arc<Semaphore>>, request: Request, next: Next) -> Response {
    let Ok(_permit) = room.try_acquire() else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "too many requests at a time", "try again shortly");
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
                    Ok(peer) => tracing::warn!("uid {} was turned away at the operator's socket", peer.uid()),
                    Err(_) => {}
                },
                Err(_) => tokio::time::sleep(REST).await,
            }
        }
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

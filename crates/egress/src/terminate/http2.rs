//! HTTP/2 on both sides of a connection.

use std::sync::Arc;

use hyper::client::conn::http2 as client;
use hyper::server::conn::http2 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};

use super::exchange::Upstream;
use super::tasks::TaskOwner;
use super::{TerminationError, Terminator};
use crate::refusal::Refusal;
use crate::secrets::Destination;

const MAX_STREAMS: u32 = 128;
const MAX_HEAD_BYTES: u32 = 32 * 1024;
/// With the 64 KiB of the standard, the round trip limits the throughput. A peer that sends more than the other one reads
/// makes the proxy store a whole window of the connection, in each direction.
const STREAM_WINDOW: u32 = 512 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

impl Terminator {
    pub(super) async fn run_http2<C, S>(
        &self,
        destination: Option<Destination>,
        client: C,
        server: Result<S, Refusal>,
    ) -> Result<(), TerminationError>
    where
        C: AsyncRead + AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let owner = TaskOwner::new();
        let (upstream, mut server) = match server {
            Ok(server) => {
                let (sender, server) = client::Builder::new(owner.tasks())
                    .timer(TokioTimer::new())
                    .max_header_list_size(MAX_HEAD_BYTES)
                    .initial_stream_window_size(STREAM_WINDOW)
                    .initial_connection_window_size(CONNECTION_WINDOW)
                    .handshake(TokioIo::new(server))
                    .await
                    .map_err(std::io::Error::other)?;
                (Upstream::Http2(sender), Some(server))
            }
            Err(refusal) => (Upstream::Failed(refusal), None),
        };
        let exchange = self.exchange(destination, true, upstream);
        let service = service_fn(move |request| Arc::clone(&exchange).serve(request));
        let mut connection = server::Builder::new(owner.tasks())
            .timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HEAD_BYTES)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .auto_date_header(false)
            .serve_connection(TokioIo::new(client), service);
        let mut is_server_open = server.is_some();
        loop {
            let server_end = async {
                match &mut server {
                    Some(server) => drop(server.await),
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                () = server_end, if is_server_open => {
                    is_server_open = false;
                    std::pin::Pin::new(&mut connection).graceful_shutdown();
                }
                served = &mut connection => return served.map_err(|error| std::io::Error::other(error).into()),
            }
        }
    }
}

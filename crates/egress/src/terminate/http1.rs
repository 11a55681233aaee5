//! HTTP/1.1 on both sides of a connection.

use std::future::poll_fn;
use std::sync::Arc;
use std::time::Duration;

use hyper::client::conn::http1 as client;
use hyper::server::conn::http1 as server;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy_bidirectional};

use super::exchange::Upstream;
use super::{TerminationError, Terminator, end};
use crate::http::{MAX_REQUEST_HEAD_BYTES, MAX_RESPONSE_HEAD_BYTES};
use crate::refusal::Refusal;
use crate::secrets::Destination;

const MAX_FIELDS: usize = 128;
const BUFFER_BYTES: usize = 128 * 1024;
/// Timeout for a request head. It also ends a persistent connection without requests, as servers do.
const HEAD_TIMEOUT: Duration = Duration::from_secs(60);

impl Terminator {
    pub(super) async fn run_http1<C, S>(
        &self,
        destination: Option<Destination>,
        is_tls: bool,
        client: C,
        server: Result<S, Refusal>,
    ) -> Result<(), TerminationError>
    where
        C: AsyncRead + AsyncWrite + Unpin,
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (upstream, mut server) = match server {
            Ok(server) => {
                let (sender, server) = client::Builder::new()
                    .max_headers(MAX_FIELDS)
                    .max_header_size(MAX_RESPONSE_HEAD_BYTES)
                    .max_buf_size(BUFFER_BYTES)
                    .preserve_header_case(true)
                    .handshake(TokioIo::new(server))
                    .await
                    .map_err(std::io::Error::other)?;
                (Upstream::Http1(tokio::sync::Mutex::new(sender)), Some(server))
            }
            Err(refusal) => (Upstream::Failed(refusal), None),
        };
        let exchange = self.exchange(destination, is_tls, upstream);
        let service = service_fn(|request| Box::pin(Arc::clone(&exchange).serve(request)));
        let mut connection = server::Builder::new()
            .max_headers(MAX_FIELDS)
            .max_header_size(MAX_REQUEST_HEAD_BYTES)
            .max_buf_size(BUFFER_BYTES)
            .preserve_header_case(true)
            .auto_date_header(false)
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD_TIMEOUT)
            .serve_connection(TokioIo::new(client), service);
        let mut is_server_open = server.is_some();
        let served = loop {
            let server_end = poll_fn(|cx| match &mut server {
                Some(server) => server.poll_without_shutdown(cx),
                None => std::task::Poll::Pending,
            });
            tokio::select! {
                biased;
                _ = server_end, if is_server_open => {
                    is_server_open = false;
                    if !exchange.has_upgraded() {
                        // Ends the connection after the response that is being sent.
                        std::pin::Pin::new(&mut connection).graceful_shutdown();
                    }
                }
                served = poll_fn(|cx| connection.poll_without_shutdown(cx)) => break served,
            }
        };
        let client = connection.into_parts();
        let mut client_io = client.io.into_inner();
        if exchange.has_upgraded()
            && let Some(server) = server
        {
            let server = server.into_parts();
            let mut server_io = server.io.into_inner();
            client_io.write_all(&server.read_buf).await?;
            server_io.write_all(&client.read_buf).await?;
            copy_bidirectional(&mut client_io, &mut server_io).await?;
            return Ok(());
        }
        end(client_io).await;
        served.map_err(|error| std::io::Error::other(error).into())
    }
}

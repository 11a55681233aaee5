//! The transports of the server.

use std::sync::Arc;

use axum::Router;
use rmcp::ServiceExt;
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use tokio::net::TcpListener;

use super::handler::ConformanceServer;

/// Serves streamable HTTP at `/mcp`, with sessions for clients of the older era, until the future is dropped.
pub async fn serve_http(listener: TcpListener) -> std::io::Result<()> {
    let port = listener.local_addr()?.port();
    let origins = ["127.0.0.1", "localhost"].map(|host| format!("http://{host}:{port}"));
    let config = StreamableHttpServerConfig::default().with_allowed_origins(origins);
    let server = ConformanceServer::default();
    let service =
        StreamableHttpService::new(move || Ok(server.clone()), Arc::new(LocalSessionManager::default()), config);
    axum::serve(listener, Router::new().nest_service("/mcp", service)).await
}

/// Serves on standard input and output until the input ends.
pub async fn serve_stdio() -> std::io::Result<()> {
    let running = ConformanceServer::default().serve(rmcp::transport::stdio()).await.map_err(std::io::Error::other)?;
    running.waiting().await.map(drop).map_err(std::io::Error::other)
}

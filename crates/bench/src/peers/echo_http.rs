//! A bare MCP server over streamable HTTP with one tool, `echo`, written with rmcp and axum in the usual way. It has no
//! authentication, no sessions and no sandbox.

use std::net::Ipv4Addr;
use std::sync::Arc;

use anyhow::{Context as _, Result};
use axum::Router;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, JsonObject, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::transport::streamable_http_server::session::never::NeverSessionManager;
use rmcp::transport::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ErrorData, RoleServer, ServerHandler};
use tokio::net::TcpListener;

use crate::terminal::notice;

/// First argument of this program in the role of this server.
pub(crate) const ROLE: &str = "echo-http";

/// Serves on a free port until the process is killed. The address is printed to standard error.
pub(crate) fn serve() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.context("cannot listen on a free port")?;
        notice(&format!("serving MCP at http://{}/mcp", listener.local_addr()?));
        let config = StreamableHttpServerConfig::default().with_legacy_session_mode(false).with_json_response(true);
        let service = StreamableHttpService::new(|| Ok(Echo), Arc::new(NeverSessionManager::default()), config);
        axum::serve(listener, Router::new().nest_service("/mcp", service)).await.context("the echo server failed")
    })
}

#[derive(Clone)]
struct Echo;

impl ServerHandler for Echo {
    fn get_info(&self) -> ServerConfig {
        ServerConfig::new(ServerCapabilities::builder().enable_tools().build())
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(vec![Tool::new("echo", "Returns the message.", JsonObject::new())]))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        _context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let arguments = request.arguments.unwrap_or_default();
        let message = arguments.get("message").and_then(|message| message.as_str());
        let message = message.ok_or_else(|| ErrorData::invalid_params("`message` is missing", None))?;
        Ok(CallToolResult::success(vec![ContentBlock::text(message)]).into())
    }
}

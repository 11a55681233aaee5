//! MCP over standard input and output, for clients that start the server themselves.

use rmcp::ServiceExt;
use rmcp::service::ServerInitializeError;
use tokio::io::{AsyncRead, AsyncWrite};

use crate::Gateway;

#[derive(Debug, thiserror::Error)]
pub enum StdioError {
    #[error("the client did not open the conversation as MCP asks")]
    Opening(#[source] Box<ServerInitializeError>),
    #[error("serving standard input ended early")]
    Serving(#[source] tokio::task::JoinError),
}

/// Serves until the end of input. Sessions are left to the caller, which knows who else uses them.
pub async fn serve_stdio(gateway: Gateway) -> Result<(), StdioError> {
    let (input, output) = rmcp::transport::stdio();
    serve(gateway, input, output).await
}

async fn serve<I, O>(gateway: Gateway, input: I, output: O) -> Result<(), StdioError>
where
    I: AsyncRead + Send + Unpin + 'static,
    O: AsyncWrite + Send + Unpin + 'static,
{
    let service = match gateway.serve((input, output)).await {
        Ok(service) => service,
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => return Err(StdioError::Opening(Box::new(error))),
    };
    service.waiting().await.map(drop).map_err(StdioError::Serving)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio::io::AsyncReadExt;

    use super::*;

    async fn converse(messages: &[Value]) -> Vec<Value> {
        let input = messages.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n") + "\n";
        let (output, mut answers) = tokio::io::duplex(1 << 20);
        serve(Gateway::without_backend("none here"), std::io::Cursor::new(input), output).await.unwrap();
        let mut text = String::new();
        answers.read_to_string(&mut text).await.unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    #[tokio::test]
    async fn the_older_era_opens_with_initialize() {
        let answers = converse(&[
            json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {
                "protocolVersion": "2024-11-05", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}}),
            json!({"jsonrpc": "2.0", "method": "notifications/initialized"}),
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "get_volume_path"}}),
        ])
        .await;
        assert_eq!(answers[0]["result"]["protocolVersion"], "2024-11-05");
        insta::assert_snapshot!(answers[1]["error"]);
    }

    #[tokio::test]
    async fn the_newer_era_needs_no_opening() {
        let meta = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "t", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {},
        });
        let answers = converse(&[
            json!({"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {"_meta": meta}}),
            json!({"jsonrpc": "2.0", "id": 2, "method": "tools/list", "params": {"_meta": meta}}),
        ])
        .await;
        assert_eq!(answers[0]["result"]["supportedVersions"][4], "2026-07-28");
        assert_eq!(answers[1]["result"]["tools"][0]["name"], "execute_code");
    }

    #[tokio::test]
    async fn an_input_that_ends_at_once_is_no_error() {
        assert!(converse(&[]).await.is_empty());
    }
}

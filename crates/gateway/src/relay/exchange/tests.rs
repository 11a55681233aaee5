use ringfence_mcp::upstream::{ClientIdentity, ConnectOptions, Eras, Target};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};

use super::*;

/// A server in memory.
struct Peer {
    reader: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
}

impl Peer {
    async fn receive(&mut self) -> Value {
        let line = self.reader.next_line().await.unwrap().expect("the client is connected");
        serde_json::from_str(&line).unwrap()
    }

    async fn send(&mut self, message: Value) {
        self.send_raw(&format!("{message}\n")).await;
    }

    async fn send_raw(&mut self, text: &str) {
        self.writer.write_all(text.as_bytes()).await.unwrap();
    }

    async fn respond(&mut self, request: &Value, result: Value) {
        self.send(json!({"jsonrpc": "2.0", "id": request["id"], "result": result})).await;
    }
}

/// Connects to a peer, whose response to the first request decides the era.
async fn connect(era: Era) -> (Upstream, Peer) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (output, input) = tokio::io::split(ours);
    let (reader, writer) = tokio::io::split(theirs);
    let mut peer = Peer { reader: BufReader::new(reader).lines(), writer };
    let identity = ClientIdentity { name: "test".into(), version: "0".into(), capabilities: json!({}) };
    let options = ConnectOptions { timeout: Duration::from_mins(1), eras: Eras::Auto };
    let (messages, _) = mpsc::channel(8);
    let target = Target::Stdio(Box::new(output), Box::new(input));
    let (upstream, ()) = tokio::join!(Upstream::connect(target, identity, messages, options), async {
        let probe = peer.receive().await;
        if era == Era::Modern {
            return peer.respond(&probe, json!({"supportedVersions": ["2026-07-28"], "capabilities": {}})).await;
        }
        peer.send(json!({"jsonrpc": "2.0", "id": probe["id"], "error": {"code": -32601, "message": "no"}})).await;
        let initialize = peer.receive().await;
        let result = json!({"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "peer"}});
        peer.respond(&initialize, result).await;
        assert_eq!(peer.receive().await["method"], "notifications/initialized");
    });
    (upstream.unwrap(), peer)
}

#[test]
fn invalid_params_are_replaced_by_objects() {
    for invalid in [json!(null), json!([1]), json!("x"), json!({"_meta": "x"}), json!({"_meta": [1], "a": 1})] {
        let mut params = invalid.clone();
        declare_capabilities(&mut params, &json!({"roots": {}}));
        assert_eq!(params["_meta"][CAPABILITIES_KEY], json!({"roots": {}}), "{invalid}");
        declare_capabilities(&mut params, &Value::Null);
        assert_eq!(params["_meta"][CAPABILITIES_KEY], json!({}), "{invalid}");
    }
}

#[tokio::test]
async fn code_gets_no_requests_and_no_progress() {
    let (upstream, mut peer) = connect(Era::Legacy).await;
    let never = CancellationToken::new();
    let call = call_raw(&upstream, json!({"name": "t"}), &never);
    let (result, ()) = tokio::join!(call, async {
        let request = peer.receive().await;
        assert_eq!(request["params"], json!({"name": "t"}));
        for method in ["elicitation/create", "sampling/createMessage", "roots/list"] {
            peer.send(json!({"jsonrpc": "2.0", "id": method, "method": method})).await;
            assert_eq!(peer.receive().await["error"]["code"], RpcError::METHOD_NOT_FOUND, "{method}");
        }
        for _ in 0..2 * MAX_QUEUED_MESSAGES {
            peer.send(json!({"jsonrpc": "2.0", "method": "notifications/message", "params": {}})).await;
        }
        peer.send_raw(&format!("{{\"id\":{},\"result\":{{\"z\":1.50,  \"a\":1}}}}\n", request["id"])).await;
    });
    assert_eq!(result.unwrap().as_ref(), br#"{"z":1.50,  "a":1}"#);
}

#[tokio::test]
async fn code_declares_no_capabilities_to_a_modern_server() {
    let (upstream, mut peer) = connect(Era::Modern).await;
    let never = CancellationToken::new();
    let (result, ()) = tokio::join!(call_raw(&upstream, json!({"name": "t"}), &never), async {
        let request = peer.receive().await;
        assert_eq!(request["params"]["_meta"][CAPABILITIES_KEY], json!({}));
        peer.respond(&request, json!({"resultType": "input_required", "inputRequests": {}})).await;
    });
    assert!(result.unwrap().flags().is_input_required);
}

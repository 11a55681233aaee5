//! A server in memory whose messages are written by the test.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::upstream::connection::ClientSide;
use crate::upstream::large_message_slots::Slots;
use crate::upstream::{ClientIdentity, ConnectOptions, Eras, Incoming, OutgoingCall, Target, Upstream, UpstreamError};

pub(in crate::upstream) struct ScriptedServer {
    reader: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
}

impl ScriptedServer {
    /// Returns the next message of the client.
    pub(in crate::upstream) async fn recv(&mut self) -> Value {
        let line = self.reader.next_line().await.unwrap().expect("the client is connected");
        serde_json::from_str(&line).unwrap()
    }

    /// Whether the client has closed the connection.
    pub(in crate::upstream) async fn is_closed(&mut self) -> bool {
        matches!(self.reader.next_line().await, Ok(None) | Err(_))
    }

    pub(in crate::upstream) async fn send(&mut self, message: Value) {
        self.send_raw(&format!("{message}\n")).await;
    }

    pub(in crate::upstream) async fn send_raw(&mut self, text: &str) {
        self.writer.write_all(text.as_bytes()).await.unwrap();
    }

    pub(in crate::upstream) async fn respond(&mut self, to: &Value, result: Value) {
        self.send(json!({"jsonrpc": "2.0", "id": to["id"], "result": result})).await;
    }

    pub(in crate::upstream) async fn fail(&mut self, to: &Value, code: i64, data: Value) {
        self.send(json!({"jsonrpc": "2.0", "id": to["id"], "error": {"code": code, "message": "no", "data": data}}))
            .await;
    }

    /// Rejects the probe and performs the legacy handshake.
    pub(in crate::upstream) async fn negotiate_legacy(&mut self) {
        let probe = self.recv().await;
        assert_eq!(probe["method"], "server/discover");
        self.fail(&probe, -32601, Value::Null).await;
        self.initialize("2025-06-18").await;
    }

    pub(in crate::upstream) async fn initialize(&mut self, version: &str) {
        let initialize = self.recv().await;
        assert_eq!(initialize["method"], "initialize");
        assert_eq!(initialize["params"]["protocolVersion"], "2025-11-25");
        let description =
            json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "server"}});
        self.respond(&initialize, description).await;
        assert_eq!(self.recv().await, json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    pub(in crate::upstream) async fn negotiate_modern(&mut self, capabilities: Value) {
        let probe = self.recv().await;
        assert_eq!(probe["method"], "server/discover");
        self.respond(&probe, json!({"supportedVersions": ["2026-07-28"], "capabilities": capabilities})).await;
    }
}

pub(in crate::upstream) fn client_identity() -> ClientIdentity {
    ClientIdentity { name: "test".into(), version: "0".into(), capabilities: json!({"elicitation": {}}) }
}

/// Returns a target and the server behind it.
pub(in crate::upstream) fn target() -> (Target, ScriptedServer) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (output, input) = tokio::io::split(ours);
    let (reader, writer) = tokio::io::split(theirs);
    (
        Target::Stdio(Box::new(output), Box::new(input)),
        ScriptedServer { reader: BufReader::new(reader).lines(), writer },
    )
}

pub(in crate::upstream) fn options(eras: Eras) -> ConnectOptions {
    ConnectOptions { timeout: Duration::from_secs(60), eras }
}

/// Connects while `script` acts as the server.
pub(in crate::upstream) async fn connect_with(
    eras: Eras,
    script: impl AsyncFnOnce(&mut ScriptedServer),
) -> (Result<Upstream, UpstreamError>, ScriptedServer, mpsc::Receiver<Incoming>) {
    connect_with_slots(&Slots::shared(), eras, script).await
}

/// Connects with slots of the test instead of the shared ones.
pub(in crate::upstream) async fn connect_with_slots(
    slots: &Slots,
    eras: Eras,
    script: impl AsyncFnOnce(&mut ScriptedServer),
) -> (Result<Upstream, UpstreamError>, ScriptedServer, mpsc::Receiver<Incoming>) {
    let (target, mut server) = target();
    let (unrelated, incoming) = mpsc::channel(8);
    let connect = Upstream::connect_from(
        target,
        ClientSide { client: client_identity(), unrelated, slots: slots.clone() },
        options(eras),
    );
    let (upstream, ()) = tokio::join!(connect, script(&mut server));
    (upstream, server, incoming)
}

/// Returns a connection to a legacy server.
pub(in crate::upstream) async fn legacy() -> (Upstream, ScriptedServer, mpsc::Receiver<Incoming>) {
    let (upstream, server, incoming) = connect_with(Eras::Auto, ScriptedServer::negotiate_legacy).await;
    (upstream.unwrap(), server, incoming)
}

pub(in crate::upstream) fn call(method: &str, params: Value) -> OutgoingCall {
    OutgoingCall {
        method: method.to_owned(),
        params: Some(params),
        cancel: CancellationToken::new(),
        idle_timeout: Some(Duration::from_secs(10)),
        related: None,
    }
}

//! A server in memory, played by the test line by line.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream, Lines, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::upstream::large_message_slots::Slots;
use crate::upstream::rpc::Side;
use crate::upstream::{ClientIdentity, ConnectOptions, Eras, Incoming, Outgoing, Upstream, UpstreamError, Wire};

pub(in crate::upstream) struct Peer {
    reader: Lines<BufReader<ReadHalf<DuplexStream>>>,
    writer: WriteHalf<DuplexStream>,
}

impl Peer {
    /// What a client sends, as the next message.
    pub(in crate::upstream) async fn hear(&mut self) -> Value {
        let line = self.reader.next_line().await.unwrap().expect("the client is there");
        serde_json::from_str(&line).unwrap()
    }

    /// Whether the client has closed the connection.
    pub(in crate::upstream) async fn is_left(&mut self) -> bool {
        matches!(self.reader.next_line().await, Ok(None) | Err(_))
    }

    pub(in crate::upstream) async fn say(&mut self, message: Value) {
        self.say_raw(&format!("{message}\n")).await;
    }

    pub(in crate::upstream) async fn say_raw(&mut self, text: &str) {
        self.writer.write_all(text.as_bytes()).await.unwrap();
    }

    pub(in crate::upstream) async fn answer(&mut self, to: &Value, result: Value) {
        self.say(json!({"jsonrpc": "2.0", "id": to["id"], "result": result})).await;
    }

    pub(in crate::upstream) async fn fail(&mut self, to: &Value, code: i64, data: Value) {
        self.say(json!({"jsonrpc": "2.0", "id": to["id"], "error": {"code": code, "message": "no", "data": data}}))
            .await;
    }

    /// Plays the legacy handshake, from the question for the modern era on.
    pub(in crate::upstream) async fn be_legacy(&mut self) {
        let probe = self.hear().await;
        assert_eq!(probe["method"], "server/discover");
        self.fail(&probe, -32601, Value::Null).await;
        self.initialize("2025-06-18").await;
    }

    pub(in crate::upstream) async fn initialize(&mut self, version: &str) {
        let initialize = self.hear().await;
        assert_eq!(initialize["method"], "initialize");
        assert_eq!(initialize["params"]["protocolVersion"], "2025-11-25");
        let about = json!({"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "peer"}});
        self.answer(&initialize, about).await;
        assert_eq!(self.hear().await, json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
    }

    pub(in crate::upstream) async fn be_modern(&mut self, capabilities: Value) {
        let probe = self.hear().await;
        assert_eq!(probe["method"], "server/discover");
        self.answer(&probe, json!({"supportedVersions": ["2026-07-28"], "capabilities": capabilities})).await;
    }
}

pub(in crate::upstream) fn who() -> ClientIdentity {
    ClientIdentity { name: "test".into(), version: "0".into(), capabilities: json!({"elicitation": {}}) }
}

/// A wire and the peer at its other end.
pub(in crate::upstream) fn wire() -> (Wire, Peer) {
    let (ours, theirs) = tokio::io::duplex(64 * 1024);
    let (output, input) = tokio::io::split(ours);
    let (reader, writer) = tokio::io::split(theirs);
    (Wire::Lines(Box::new(output), Box::new(input)), Peer { reader: BufReader::new(reader).lines(), writer })
}

pub(in crate::upstream) fn options(eras: Eras) -> ConnectOptions {
    ConnectOptions { deadline: Duration::from_secs(60), eras }
}

/// Connects while `play` plays the server's part.
pub(in crate::upstream) async fn connect_with(
    eras: Eras,
    play: impl AsyncFnOnce(&mut Peer),
) -> (Result<Upstream, UpstreamError>, Peer, mpsc::Receiver<Incoming>) {
    connect_sharing(&Slots::shared(), eras, play).await
}

/// The same, with slots of the test's own.
pub(in crate::upstream) async fn connect_sharing(
    slots: &Slots,
    eras: Eras,
    play: impl AsyncFnOnce(&mut Peer),
) -> (Result<Upstream, UpstreamError>, Peer, mpsc::Receiver<Incoming>) {
    let (wire, mut peer) = wire();
    let (unrelated, incoming) = mpsc::channel(8);
    let connect = Upstream::connect_as(wire, Side { who: who(), unrelated, slots: slots.clone() }, options(eras));
    let (upstream, ()) = tokio::join!(connect, play(&mut peer));
    (upstream, peer, incoming)
}

/// A connection to a legacy peer.
pub(in crate::upstream) async fn legacy() -> (Upstream, Peer, mpsc::Receiver<Incoming>) {
    let (upstream, peer, incoming) = connect_with(Eras::Auto, Peer::be_legacy).await;
    (upstream.unwrap(), peer, incoming)
}

pub(in crate::upstream) fn call(method: &str, params: Value) -> Outgoing {
    Outgoing {
        method: method.to_owned(),
        params: Some(params),
        cancel: CancellationToken::new(),
        deadline: Some(Duration::from_secs(10)),
        related: None,
    }
}

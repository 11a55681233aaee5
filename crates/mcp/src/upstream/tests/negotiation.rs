//! Negotiation of the era with every kind of server.

use serde_json::{Value, json};

use super::scripted_server::{ScriptedServer, call, connect_with, legacy};
use crate::upstream::{Era, Eras, Incoming, UpstreamError};

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

#[tokio::test]
async fn modern_server_needs_no_handshake() {
    let (upstream, mut server, _incoming) = connect_with(Eras::Auto, async |server: &mut ScriptedServer| {
        let probe = server.recv().await;
        assert_eq!(probe["method"], "server/discover");
        let meta = &probe["params"]["_meta"];
        assert_eq!(meta[VERSION], "2026-07-28");
        assert_eq!(meta["io.modelcontextprotocol/clientInfo"], json!({"name": "test", "version": "0"}));
        assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({"elicitation": {}}));
        let description = json!({"supportedVersions": ["2026-07-28", "2025-11-25"], "capabilities": {}, "odd": 1});
        server.respond(&probe, description).await;
    })
    .await;
    let upstream = upstream.unwrap();
    assert_eq!(upstream.era(), Era::Modern("2026-07-28".into()));
    assert_eq!(upstream.description()["odd"], 1);
    let (result, ()) = tokio::join!(upstream.call(call("tools/call", json!({"name": "t"}))), async {
        let request = server.recv().await;
        assert_eq!(request["params"]["_meta"][VERSION], "2026-07-28");
        server.respond(&request, json!({"resultType": "input_required", "inputRequests": {"a": {}}})).await;
    });
    assert_eq!(result.unwrap(), json!({"resultType": "input_required", "inputRequests": {"a": {}}}));
    let (is_alive, ()) = tokio::join!(upstream.ping(std::time::Duration::from_secs(5)), async {
        let probe = server.recv().await;
        assert_eq!(probe["method"], "server/discover");
        server.respond(&probe, json!({})).await;
    });
    assert!(is_alive);
}

#[tokio::test]
async fn legacy_server_gets_handshake() {
    let (upstream, mut server, _incoming) = legacy().await;
    assert_eq!(upstream.era(), Era::Legacy("2025-06-18".into()));
    assert_eq!(upstream.description()["serverInfo"]["name"], "server");
    let (result, ()) = tokio::join!(upstream.call(call("tools/list", json!({}))), async {
        let request = server.recv().await;
        assert_eq!(request["params"], json!({}));
        server.respond(&request, json!({"tools": []})).await;
    });
    assert_eq!(result.unwrap(), json!({"tools": []}));
    let (is_alive, ()) = tokio::join!(upstream.ping(std::time::Duration::from_secs(5)), async {
        let ping = server.recv().await;
        assert_eq!(ping["method"], "ping");
        server.fail(&ping, -32601, Value::Null).await;
    });
    assert!(is_alive);
}

#[tokio::test]
async fn every_known_legacy_version_is_accepted_and_no_other() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let (upstream, ..) =
            connect_with(Eras::LegacyOnly, async |server: &mut ScriptedServer| server.initialize(version).await).await;
        assert_eq!(upstream.unwrap().era(), Era::Legacy(version.into()));
    }
    let (upstream, ..) = connect_with(Eras::LegacyOnly, async |server: &mut ScriptedServer| {
        let initialize = server.recv().await;
        server.respond(&initialize, json!({"protocolVersion": "1999-01-01"})).await;
    })
    .await;
    assert!(matches!(upstream, Err(UpstreamError::Refused(reason)) if reason.contains("1999-01-01")));
}

#[tokio::test(start_paused = true)]
async fn server_that_ignores_probe_is_legacy() {
    let (upstream, ..) = connect_with(Eras::Auto, async |server: &mut ScriptedServer| {
        assert_eq!(server.recv().await["method"], "server/discover");
        server.initialize("2025-03-26").await;
    })
    .await;
    assert_eq!(upstream.unwrap().era(), Era::Legacy("2025-03-26".into()));
}

#[tokio::test(start_paused = true)]
async fn slow_modern_server_is_recognized() {
    let (upstream, ..) = connect_with(Eras::Auto, async |server: &mut ScriptedServer| {
        let probe = server.recv().await;
        let initialize = server.recv().await;
        assert_eq!(initialize["method"], "initialize");
        server.respond(&probe, json!({"supportedVersions": ["2026-07-28"], "capabilities": {}})).await;
        server.fail(&initialize, -32022, json!({"supported": ["2026-07-28"]})).await;
    })
    .await;
    assert!(upstream.unwrap().era().is_modern());
}

#[tokio::test]
async fn version_list_of_server_decides_era() {
    // The list has our version.
    let (upstream, ..) = connect_with(Eras::Auto, async |server: &mut ScriptedServer| {
        let probe = server.recv().await;
        server.fail(&probe, -32022, json!({"supported": ["2026-07-28"]})).await;
        server.negotiate_modern(json!({})).await;
    })
    .await;
    assert!(upstream.unwrap().era().is_modern());
    // Only older versions.
    let (upstream, ..) = connect_with(Eras::Auto, async |server: &mut ScriptedServer| {
        let probe = server.recv().await;
        server.fail(&probe, -32022, json!({"supported": ["2025-06-18"]})).await;
        server.initialize("2025-06-18").await;
    })
    .await;
    assert!(!upstream.unwrap().era().is_modern());
    // Only newer versions.
    let (upstream, ..) = connect_with(Eras::Auto, async |server: &mut ScriptedServer| {
        let probe = server.recv().await;
        server.fail(&probe, -32022, json!({"supported": ["2031-01-01"]})).await;
    })
    .await;
    assert!(matches!(upstream, Err(UpstreamError::Refused(reason)) if reason.contains("2031-01-01")));
    // A legacy server that knows `server/discover` lists no modern version.
    let (upstream, ..) = connect_with(Eras::Auto, async |server: &mut ScriptedServer| {
        let probe = server.recv().await;
        server.respond(&probe, json!({"supportedVersions": ["2025-11-25"]})).await;
        server.initialize("2025-11-25").await;
    })
    .await;
    assert_eq!(upstream.unwrap().era(), Era::Legacy("2025-11-25".into()));
}

#[tokio::test]
async fn server_that_rejects_initialize_with_modern_versions_is_probed_again() {
    let (upstream, ..) = connect_with(Eras::Auto, async |server: &mut ScriptedServer| {
        let probe = server.recv().await;
        server.fail(&probe, -32603, Value::Null).await;
        let initialize = server.recv().await;
        server.fail(&initialize, -32022, json!({"supported": ["2026-07-28"]})).await;
        server.negotiate_modern(json!({})).await;
    })
    .await;
    assert!(upstream.unwrap().era().is_modern());
}

#[tokio::test]
async fn server_that_exits_on_probe_can_be_connected_as_legacy() {
    let (target, mut server) = super::scripted_server::target();
    let (unrelated, _incoming) = tokio::sync::mpsc::channel(1);
    let options = super::scripted_server::options(Eras::Auto);
    let connect =
        crate::upstream::Upstream::connect(target, super::scripted_server::client_identity(), unrelated, options);
    let (upstream, ()) = tokio::join!(connect, async move {
        server.recv().await;
        drop(server);
    });
    assert!(matches!(upstream, Err(UpstreamError::ClosedDuringProbe(_))));
    let (upstream, ..) =
        connect_with(Eras::LegacyOnly, async |server: &mut ScriptedServer| server.initialize("2025-06-18").await).await;
    assert!(upstream.is_ok());
}

#[tokio::test(start_paused = true)]
async fn list_changes_of_modern_server_are_subscribed() {
    let capabilities = json!({"tools": {"listChanged": true}, "prompts": {}, "resources": {"listChanged": true}});
    let (upstream, mut server, mut incoming) =
        connect_with(Eras::Auto, async |server: &mut ScriptedServer| server.negotiate_modern(capabilities).await).await;
    let _upstream = upstream.unwrap();
    let listen = server.recv().await;
    assert_eq!(listen["method"], "subscriptions/listen");
    assert_eq!(listen["params"]["notifications"], json!({"toolsListChanged": true, "resourcesListChanged": true}));
    let meta = json!({"io.modelcontextprotocol/subscriptionId": listen["id"]});
    server
        .send(
            json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {"_meta": meta}}),
        )
        .await;
    server
        .send(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": meta}}))
        .await;
    let Some(Incoming::Notification { method, params }) = incoming.recv().await else { panic!() };
    assert_eq!((method.as_str(), params), ("notifications/tools/list_changed", None));
    // A stream that ends is reopened, and every list counts as changed.
    server.respond(&listen, json!({"resultType": "complete"})).await;
    for expected in ["notifications/tools/list_changed", "notifications/resources/list_changed"] {
        let Some(Incoming::Notification { method, .. }) = incoming.recv().await else { panic!() };
        assert_eq!(method, expected);
    }
    assert_eq!(server.recv().await["method"], "subscriptions/listen");
}

//! Which era is agreed on, with servers of every kind.

use serde_json::{Value, json};

use super::peer::{Peer, call, connect_with, legacy};
use crate::upstream::{Era, Eras, Incoming, UpstreamError};

const VERSION: &str = "io.modelcontextprotocol/protocolVersion";

#[tokio::test]
async fn a_modern_server_is_asked_for_no_handshake() {
    let (upstream, mut peer, _incoming) = connect_with(Eras::Auto, async |peer: &mut Peer| {
        let probe = peer.hear().await;
        assert_eq!(probe["method"], "server/discover");
        let meta = &probe["params"]["_meta"];
        assert_eq!(meta[VERSION], "2026-07-28");
        assert_eq!(meta["io.modelcontextprotocol/clientInfo"], json!({"name": "test", "version": "0"}));
        assert_eq!(meta["io.modelcontextprotocol/clientCapabilities"], json!({"elicitation": {}}));
        let about = json!({"supportedVersions": ["2026-07-28", "2025-11-25"], "capabilities": {}, "odd": 1});
        peer.answer(&probe, about).await;
    })
    .await;
    let upstream = upstream.unwrap();
    assert_eq!(upstream.era(), Era::Modern("2026-07-28".into()));
    assert_eq!(upstream.about()["odd"], 1);
    let (result, ()) = tokio::join!(upstream.call(call("tools/call", json!({"name": "t"}))), async {
        let request = peer.hear().await;
        assert_eq!(request["params"]["_meta"][VERSION], "2026-07-28");
        peer.answer(&request, json!({"resultType": "input_required", "inputRequests": {"a": {}}})).await;
    });
    assert_eq!(result.unwrap(), json!({"resultType": "input_required", "inputRequests": {"a": {}}}));
    let (is_alive, ()) = tokio::join!(upstream.ping(std::time::Duration::from_secs(5)), async {
        let probe = peer.hear().await;
        assert_eq!(probe["method"], "server/discover");
        peer.answer(&probe, json!({})).await;
    });
    assert!(is_alive);
}

#[tokio::test]
async fn a_legacy_server_is_shaken_hands_with() {
    let (upstream, mut peer, _incoming) = legacy().await;
    assert_eq!(upstream.era(), Era::Legacy("2025-06-18".into()));
    assert_eq!(upstream.about()["serverInfo"]["name"], "peer");
    let (result, ()) = tokio::join!(upstream.call(call("tools/list", json!({}))), async {
        let request = peer.hear().await;
        assert_eq!(request["params"], json!({}));
        peer.answer(&request, json!({"tools": []})).await;
    });
    assert_eq!(result.unwrap(), json!({"tools": []}));
    let (is_alive, ()) = tokio::join!(upstream.ping(std::time::Duration::from_secs(5)), async {
        let ping = peer.hear().await;
        assert_eq!(ping["method"], "ping");
        peer.fail(&ping, -32601, Value::Null).await;
    });
    assert!(is_alive);
}

#[tokio::test]
async fn every_legacy_version_is_accepted_and_no_other() {
    for version in ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"] {
        let (upstream, ..) =
            connect_with(Eras::LegacyOnly, async |peer: &mut Peer| peer.initialize(version).await).await;
        assert_eq!(upstream.unwrap().era(), Era::Legacy(version.into()));
    }
    let (upstream, ..) = connect_with(Eras::LegacyOnly, async |peer: &mut Peer| {
        let initialize = peer.hear().await;
        peer.answer(&initialize, json!({"protocolVersion": "1999-01-01"})).await;
    })
    .await;
    assert!(matches!(upstream, Err(UpstreamError::Refused(why)) if why.contains("1999-01-01")));
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ignores_the_question_is_taken_for_legacy() {
    let (upstream, ..) = connect_with(Eras::Auto, async |peer: &mut Peer| {
        assert_eq!(peer.hear().await["method"], "server/discover");
        peer.initialize("2025-03-26").await;
    })
    .await;
    assert_eq!(upstream.unwrap().era(), Era::Legacy("2025-03-26".into()));
}

#[tokio::test(start_paused = true)]
async fn a_modern_server_that_is_slow_to_start_is_modern() {
    let (upstream, ..) = connect_with(Eras::Auto, async |peer: &mut Peer| {
        let probe = peer.hear().await;
        let initialize = peer.hear().await;
        assert_eq!(initialize["method"], "initialize");
        peer.answer(&probe, json!({"supportedVersions": ["2026-07-28"], "capabilities": {}})).await;
        peer.fail(&initialize, -32022, json!({"supported": ["2026-07-28"]})).await;
    })
    .await;
    assert!(upstream.unwrap().era().is_modern());
}

#[tokio::test]
async fn a_server_that_names_its_versions_is_believed() {
    // It speaks ours after all.
    let (upstream, ..) = connect_with(Eras::Auto, async |peer: &mut Peer| {
        let probe = peer.hear().await;
        peer.fail(&probe, -32022, json!({"supported": ["2026-07-28"]})).await;
        peer.be_modern(json!({})).await;
    })
    .await;
    assert!(upstream.unwrap().era().is_modern());
    // Only older ones.
    let (upstream, ..) = connect_with(Eras::Auto, async |peer: &mut Peer| {
        let probe = peer.hear().await;
        peer.fail(&probe, -32022, json!({"supported": ["2025-06-18"]})).await;
        peer.initialize("2025-06-18").await;
    })
    .await;
    assert!(!upstream.unwrap().era().is_modern());
    // Only newer ones.
    let (upstream, ..) = connect_with(Eras::Auto, async |peer: &mut Peer| {
        let probe = peer.hear().await;
        peer.fail(&probe, -32022, json!({"supported": ["2031-01-01"]})).await;
    })
    .await;
    assert!(matches!(upstream, Err(UpstreamError::Refused(why)) if why.contains("2031-01-01")));
    // A list without any modern version is a legacy server that knows the question.
    let (upstream, ..) = connect_with(Eras::Auto, async |peer: &mut Peer| {
        let probe = peer.hear().await;
        peer.answer(&probe, json!({"supportedVersions": ["2025-11-25"]})).await;
        peer.initialize("2025-11-25").await;
    })
    .await;
    assert_eq!(upstream.unwrap().era(), Era::Legacy("2025-11-25".into()));
}

#[tokio::test]
async fn a_server_that_turns_out_modern_in_the_handshake_is_asked_again() {
    let (upstream, ..) = connect_with(Eras::Auto, async |peer: &mut Peer| {
        let probe = peer.hear().await;
        peer.fail(&probe, -32603, Value::Null).await;
        let initialize = peer.hear().await;
        peer.fail(&initialize, -32022, json!({"supported": ["2026-07-28"]})).await;
        peer.be_modern(json!({})).await;
    })
    .await;
    assert!(upstream.unwrap().era().is_modern());
}

#[tokio::test]
async fn a_server_that_dies_of_the_question_can_be_connected_without_it() {
    let (wire, mut peer) = super::peer::wire();
    let (unrelated, _incoming) = tokio::sync::mpsc::channel(1);
    let options = super::peer::options(Eras::Auto);
    let connect = crate::upstream::Upstream::connect_with(wire, super::peer::who(), unrelated, options);
    let (upstream, ()) = tokio::join!(connect, async move {
        peer.hear().await;
        drop(peer);
    });
    assert!(matches!(upstream, Err(UpstreamError::EndedInProbe(_))));
    let (upstream, ..) =
        connect_with(Eras::LegacyOnly, async |peer: &mut Peer| peer.initialize("2025-06-18").await).await;
    assert!(upstream.is_ok());
}

#[tokio::test(start_paused = true)]
async fn the_changes_of_a_modern_server_are_listened_to() {
    let capabilities = json!({"tools": {"listChanged": true}, "prompts": {}, "resources": {"listChanged": true}});
    let (upstream, mut peer, mut incoming) =
        connect_with(Eras::Auto, async |peer: &mut Peer| peer.be_modern(capabilities).await).await;
    let _upstream = upstream.unwrap();
    let listen = peer.hear().await;
    assert_eq!(listen["method"], "subscriptions/listen");
    assert_eq!(listen["params"]["notifications"], json!({"toolsListChanged": true, "resourcesListChanged": true}));
    let meta = json!({"io.modelcontextprotocol/subscriptionId": listen["id"]});
    peer.say(
        json!({"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": {"_meta": meta}}),
    )
    .await;
    peer.say(json!({"jsonrpc": "2.0", "method": "notifications/tools/list_changed", "params": {"_meta": meta}})).await;
    let Some(Incoming::Notification { method, params }) = incoming.recv().await else { panic!() };
    assert_eq!((method.as_str(), params), ("notifications/tools/list_changed", None));
    // Ended, it is opened again, and what changed meanwhile is not missed.
    peer.answer(&listen, json!({"resultType": "complete"})).await;
    for expected in ["notifications/tools/list_changed", "notifications/resources/list_changed"] {
        let Some(Incoming::Notification { method, .. }) = incoming.recv().await else { panic!() };
        assert_eq!(method, expected);
    }
    assert_eq!(peer.hear().await["method"], "subscriptions/listen");
}

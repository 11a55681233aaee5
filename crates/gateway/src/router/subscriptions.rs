//! Subscriptions to resources, log messages and changed lists.

use ringfence_mcp::client::Context;
use ringfence_mcp::era::SUBSCRIPTION_KEY;
use ringfence_mcp::rpc::{Outcome, RpcError};
use ringfence_store::PinKind;
use serde_json::{Value, json};

use super::Gateway;
use crate::authorize::Action;
use crate::catalogue::ListKind;

impl Gateway {
    /// Subscribes a legacy client to a resource, or unsubscribes it.
    pub(super) async fn subscribe(&self, method: &str, params: Value, context: &Context) -> Outcome {
        self.authorize(Action::UseServers, context)?;
        let Some(hosting) = self.servers() else { return Err(RpcError::method_not_found(method)) };
        let uri = params["uri"].as_str().unwrap_or_default().to_owned();
        let route = self.resource_route(hosting, &uri)?;
        let is_subscribing = method == "resources/subscribe";
        if is_subscribing && context.client.as_ref().is_some_and(|client| !client.subscribe(&uri)) {
            return Err(RpcError::new(RpcError::INVALID_REQUEST, "the client has too many subscriptions"));
        }
        let item = (Some(PinKind::Resource), &route);
        let result = self.relay(hosting, item, method, params, self.deadline(), context).await;
        if let Some(client) = context.client.as_ref().filter(|_| !is_subscribing || result.is_err()) {
            client.unsubscribe(&uri);
        }
        result
    }

    pub(super) async fn set_log_level(&self, params: Value, context: &Context) -> Outcome {
        let Some(hosting) = self.servers().filter(|hosting| !hosting.is_empty()) else {
            return Err(RpcError::method_not_found("logging/setLevel"));
        };
        if let (Some(client), Some(level)) = (&context.client, params["level"].as_str()) {
            client.set_log_level(level);
        }
        hosting.set_log_level(&self.authorizer, params, context).await
    }

    /// Notifies a modern client of changed lists until it disconnects.
    pub(super) async fn listen(&self, params: &Value, context: &Context) -> Outcome {
        let Some(hosting) = self.servers().filter(|hosting| !hosting.is_empty()) else {
            return Err(RpcError::method_not_found("subscriptions/listen"));
        };
        let requested: Vec<ListKind> =
            ListKind::ALL.into_iter().filter(|kind| params["notifications"][kind.filter()] == true).collect();
        let accepted: Value = requested.iter().map(|kind| (kind.filter().to_owned(), json!(true))).collect();
        let meta = json!({SUBSCRIPTION_KEY: context.request});
        let acknowledged = json!({"_meta": meta, "notifications": accepted});
        let mut changes = hosting.changes();
        let mut before = *changes.borrow_and_update();
        context.sink.notify("notifications/subscriptions/acknowledged", Some(acknowledged));
        loop {
            tokio::select! {
                () = context.cancel.cancelled() => break,
                changed = changes.changed() => if changed.is_err() { break },
            }
            let now = *changes.borrow_and_update();
            for kind in now.since(before).filter(|kind| requested.contains(kind)) {
                context.sink.notify(kind.notification(), Some(json!({"_meta": meta})));
            }
            before = now;
        }
        Ok(json!({"resultType": "complete", "_meta": meta}))
    }
}

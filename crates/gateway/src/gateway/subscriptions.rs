//! What clients want to be told of unasked.

use serde_json::{Value, json};

use super::Gateway;
use crate::client::Context;
use crate::era::SUBSCRIPTION_KEY;
use crate::hosting::Kind as List;
use crate::policy::Action;
use crate::rpc::{Outcome, RpcError};

impl Gateway {
    pub(super) async fn subscribe(&self, method: &str, params: Value, context: &Context) -> Outcome {
        self.permit(Action::UseServers, context)?;
        let Some(hosting) = self.servers() else { return Err(RpcError::method_not_found(method)) };
        let uri = params["uri"].as_str().unwrap_or_default().to_owned();
        let within = self.time();
        let server = self.server_of(hosting, &uri, within, context).await?;
        let is_subscribing = method == "resources/subscribe";
        if is_subscribing && context.client.as_ref().is_some_and(|client| !client.subscribe(&uri)) {
            return Err(RpcError::new(RpcError::INVALID_REQUEST, "too many resources are subscribed to"));
        }
        let result = hosting.pass(&server, method, params, within, context).await;
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
        hosting.set_log_level(&self.profile, params, context).await
    }

    /// Tells a modern client of changes until it goes away.
    pub(super) async fn listen(&self, params: &Value, context: &Context) -> Outcome {
        let Some(hosting) = self.servers().filter(|hosting| !hosting.is_empty()) else {
            return Err(RpcError::method_not_found("subscriptions/listen"));
        };
        let wanted: Vec<List> =
            List::ALL.into_iter().filter(|kind| params["notifications"][kind.filter()] == true).collect();
        let accepted: Value = wanted.iter().map(|kind| (kind.filter().to_owned(), json!(true))).collect();
        let meta = json!({SUBSCRIPTION_KEY: context.request});
        let acknowledged = json!({"_meta": meta, "notifications": accepted});
        let mut changes = hosting.changes();
        let mut before = *changes.borrow_and_update();
        context.outlet.notify("notifications/subscriptions/acknowledged", Some(acknowledged));
        loop {
            tokio::select! {
                () = context.cancel.cancelled() => break,
                changed = changes.changed() => if changed.is_err() { break },
            }
            let now = *changes.borrow_and_update();
            for kind in now.since(before).filter(|kind| wanted.contains(kind)) {
                context.outlet.notify(kind.notification(), Some(json!({"_meta": meta})));
            }
            before = now;
        }
        Ok(json!({"resultType": "complete", "_meta": meta}))
    }
}

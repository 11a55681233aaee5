//! Clients that receive notifications of changed lists. Clients of the newer era subscribe with `subscriptions/listen`;
//! those of the older era receive the notifications of their own calls without a subscription.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use ringfence_core::sync::Mutex;
use rmcp::RoleServer;
use rmcp::model::ProtocolVersion;
use rmcp::service::{RequestContext, SubscriptionContext, SubscriptionSink};

use super::script::List;

#[derive(Default)]
pub(super) struct Subscribers {
    sinks: Mutex<HashMap<u64, SubscriptionSink>>,
    next_id: AtomicU64,
}

impl Subscribers {
    /// Adds a subscription, and returns when it ends.
    pub(super) async fn listen(&self, context: SubscriptionContext) {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        self.sinks.lock().insert(id, context.sink().clone());
        context.cancelled().await;
        self.sinks.lock().remove(&id);
    }

    /// Notifies all subscribers, and the caller if it is of the older era. Those that have gone are passed over.
    pub(super) async fn notify(&self, list: List, context: &RequestContext<RoleServer>) {
        let sinks: Vec<_> = self.sinks.lock().values().cloned().collect();
        for sink in sinks {
            let _ = match list {
                List::Tools => sink.notify_tool_list_changed().await,
                List::Prompts => sink.notify_prompt_list_changed().await,
            };
        }
        if context.protocol_version().is_some_and(|version| version < ProtocolVersion::V_2026_07_28) {
            let _ = match list {
                List::Tools => context.peer.notify_tool_list_changed().await,
                List::Prompts => context.peer.notify_prompt_list_changed().await,
            };
        }
    }
}

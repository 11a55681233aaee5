//! Forwards messages of servers that belong to no request: changed lists, updated resources, log messages.

use std::sync::{Arc, Weak};

use ringfence_mcp::client::Client;
use ringfence_mcp::rpc::RpcError;
use ringfence_mcp::sanitize;
use ringfence_mcp::upstream::Incoming;
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::Inner;
use crate::catalogue::{Catalogue, ListKind, Withheld};
use crate::connection::ServerMessage;
use crate::relay::severity;

/// Counts the changes of each list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) version: u64,
    /// The last change of the fleet that is included.
    pub(super) fleet: u64,
    counts: [u64; 3],
}

impl Changes {
    fn count(&mut self, kinds: &[ListKind]) {
        self.version += 1;
        for kind in kinds {
            self.counts[*kind as usize] += 1;
        }
    }

    /// The lists that have changed since an earlier state.
    pub(crate) fn since(self, before: Self) -> impl Iterator<Item = ListKind> {
        ListKind::ALL.into_iter().filter(move |kind| self.counts[*kind as usize] != before.counts[*kind as usize])
    }
}

/// Runs until hosting ends.
pub(super) async fn forward(
    hosting: Weak<Inner>,
    mut fleet: watch::Receiver<u64>,
    mut messages: mpsc::Receiver<ServerMessage>,
) {
    let mut last_offer = Vec::new();
    loop {
        let message = tokio::select! {
            changed = fleet.changed() => match changed {
                Ok(()) => None,
                Err(_) => return,
            },
            message = messages.recv() => match message {
                Some(message) => Some(message),
                None => return,
            },
        };
        let Some(hosting) = hosting.upgrade() else { return };
        match message {
            None => {
                let current = *fleet.borrow_and_update();
                hosting.on_fleet_change(current, &mut last_offer).await;
            }
            Some(ServerMessage::ListChanged(kind)) => {
                let changed = hosting.update_catalogues();
                hosting.lists_changed(&[kind]);
                hosting.catalogues.save(&changed).await;
            }
            Some(ServerMessage::Other(Incoming::Notification { method, params })) => {
                hosting.notify_clients(&method, params.as_ref());
            }
            Some(ServerMessage::Other(Incoming::Request { method, reply, .. })) => {
                let message = format!("{method} belongs to no call of a client");
                let _ = reply.send(Err(RpcError::new(RpcError::METHOD_NOT_FOUND, message)));
            }
        }
    }
}

/// The offered servers with their catalogues.
type Offer = Vec<(String, Arc<Catalogue>, Withheld)>;

impl Inner {
    /// Handles a server that came, went or changed.
    async fn on_fleet_change(&self, current: u64, last_offer: &mut Offer) {
        let servers: Vec<String> = self.fleet.all().into_iter().map(|info| info.uuid).collect();
        if let Err(error) = self.pins.refresh(&servers).await {
            tracing::error!("cannot load the pins of the servers: {error}");
        }
        let listed: Vec<String> =
            self.source.current().servers.iter().map(|listed| listed.entry.uuid.clone()).collect();
        if let Err(error) = self.catalogues.load(&listed).await {
            tracing::error!("cannot load the stored tools of the servers: {error}");
        }
        let changed = self.update_catalogues();
        self.changes.send_modify(|changes| changes.fleet = current);
        // Not every change of the fleet is visible to clients.
        let offer = self.offer();
        if std::mem::replace(last_offer, offer.clone()) != offer {
            self.lists_changed(&ListKind::ALL);
        }
        self.catalogues.save(&changed).await;
        self.catalogues.retain(&listed).await;
    }

    fn offer(&self) -> Offer {
        let members = self.members().into_iter();
        members.map(|member| (member.name, member.catalogue, member.withheld)).collect()
    }

    fn lists_changed(&self, kinds: &[ListKind]) {
        self.changes.send_modify(|changes| changes.count(kinds));
        self.views.lock().clear();
        for (_, client) in self.clients.all() {
            for kind in kinds {
                client.stream().notify(kind.notification(), None);
            }
        }
    }

    fn notify_clients(&self, method: &str, params: Option<&Value>) {
        let clients = self.clients.all();
        let is_subscribed = |client: &Client| match method {
            "notifications/resources/updated" => {
                let uri = params.and_then(|params| params["uri"].as_str());
                uri.is_some_and(|uri| client.is_subscribed(uri))
            }
            "notifications/message" => {
                let level = params.and_then(|params| params["level"].as_str()).unwrap_or_default();
                client.log_level().is_some_and(|minimum| severity(level) >= severity(&minimum))
            }
            _ => false,
        };
        // A log message may be about the call of another principal: it is sent only if all clients are of one.
        let has_several_principals = clients.iter().any(|(principal, _)| *principal != clients[0].0);
        if method == "notifications/message" && has_several_principals {
            return;
        }
        let mut sanitized = params.cloned();
        sanitized.as_mut().into_iter().for_each(sanitize::message);
        for (_, client) in clients.iter().filter(|(_, client)| is_subscribed(client)) {
            client.stream().notify(method, sanitized.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_changed_lists_are_reported() {
        let mut changes = Changes::default();
        let before = changes;
        changes.count(&[ListKind::Tools]);
        changes.count(&[ListKind::Prompts]);
        assert_eq!(changes.since(before).collect::<Vec<_>>(), [ListKind::Tools, ListKind::Prompts]);
        assert_eq!(changes.since(changes).count(), 0);
    }
}

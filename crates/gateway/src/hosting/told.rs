//! Tells clients what servers say unasked: that lists have changed, that a resource was updated, log messages.

use std::sync::{Arc, Weak};

use serde_json::Value;
use tokio::sync::{mpsc, watch};

use super::catalogue::{Catalogue, Kind};
use super::connect::Said;
use super::pins::Held;
use super::relay::severity;
use super::{Inner, lock};
use crate::clean;
use crate::client::Client;
use crate::rpc::RpcError;
use crate::upstream::Incoming;

/// How often each list has changed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Changes {
    pub(crate) version: u64,
    /// The last change of the fleet that is in it.
    pub(super) fleet: u64,
    counts: [u64; 3],
}

impl Changes {
    fn count(&mut self, kinds: &[Kind]) {
        self.version += 1;
        for kind in kinds {
            self.counts[*kind as usize] += 1;
        }
    }

    /// The lists that have changed since then.
    pub(crate) fn since(self, before: Self) -> impl Iterator<Item = Kind> {
        Kind::ALL.into_iter().filter(move |kind| self.counts[*kind as usize] != before.counts[*kind as usize])
    }
}

/// Listens until hosting ends.
pub(super) async fn tell(hosting: Weak<Inner>, mut fleet: watch::Receiver<u64>, mut heard: mpsc::Receiver<Said>) {
    let mut last = Vec::new();
    loop {
        let said = tokio::select! {
            changed = fleet.changed() => match changed {
                Ok(()) => None,
                Err(_) => return,
            },
            said = heard.recv() => match said {
                Some(said) => Some(said),
                None => return,
            },
        };
        let Some(hosting) = hosting.upgrade() else { return };
        match said {
            // A server came, went or changed.
            None => {
                let seen = *fleet.borrow_and_update();
                let servers: Vec<String> = hosting.fleet.all().into_iter().map(|info| info.uuid).collect();
                if let Err(error) = hosting.pins.refresh(&servers).await {
                    tracing::error!("the pins of the servers cannot be read: {error}");
                }
                let listed: Vec<String> =
                    hosting.source.current().servers.iter().map(|listed| listed.entry.uuid.clone()).collect();
                if let Err(error) = hosting.remembered.look_up(&listed).await {
                    tracing::error!("what servers offered before cannot be read: {error}");
                }
                let new = hosting.remember();
                hosting.changes.send_modify(|changes| changes.fleet = seen);
                // The fleet also tells of what no client can see.
                let offered = hosting.offered();
                if std::mem::replace(&mut last, offered.clone()) != offered {
                    hosting.changed(&Kind::ALL);
                }
                hosting.remembered.write_down(&new).await;
                hosting.remembered.keep_only(&listed).await;
            }
            Some(Said::Changed(kind)) => {
                let new = hosting.remember();
                hosting.changed(&[kind]);
                hosting.remembered.write_down(&new).await;
            }
            Some(Said::Other(Incoming::Notification { method, params })) => hosting.pass_on(&method, params.as_ref()),
            Some(Said::Other(Incoming::Request { method, answer, .. })) => {
                let refusal = format!("{method} belongs to no call that a client waits for");
                let _ = answer.send(Err(RpcError::new(RpcError::METHOD_NOT_FOUND, refusal)));
            }
        }
    }
}

impl Inner {
    /// What is offered now, in short: which servers, and what of each.
    fn offered(&self) -> Vec<(String, Arc<Catalogue>, Held)> {
        let members = self.members().into_iter();
        members.map(|member| (member.name, member.catalogue, member.held)).collect()
    }

    pub(super) fn changed(&self, kinds: &[Kind]) {
        self.changes.send_modify(|changes| changes.count(kinds));
        lock(&self.views).clear();
        for (_, client) in self.clients.all() {
            for kind in kinds {
                client.stream().notify(kind.notification(), None);
            }
        }
    }

    fn pass_on(&self, method: &str, params: Option<&Value>) {
        let clients = self.clients.all();
        let is_for = |client: &Client| match method {
            "notifications/resources/updated" => {
                let uri = params.and_then(|params| params["uri"].as_str());
                uri.is_some_and(|uri| client.is_subscribed(uri))
            }
            "notifications/message" => {
                let level = params.and_then(|params| params["level"].as_str()).unwrap_or_default();
                client.log_level().is_some_and(|wanted| severity(level) >= severity(&wanted))
            }
            _ => false,
        };
        // A log message may tell of another's call: it goes out only where all clients are one's own.
        let is_shared = clients.iter().any(|(principal, _)| *principal != clients[0].0);
        if method == "notifications/message" && is_shared {
            return;
        }
        let mut cleaned = params.cloned();
        cleaned.as_mut().into_iter().for_each(clean::message);
        for (_, client) in clients.iter().filter(|(_, client)| is_for(client)) {
            client.stream().notify(method, cleaned.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_changed_is_told() {
        let mut changes = Changes::default();
        let before = changes;
        changes.count(&[Kind::Tools]);
        changes.count(&[Kind::Prompts]);
        assert_eq!(changes.since(before).collect::<Vec<_>>(), [Kind::Tools, Kind::Prompts]);
        assert_eq!(changes.since(changes).count(), 0);
    }
}

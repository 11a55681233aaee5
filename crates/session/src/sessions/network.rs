//! Shows and extends what a session may reach while it runs.

use ringfence_backend::EgressPortError;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_egress::{Egress, Rule};
use ringfence_store::StoreError;

use super::{Sessions, events};
use crate::session::SessionHandle;

/// Maximum number of rules of a session.
const MAX_RULES: usize = 256;

impl Sessions {
    /// The rules of a session's network.
    pub fn allowed(&self, principal: &Principal, id: &SessionId) -> Result<Vec<Rule>, Failure> {
        let find = || Ok(network(&self.find(principal, id)?)?.rules());
        find().map_err(|failure| self.refused(principal, Some(id), failure))
    }

    /// Adds rules to the network of a session, and returns all of its rules. Connections and lookups use them
    /// immediately. They last as long as the session, also if the server dies.
    ///
    /// The caller has decided that the principal may do this.
    pub async fn allow(&self, principal: &Principal, id: &SessionId, rules: Vec<Rule>) -> Result<Vec<Rule>, Failure> {
        self.try_allow(principal, id, rules).await.map_err(|failure| self.refused(principal, Some(id), failure))
    }

    async fn try_allow(&self, principal: &Principal, id: &SessionId, rules: Vec<Rule>) -> Result<Vec<Rule>, Failure> {
        let handle = self.find(principal, id)?;
        let existing = network(&handle)?.rules();
        let new: Vec<Rule> = rules.into_iter().filter(|rule| !existing.contains(rule)).collect();
        if new.is_empty() {
            return Ok(existing);
        }
        if existing.len() + new.len() > MAX_RULES {
            let message = format!("a session may have at most {MAX_RULES} rules for its network");
            return Err(Failure::new(Kind::ResourceLimit, message).hint("use a wildcard, such as *.example.com"));
        }
        self.store_rules(principal, &handle, &new).await?;
        // The instance may have been replaced in the meantime.
        let handle = self.find(principal, id)?;
        handle.apply_added_rules().await.map_err(|failure| {
            failure.hint("the rule was added: programs that use the proxy variables reach the port")
        })?;
        Ok(network(&handle)?.rules())
    }

    /// Stores the rules that the user of a call has added by answering questions.
    pub(super) async fn store_answers(&self, principal: &Principal, handle: &SessionHandle) {
        let Some(egress) = &handle.instance.egress else { return };
        let configured = self.0.settings.network.rules(&handle.descriptor.template.name);
        let mut new = egress.rules();
        {
            let added = handle.added_rules.lock();
            new.retain(|rule| !configured.contains(rule) && !added.contains(rule));
        }
        if new.is_empty() {
            return;
        }
        if let Err(failure) = self.store_rules(principal, handle, &new).await {
            tracing::warn!("session {}: {failure}", handle.descriptor.id);
        }
    }

    async fn store_rules(&self, principal: &Principal, handle: &SessionHandle, new: &[Rule]) -> Result<(), Failure> {
        let id = &handle.descriptor.id;
        if let Some(store) = &self.0.store {
            let failed = |error: StoreError| Failure::new(Kind::Busy, format!("the rules cannot be stored: {error}"));
            let texts = new.iter().map(ToString::to_string).collect();
            if !store.add_session_rules(id, texts).await.map_err(failed)? {
                return Err(Failure::session_not_found(id));
            }
        }
        handle.added_rules.lock().extend(new.iter().cloned());
        self.0.audit.record(events::allowed(principal, id, new));
        Ok(())
    }
}

impl SessionHandle {
    /// Applies the rules that were added to the session to its current instance, and opens the ports that they name.
    /// If a port cannot be opened, the rules apply without it.
    pub(super) async fn apply_added_rules(&self) -> Result<(), Failure> {
        let Some(egress) = &self.instance.egress else { return Ok(()) };
        let added = self.added_rules.lock().clone();
        let mut opened = Ok(());
        for rule in added {
            if let Some(port) = rule.port()
                && let Err(failure) = self.open_port(egress, port).await
            {
                opened = Err(failure);
            }
            if !egress.rules().contains(&rule) {
                egress.allow(rule);
            }
        }
        opened
    }

    async fn open_port(&self, egress: &Egress, port: u16) -> Result<(), Failure> {
        if egress.ports().contains(&port) {
            return Ok(());
        }
        let failed = |reason: String| {
            Failure::new(
                Kind::ResourceLimit,
                format!("programs cannot connect to port {port} of the session: {reason}"),
            )
        };
        match self.instance.egress_ports.open(port).await {
            Ok(listener) => egress.add_listener(listener).map_err(|error| failed(error.to_string())),
            // Another call has opened it in the meantime.
            Err(EgressPortError::AlreadyOpen(_)) => Ok(()),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

fn network(handle: &SessionHandle) -> Result<&Egress, Failure> {
    handle.instance.egress.as_ref().ok_or_else(|| {
        Failure::new(Kind::Configuration, "the session has no network")
            .hint("start a session where `[packages] enabled` is true or `[sessions] allow` names a host")
    })
}

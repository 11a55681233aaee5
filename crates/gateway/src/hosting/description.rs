//! The description of a server for clients of a profile that has only this server.

use std::time::Duration;

use ringfence_mcp::era::Era;
use ringfence_mcp::sanitize;
use serde_json::Value;
use tokio::time::Instant;

use super::Hosting;

/// Time after the start in which `initialize` waits for the only server of a profile, and the maximum wait later on: the
/// response must not be delayed by a server that is down.
const FIRST_DESCRIBE_WAIT: Duration = Duration::from_secs(20);
const DESCRIBE_TIMEOUT: Duration = Duration::from_secs(2);

impl Hosting {
    /// The `initialize` result of a server, from its current or last connection, with the accepted instructions.
    pub(crate) async fn describe(&self, server: &str, era: Era) -> Option<Value> {
        let mut description = self.current_or_last_description(server, era).await?;
        sanitize::list_item(&mut description, "");
        let uuid = self.0.fleet.info(server)?.uuid;
        let instructions = self.0.pins.instructions(&uuid, description["instructions"].as_str());
        if let Value::Object(fields) = &mut description {
            match instructions {
                Some(instructions) => fields.insert("instructions".into(), instructions.into()),
                None => fields.shift_remove("instructions"),
            };
        }
        Some(description)
    }

    async fn current_or_last_description(&self, server: &str, era: Era) -> Option<Value> {
        let first_wait = (self.0.started + FIRST_DESCRIBE_WAIT).saturating_duration_since(Instant::now());
        let link = self.0.fleet.await_link(server, first_wait.max(DESCRIBE_TIMEOUT)).await;
        let key = (server.to_owned(), era == Era::Modern);
        let Ok(link) = link else { return self.0.descriptions.lock().get(&key).cloned() };
        let description = link.upstream_for(era).await.description().clone();
        self.0.descriptions.lock().insert(key, description.clone());
        Some(description)
    }
}

//! Resources, prompts and completions: our own, and those of the servers.

use serde_json::{Value, json};

use super::{Gateway, hosting_view, no_resource};
use crate::client::Context;
use crate::hosting::Route;
use crate::policy::Action;
use crate::rpc::{Outcome, RpcError};
use crate::{failure, resource};

impl Gateway {
    pub(super) async fn read_resource(&self, params: Value, context: &Context) -> Outcome {
        let uri = params["uri"]
            .as_str()
            .ok_or_else(|| RpcError::new(RpcError::INVALID_PARAMS, "resources/read takes a `uri`"))?;
        if !resource::is_own(uri) {
            self.permit(Action::UseServers, context)?;
        }
        if let Some(hosting) = self.servers().filter(|_| !resource::is_own(uri) || !self.is_own_offered()) {
            let server = hosting_view(self).resource(uri).map(str::to_owned);
            let server = server.ok_or_else(|| no_resource(uri))?;
            return hosting.pass(&server, "resources/read", params, self.time(), context).await;
        }
        let action = if resource::is_capabilities(uri) { Action::RunCode } else { Action::ReadOutput };
        self.permit(action, context)?;
        let sessions = self.sessions().map_err(failure::render)?;
        let read = resource::read(sessions, &context.principal, uri).await;
        read.map(|contents| json!(contents)).map_err(failure::render)
    }

    pub(super) async fn get_prompt(&self, mut params: Value, context: &Context) -> Outcome {
        self.permit(Action::UseServers, context)?;
        let route = self.view().and_then(|view| view.prompt(params["name"].as_str()?).cloned());
        match (self.servers(), route) {
            (Some(hosting), Some(Route { server, name, .. })) => {
                params["name"] = name.into();
                hosting.pass(&server, "prompts/get", params, self.time(), context).await
            }
            _ => Err(RpcError::new(RpcError::INVALID_PARAMS, "there is no such prompt")),
        }
    }

    pub(super) async fn complete(&self, mut params: Value, context: &Context) -> Outcome {
        self.permit(Action::UseServers, context)?;
        let view = self.view();
        let reference = &params["ref"];
        let server = match (&view, reference["name"].as_str(), reference["uri"].as_str()) {
            (Some(view), Some(prompt), _) => view.prompt(prompt).cloned().map(|route| {
                params["ref"]["name"] = route.name.into();
                route.server
            }),
            (Some(view), None, Some(uri)) => view.resource(uri).map(str::to_owned),
            _ => None,
        };
        match (self.servers(), server) {
            (Some(hosting), Some(server)) => {
                hosting.pass(&server, "completion/complete", params, self.time(), context).await
            }
            _ => Ok(json!({"completion": {"values": []}})),
        }
    }
}

//! Resources, prompts and completions: the built-in ones, and those of the servers.

use ringfence_mcp::client::Context;
use ringfence_mcp::failure;
use ringfence_mcp::rpc::{Outcome, RpcError};
use ringfence_store::PinKind;
use serde_json::{Value, json};

use super::{Gateway, server_route, unknown_resource};
use crate::authorize::Action;
use crate::builtin_resources;
use crate::catalogue::Route;
use crate::hosting::Hosting;

impl Gateway {
    pub(super) async fn read_resource(&self, params: Value, context: &Context) -> Outcome {
        let uri = params["uri"]
            .as_str()
            .ok_or_else(|| RpcError::new(RpcError::INVALID_PARAMS, "resources/read needs a `uri`"))?;
        let is_builtin = builtin_resources::is_builtin(uri);
        if !is_builtin {
            self.authorize(Action::UseServers, context)?;
        }
        if let Some(hosting) = self.servers().filter(|_| !is_builtin || !self.has_builtin_tools()) {
            let route = self.resource_route(hosting, uri)?;
            let item = (Some(PinKind::Resource), &route);
            return self.relay(hosting, item, "resources/read", params, self.deadline(), context).await;
        }
        self.authorize(builtin_resources::action(uri), context)?;
        let sessions = self.sessions().map_err(failure::render)?;
        builtin_resources::read(sessions, &context.principal, uri).await.map_err(failure::render)
    }

    /// Finds the server of a resource.
    pub(super) fn resource_route(&self, hosting: &Hosting, uri: &str) -> Result<Route, RpcError> {
        let view = self.view().unwrap_or_default();
        let server = view.withheld_resource(uri).or_else(|| view.resource(uri)).ok_or_else(|| unknown_resource(uri))?;
        Ok(server_route(hosting, server, uri.to_owned()))
    }

    pub(super) async fn get_prompt(&self, mut params: Value, context: &Context) -> Outcome {
        self.authorize(Action::UseServers, context)?;
        let view = self.view().unwrap_or_default();
        let name = params["name"].as_str().unwrap_or_default();
        let route = view.prompt(name).or_else(|| view.withheld_prompt(name)).cloned();
        let (Some(hosting), Some(route)) = (self.servers(), route) else {
            return Err(RpcError::new(RpcError::INVALID_PARAMS, "unknown prompt"));
        };
        params["name"] = route.name.as_str().into();
        self.relay(hosting, (Some(PinKind::Prompt), &route), "prompts/get", params, self.deadline(), context).await
    }

    pub(super) async fn complete(&self, mut params: Value, context: &Context) -> Outcome {
        self.authorize(Action::UseServers, context)?;
        let (Some(hosting), Some(view)) = (self.servers(), self.view()) else { return Ok(no_completion()) };
        let reference = &params["ref"];
        let (kind, route) = match (reference["name"].as_str(), reference["uri"].as_str()) {
            (Some(prompt), _) => (PinKind::Prompt, view.prompt(prompt).cloned()),
            (None, Some(uri)) if view.withheld_resource(uri).is_none() => {
                let route = view.resource(uri).map(|server| server_route(hosting, server, uri.to_owned()));
                (PinKind::Resource, route)
            }
            _ => return Ok(no_completion()),
        };
        let Some(route) = route else { return Ok(no_completion()) };
        if reference["name"].is_string() {
            params["ref"]["name"] = route.name.as_str().into();
        }
        self.relay(hosting, (Some(kind), &route), "completion/complete", params, self.deadline(), context).await
    }
}

fn no_completion() -> Value {
    json!({"completion": {"values": []}})
}

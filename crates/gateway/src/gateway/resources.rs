//! Resources, prompts and completions: our own, and those of the servers.

use ringfence_store::PinKind;
use serde_json::{Value, json};

use super::tool_calls::held;
use super::{Gateway, hosting_view, no_resource};
use crate::client::Context;
use crate::hosting::{Hosting, Route, Within};
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
            let within = self.time();
            let server = self.server_of(hosting, uri, within, context).await?;
            return hosting.pass(&server, "resources/read", params, within, context).await;
        }
        let action = if resource::is_capabilities(uri) { Action::RunCode } else { Action::ReadOutput };
        self.permit(action, context)?;
        let sessions = self.sessions().map_err(failure::render)?;
        let read = resource::read(sessions, &context.principal, uri).await;
        read.map(|contents| json!(contents)).map_err(failure::render)
    }

    /// The server that has a resource, unless it is held back.
    pub(super) async fn server_of(
        &self,
        hosting: &Hosting,
        uri: &str,
        within: Within,
        context: &Context,
    ) -> Result<String, RpcError> {
        let view = hosting_view(self);
        let server = view.held_resource(uri).or_else(|| view.resource(uri)).ok_or_else(|| no_resource(uri))?;
        // The server's lists are known only after it has connected.
        if hosting.fleet().link(server).is_none() {
            hosting.link(server, within).await?;
        }
        if view.held_resource(uri).is_some() || hosting.is_resource_held(server, uri) {
            return Err(self.refuse(context, held("resource", uri, server)));
        }
        Ok(server.to_owned())
    }

    pub(super) async fn get_prompt(&self, mut params: Value, context: &Context) -> Outcome {
        self.permit(Action::UseServers, context)?;
        let view = self.view();
        let route = view.as_ref().and_then(|view| {
            let name = params["name"].as_str()?;
            view.prompt(name).or_else(|| view.held_prompt(name)).cloned()
        });
        let within = self.time();
        if let (Some(hosting), Some(route)) = (self.servers(), &route)
            && hosting.fleet().link(&route.server).is_none()
        {
            hosting.link(&route.server, within).await?;
        }
        match (self.servers(), route) {
            (Some(hosting), Some(route)) if hosting.is_held(PinKind::Prompt, &route) => {
                Err(self.refuse(context, held("prompt", &route.name, &route.server)))
            }
            (Some(hosting), Some(Route { server, name, .. })) => {
                params["name"] = name.into();
                hosting.pass(&server, "prompts/get", params, within, context).await
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
            (Some(view), None, Some(uri)) if view.held_resource(uri).is_none() => view.resource(uri).map(str::to_owned),
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

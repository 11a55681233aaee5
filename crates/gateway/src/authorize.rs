//! Decides whether a principal may do an action on an object. No other module decides that.
//!
//! Requests over MCP and REST and the requests of code in a sandbox all use it. The inputs are the scope of the endpoint, the
//! profile, the servers that were granted to a session, and the pins of servers. A refusal is always a `Failure` of kind
//! `policy`, and leaves one audit event. The operator, who uses a Unix socket, is not bound by the scope of a run.

mod action;
mod authentication;
mod grants;
mod pins;
mod refusal_log;

use std::sync::Arc;

use ringfence_config::Scope;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_egress::Rule;
use ringfence_entries::Profile;
use ringfence_store::{Audit, PinKind};

pub(crate) use action::Action;
pub(crate) use authentication::Authentication;
#[cfg(test)]
pub(crate) use authentication::MAX_FAILURES;
pub use authentication::{
    AuthenticationOptions, ListenError, MIN_TOKEN_BYTES, Token, check_listen_address, short_token,
};
pub(crate) use grants::{Grants, SessionGrants};
pub(crate) use pins::{Pins, Selection};

use crate::catalogue::{Catalogue, Route};
use refusal_log::RefusalLog;

/// The principal that acts, and the code through which it acts.
#[derive(Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) principal: &'a Principal,
    /// The session in which the code of the principal runs, or on which a call acts.
    pub(crate) session: Option<&'a SessionId>,
    /// The servers that code may call; None if the principal itself calls.
    pub(crate) grants: Option<&'a SessionGrants>,
}

impl<'a> Subject<'a> {
    /// A principal that acts itself.
    pub(crate) fn principal(principal: &'a Principal) -> Self {
        Self { principal, session: None, grants: None }
    }
}

/// The object of an action.
#[derive(Clone, Copy)]
pub(crate) enum Object<'a> {
    /// The endpoint itself, or a session: sessions check their owner themselves.
    Endpoint,
    BuiltinTool(&'a str),
    /// A hosted server in a list.
    ListedServer {
        name: &'a str,
        uuid: &'a str,
    },
    /// A tool of a hosted server in a list.
    ListedTool {
        server: &'a str,
        tool: &'a str,
    },
    /// A hosted server that is called.
    Server {
        name: &'a str,
        uuid: &'a str,
    },
    /// A tool of a hosted server whose catalogue is not known yet, so that its pins cannot be checked.
    Tool {
        server: &'a str,
        uuid: &'a str,
        tool: &'a str,
    },
    /// Rules to add to the network of a session, and those that it has.
    Rules {
        new: &'a [Rule],
        existing: &'a [Rule],
    },
    /// A tool, prompt or resource of a hosted server that is used. Its catalogue is the current one.
    Item {
        kind: PinKind,
        route: &'a Route,
        catalogue: &'a Catalogue,
    },
}

/// The rules of one endpoint. Clones share their refusal log.
#[derive(Clone)]
pub(crate) struct Authorizer {
    scope: Option<Arc<Scope>>,
    profile: Arc<Profile>,
    pins: Option<Arc<Pins>>,
    /// Whether tokens may extend the network of their sessions.
    tokens_may_allow: bool,
    refusals: Arc<RefusalLog>,
}

impl Authorizer {
    /// Without a scope, servers and a profile everything is allowed.
    pub(crate) fn new(audit: Audit) -> Self {
        let refusals = Arc::new(RefusalLog::new(audit));
        Self { scope: None, profile: Arc::default(), pins: None, tokens_may_allow: false, refusals }
    }

    #[must_use]
    pub(crate) fn with_scope(self, scope: Arc<Scope>) -> Self {
        Self { scope: Some(scope), ..self }
    }

    #[must_use]
    pub(crate) fn with_profile(self, profile: Arc<Profile>) -> Self {
        Self { profile, ..self }
    }

    #[must_use]
    pub(crate) fn with_pins(self, pins: Arc<Pins>) -> Self {
        Self { pins: Some(pins), ..self }
    }

    /// Sets whether tokens may extend the network of their sessions.
    #[must_use]
    pub(crate) fn with_tokens_may_allow(self, tokens_may_allow: bool) -> Self {
        Self { tokens_may_allow, ..self }
    }

    /// The same rules for one piece of code, whose refusals are limited in the audit: code can repeat them in a loop.
    #[must_use]
    pub(crate) fn for_code(&self, principal: &Principal, session: Option<&SessionId>) -> Self {
        let refusals = Arc::new(self.refusals.limited(principal, session));
        Self { refusals, ..self.clone() }
    }

    /// Allows or refuses an action, and records a refusal.
    pub(crate) fn authorize(&self, subject: Subject<'_>, action: Action, object: Object<'_>) -> Result<(), Failure> {
        self.decide(subject, action, object).map_err(|refusal| self.refuse(subject, refusal))
    }

    /// Whether an action is allowed, for lists: nothing is recorded.
    pub(crate) fn allows(&self, subject: Subject<'_>, action: Action, object: Object<'_>) -> bool {
        self.decide(subject, action, object).is_ok()
    }

    /// Whether the scope allows an action to principals other than the operator.
    pub(crate) fn allows_action(&self, action: Action) -> bool {
        self.check_scope(action).is_ok()
    }

    /// Whether code with these grants may call any server at all.
    pub(crate) fn allows_any_server(&self, grants: &SessionGrants) -> bool {
        self.allows_action(Action::UseServers) && (self.profile.grants_servers_to_code() || !grants.is_empty())
    }

    /// Records a refusal, and returns it.
    pub(crate) fn refuse(&self, subject: Subject<'_>, refusal: Failure) -> Failure {
        self.refusals.record(subject.principal, subject.session, &refusal);
        refusal
    }

    /// Whether clients may choose a profile. If the scope names one, there is no other.
    pub(crate) fn allows_profile(&self, name: &str) -> bool {
        self.scope.as_ref().and_then(|scope| scope.profile.as_deref()).is_none_or(|only| only == name)
    }

    /// Returns the principal as which an authenticated caller acts within the scope.
    pub(crate) fn principal(&self, caller: Principal) -> Principal {
        match &self.scope {
            Some(scope) => scope.principal(caller),
            None => caller,
        }
    }

    fn decide(&self, subject: Subject<'_>, action: Action, object: Object<'_>) -> Result<(), Failure> {
        if action == Action::ManageServers && !subject.principal.is_operator() {
            return Err(operator_only());
        }
        if !subject.principal.is_operator() {
            self.check_scope(action).map_err(|refusal| match object {
                Object::BuiltinTool(tool) => refusal.with("tool", tool),
                _ => refusal,
            })?;
        }
        match object {
            Object::Endpoint | Object::BuiltinTool(_) => Ok(()),
            Object::Rules { new, existing } => self.check_rules(subject, new, existing),
            Object::ListedServer { name, uuid } => self.check_listed(subject, || self.profile.has_server(name, uuid)),
            Object::ListedTool { server, tool } => self.check_listed(subject, || self.profile.has_tool(server, tool)),
            Object::Server { name, uuid } => self.check_server(subject, name, uuid),
            Object::Tool { server, uuid, tool } => self.check_tool(subject, server, uuid, tool),
            Object::Item { kind, route, catalogue } => {
                match kind {
                    PinKind::Tool => self.check_tool(subject, &route.server, &route.uuid, &route.name)?,
                    _ => self.check_server(subject, &route.server, &route.uuid)?,
                }
                self.check_pins(kind, route, catalogue)
            }
        }
    }

    fn check_scope(&self, action: Action) -> Result<(), Failure> {
        let Some(scope) = &self.scope else { return Ok(()) };
        let needed = action.capabilities();
        if needed.iter().any(|capability| scope.allows(*capability)) {
            return Ok(());
        }
        if needed.is_empty() {
            return Err(Failure::new(Kind::Policy, "the scope of this endpoint does not allow this request")
                .hint("no capability of a scope allows it; use an endpoint without a scope"));
        }
        let names: Vec<&str> = needed.iter().map(|capability| capability.name()).collect();
        let quoted: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let message =
            format!("the scope of this endpoint does not allow this action: it lacks {}", quoted.join(" or "));
        Err(Failure::new(Kind::Policy, message)
            .hint("continue without it, or ask the person who starts the run to add the capability to its scope")
            .with("capability", names.join(" or ")))
    }

    /// Lists are not part of a profile's path: without a scope every principal sees all servers.
    fn check_listed(&self, subject: Subject<'_>, is_in_profile: impl FnOnce() -> bool) -> Result<(), Failure> {
        if self.scope.is_none() || subject.principal.is_operator() || is_in_profile() {
            return Ok(());
        }
        Err(not_in_profile("server", "of this list"))
    }

    /// Only the operator may extend the network of a session, and a token for public hosts. A request on loopback
    /// without a token may come from a program that an agent controls.
    ///
    /// A rule without methods and paths would lift the limits that the operator has set for a host.
    fn check_rules(&self, subject: Subject<'_>, new: &[Rule], existing: &[Rule]) -> Result<(), Failure> {
        if subject.principal.is_operator() {
            return Ok(());
        }
        let refused = |message: String| {
            Err(Failure::new(Kind::Policy, message)
                .hint("use `ringfence allow session ID HOST` on the host of the server"))
        };
        if *subject.principal == Principal::local() || !self.tokens_may_allow {
            return refused("only the operator may extend the network of a session".into());
        }
        if let Some(rule) = new.iter().find(|rule| !rule.is_public()) {
            return refused(format!("only the operator may allow `{rule}`: it is not limited to public addresses"));
        }
        let limited: Vec<&Rule> = existing.iter().filter(|rule| rule.requests().is_limited()).collect();
        let extends = |rule: &&Rule| {
            !existing.contains(rule) && limited.iter().any(|limited| rule.has_common_destination(limited))
        };
        match new.iter().find(extends) {
            Some(rule) => refused(format!("only the operator may allow `{rule}`: requests to it are limited")),
            None => Ok(()),
        }
    }

    fn check_server(&self, subject: Subject<'_>, name: &str, uuid: &str) -> Result<(), Failure> {
        if !self.profile.has_server(name, uuid) {
            return Err(not_in_profile("server", name));
        }
        let is_granted =
            subject.grants.is_none_or(|grants| grants.contains(uuid)) || self.profile.grants_servers_to_code();
        if !is_granted {
            let message = format!("server `{name}` is not loaded in this session");
            return Err(Failure::new(Kind::Policy, message)
                .hint("name it in `servers` of the call that runs the code")
                .with("server", name));
        }
        Ok(())
    }

    fn check_tool(&self, subject: Subject<'_>, server: &str, uuid: &str, tool: &str) -> Result<(), Failure> {
        self.check_server(subject, server, uuid)?;
        if self.profile.has_tool(server, tool) { Ok(()) } else { Err(not_in_profile("tool", tool)) }
    }

    fn check_pins(&self, kind: PinKind, route: &Route, catalogue: &Catalogue) -> Result<(), Failure> {
        let Route { server, uuid, name } = route;
        if !self.pins.as_ref().is_some_and(|pins| pins.is_withheld(uuid, catalogue, kind, name)) {
            return Ok(());
        }
        let (item, command) = match kind {
            PinKind::Tool => ("tool", "tools"),
            PinKind::Prompt => ("prompt", "show"),
            _ => ("resource", "show"),
        };
        let message =
            format!("the {item} {name} of {server} is new or has changed since it was pinned, and is withheld");
        Err(Failure::new(Kind::Policy, message).hint(format!(
            "review it with `ringfence server {command} {server}`, then accept it with `ringfence server pin {server}`"
        )))
    }
}

fn not_in_profile(what: &str, name: &str) -> Failure {
    Failure::new(Kind::Policy, format!("the {what} {name} is not part of this profile"))
        .hint("use an endpoint whose profile contains it: /mcp/{profile}")
}

fn operator_only() -> Failure {
    Failure::new(Kind::Policy, "only the operator may change servers")
        .hint("use `ringfence server` on the host of the server")
}

#[cfg(test)]
mod tests;

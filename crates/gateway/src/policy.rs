//! What callers of this endpoint may do: the one place where that is decided.
//!
//! Every way in asks here what it is about to do: tools over MCP, REST, and code that asks from inside a sandbox. Without
//! a scope all is allowed. Whoever runs the server is not bound by the scope of a run: the operator's socket is theirs.

use std::sync::Arc;

use axum::http::Method;
use ringfence_config::{Capability, Scope};
use ringfence_core::{Failure, Kind, Principal};

use crate::tools;

/// Something that a request would do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    RunCode,
    RunCommand,
    /// Either of them; which it is, is seen in the request.
    Run,
    ReadFiles,
    WriteFiles,
    /// Makes a session in which something can be run.
    OpenSession,
    /// Sees sessions, and ends them.
    KeepSessions,
    /// Reads in full what a call has printed.
    ReadOutput,
    UseServers,
    /// Keeps something for later runs, or finds it again.
    Remember,
}

impl Action {
    /// What allows it: any of these.
    fn needs(self) -> &'static [Capability] {
        match self {
            Self::RunCode => &[Capability::Code],
            Self::RunCommand => &[Capability::Command],
            Self::Run | Self::ReadOutput => &[Capability::Code, Capability::Command],
            Self::ReadFiles => &[Capability::ReadFiles],
            Self::WriteFiles => &[Capability::WriteFiles],
            Self::OpenSession => &[Capability::Code, Capability::Command, Capability::Sessions],
            Self::KeepSessions => &[Capability::Sessions],
            Self::UseServers => &[Capability::Servers],
            Self::Remember => &[Capability::Memory],
        }
    }

    /// What a tool of our own does.
    pub(crate) fn of_tool(tool: &str) -> Option<Self> {
        Some(match tool {
            tools::EXECUTE_CODE | tools::RUN_PYTHON => Self::RunCode,
            tools::EXECUTE_COMMAND => Self::RunCommand,
            tools::GET_SESSIONS | tools::STOP_SESSION | tools::GET_VOLUME_PATH => Self::KeepSessions,
            tools::READ_FILE | tools::LIST_FILES => Self::ReadFiles,
            tools::WRITE_FILE => Self::WriteFiles,
            tools::SEARCH_TOOLS => Self::UseServers,
            _ => return None,
        })
    }

    /// What a request over REST does, by the route that it took.
    pub(crate) fn of_route(method: &Method, route: &str) -> Option<Self> {
        let (is_read, is_write) = (matches!(*method, Method::GET | Method::HEAD), *method == Method::PUT);
        let route = route.strip_prefix("/v1/")?;
        let Some(of_session) = route.strip_prefix("sessions/{id}") else {
            return match route {
                "sessions" if is_read => Some(Self::KeepSessions),
                "sessions" => Some(Self::OpenSession),
                _ => route.starts_with("servers").then_some(Self::UseServers),
            };
        };
        match of_session {
            "" | "/log" => Some(Self::KeepSessions),
            "/exec" => Some(Self::Run),
            "/outputs/{number}" => Some(Self::ReadOutput),
            _ if of_session.starts_with("/processes") => Some(Self::RunCommand),
            _ if of_session.starts_with("/files") && is_read => Some(Self::ReadFiles),
            _ if of_session.starts_with("/files") && is_write => Some(Self::WriteFiles),
            _ => None,
        }
    }

    /// What code in a sandbox asks the host for.
    pub(crate) fn of_host_call(method: &str) -> Option<Self> {
        match method.split_once('/')?.0 {
            "tools" | "servers" => Some(Self::UseServers),
            "saved" | "memory" => Some(Self::Remember),
            _ => None,
        }
    }
}

/// What is allowed at one endpoint. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(crate) struct Policy(Option<Arc<Scope>>);

impl Policy {
    pub(crate) fn of(scope: Arc<Scope>) -> Self {
        Self(Some(scope))
    }

    pub(crate) fn is_scoped(&self) -> bool {
        self.0.is_some()
    }

    pub(crate) fn allows(&self, action: Action) -> bool {
        self.0.as_ref().is_none_or(|scope| action.needs().iter().any(|capability| scope.has(*capability)))
    }

    /// Whether a tool of our own is there for callers.
    pub(crate) fn shows_tool(&self, tool: &str) -> bool {
        !self.is_scoped() || Action::of_tool(tool).is_some_and(|action| self.allows(action))
    }

    /// Whether a profile can be chosen: where the scope names one there is no other.
    pub(crate) fn allows_profile(&self, name: &str) -> bool {
        self.0.as_ref().and_then(|scope| scope.profile.as_deref()).is_none_or(|only| only == name)
    }

    /// Refuses what the scope does not allow.
    pub(crate) fn check(&self, action: Action) -> Result<(), Failure> {
        if self.allows(action) {
            return Ok(());
        }
        let needed: Vec<String> = action.needs().iter().map(|capability| format!("`{}`", capability.name())).collect();
        let needed = needed.join(" or ");
        Err(Failure::new(Kind::Policy, format!("the scope of this endpoint does not allow it: it lacks {needed}"))
            .hint("do without it, or have whoever starts the run add the capability to its scope")
            .with("capability", needed.replace('`', "")))
    }

    /// The same for a request over REST; what no capability is known for is refused.
    pub(crate) fn check_route(&self, principal: &Principal, method: &Method, route: &str) -> Result<(), Failure> {
        if !self.is_scoped() || principal.is_operator() {
            return Ok(());
        }
        let unknown = || {
            Failure::new(Kind::Policy, "the scope of this endpoint does not allow it")
                .hint("do without it: no capability of a scope is for this")
        };
        self.check(Action::of_route(method, route).ok_or_else(unknown)?)
    }

    /// Who a caller is here.
    pub(crate) fn principal(&self, caller: Principal) -> Principal {
        match &self.0 {
            Some(scope) => scope.principal(caller),
            None => caller,
        }
    }
}

#[cfg(test)]
mod tests {
    use ringfence_session::Choice;

    use super::*;

    #[test]
    fn every_tool_does_something_that_a_scope_can_allow() {
        for tool in tools::all(&Choice::default()).into_iter().chain(tools::code_mode()) {
            assert!(Action::of_tool(&tool.name).is_some(), "{}", tool.name);
        }
        assert_eq!(Action::of_tool("rm"), None);
    }

    #[test]
    fn every_route_does_too() {
        let doing = |method: Method, route: &str| Action::of_route(&method, route);
        let of_session = |rest: &str| format!("/v1/sessions/{{id}}{rest}");
        for (method, route, expected) in [
            (Method::GET, "/v1/sessions".into(), Action::KeepSessions),
            (Method::HEAD, "/v1/sessions".into(), Action::KeepSessions),
            (Method::POST, "/v1/sessions".into(), Action::OpenSession),
            (Method::DELETE, of_session(""), Action::KeepSessions),
            (Method::GET, of_session("/log"), Action::KeepSessions),
            (Method::POST, of_session("/exec"), Action::Run),
            (Method::GET, of_session("/outputs/{number}"), Action::ReadOutput),
            (Method::GET, of_session("/files"), Action::ReadFiles),
            (Method::HEAD, of_session("/files/{*path}"), Action::ReadFiles),
            (Method::PUT, of_session("/files/{*path}"), Action::WriteFiles),
            (Method::GET, of_session("/processes"), Action::RunCommand),
            (Method::POST, of_session("/processes"), Action::RunCommand),
            (Method::GET, of_session("/processes/{pid}/ws"), Action::RunCommand),
            (Method::GET, "/v1/servers/{name}/tools".into(), Action::UseServers),
        ] {
            assert_eq!(doing(method.clone(), &route), Some(expected), "{method} {route}");
        }
        for (method, route) in [(Method::DELETE, of_session("/files/{*path}")), (Method::GET, "/v1/{*rest}".into())] {
            assert_eq!(doing(method, &route), None, "{route}");
        }
    }

    #[test]
    fn without_a_scope_all_is_allowed() {
        let policy = Policy::default();
        assert!(policy.allows(Action::RunCommand) && policy.shows_tool("execute_command"));
        assert!(policy.check_route(&Principal::local(), &Method::GET, "/v1/{*rest}").is_ok());
        assert_eq!(policy.principal(Principal::local()), Principal::local());
    }
}

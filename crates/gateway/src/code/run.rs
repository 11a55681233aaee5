//! Runs code that may call servers: finds or creates its session, grants it the servers, and executes it.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Failure, Kind, SessionId};
use ringfence_session::{CallResult, CodeRequest, HostCalls};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::caller_sessions::store_failure;
use super::host_calls::CodeRun;
use super::{Caller, CodeMode, Inner, Target, preface};
use crate::authorize::{Action, Object, SessionGrants, Subject};
use crate::catalogue::KnownServer;

/// Maximum time that code waits for the tools of servers that start for the first time.
const FIRST_START_TIMEOUT: Duration = Duration::from_secs(20);

fn is_named(server_names: &[String], server: &KnownServer) -> bool {
    server_names.iter().any(|name| *name == server.name || *name == server.alias)
}

/// The condition for sending a preface to an interpreter. With a preface, even an empty one, the interpreter loads the
/// helpers of code mode.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PrefacePolicy {
    Always,
    IfNotEmpty,
}

/// Maximum number of servers in the arguments of one call.
const MAX_SERVERS: usize = 64;

impl CodeMode {
    /// Runs code in the session of its caller for `run_python`.
    pub(crate) async fn run_python(
        &self,
        caller: &Caller,
        code: String,
        server_names: &[String],
        timeout: Option<Duration>,
        cancel: CancellationToken,
    ) -> Result<CallResult, Failure> {
        let servers = self.find_servers(caller, server_names).await?;
        let timeout = self.check_timeout(timeout)?;
        let mut is_retry = false;
        loop {
            let (session, is_new_session) = self.caller_session(caller).await?;
            let language = match self.0.sessions.language(&caller.principal, &session) {
                Err(_) if !is_retry => {
                    is_retry = true;
                    continue;
                }
                language => language?,
            };
            let target = Target { session: Some(session.clone()), language };
            let host = self.host_calls(caller, target, &servers, PrefacePolicy::Always).await?;
            let request = CodeRequest {
                code: code.clone(),
                template: None,
                flavor: None,
                session_id: Some(session),
                timeout: Some(timeout),
                host: Some(host),
                questions: caller.questions.clone(),
                rich_html: false,
            };
            match self.0.sessions.execute(&caller.principal, request, cancel.clone()).await {
                // The session has expired in the meantime; nothing has run.
                Err(failure) if failure.kind == Kind::SessionNotFound && !is_retry => is_retry = true,
                result => return result.map(|result| CallResult { session_created: is_new_session, ..result }),
            }
        }
    }

    fn check_timeout(&self, requested: Option<Duration>) -> Result<Duration, Failure> {
        let max = self.0.settings.max_timeout;
        let timeout = requested.unwrap_or(self.0.settings.timeout.min(max));
        if timeout > max {
            let message = format!("timeout of {} s exceeds the maximum of {} s", timeout.as_secs_f64(), max.as_secs());
            let failure = Failure::new(Kind::Validation, message).with("field", "timeout");
            return Err(failure.with("rule", "code.max_timeout_s").hint(format!(
                "request at most {} s; the operator can raise the limit with code.max_timeout_s",
                max.as_secs()
            )));
        }
        Ok(timeout)
    }

    /// Runs code in the session that the request names, or in a new one.
    pub(crate) async fn execute_code(
        &self,
        caller: &Caller,
        mut request: CodeRequest,
        server_names: &[String],
        cancel: CancellationToken,
    ) -> Result<CallResult, Failure> {
        let servers = self.find_servers(caller, server_names).await?;
        let Inner { sessions, .. } = &*self.0;
        let language = if let Some(session) = &request.session_id {
            // Fails if the session is not the caller's. Must come before any grant to it.
            sessions.language(&caller.principal, session)?
        } else {
            let language = sessions.template_language(request.template.as_deref());
            language.map_err(|failure| sessions.refused(&caller.principal, None, failure))?
        };
        let mut is_new = false;
        if !servers.is_empty() && request.session_id.is_none() {
            // Grants are stored with the session, so it is created first.
            let (template, flavor) = (request.template.take(), request.flavor.take());
            let created = Box::pin(sessions.create_session(&caller.principal, template, flavor)).await?;
            request.session_id = Some(created.session_id);
            is_new = true;
        }
        let target = Target { session: request.session_id.clone(), language };
        let (new_session, caller_left) = (target.session.clone().filter(|_| is_new), cancel.clone());
        let run = async {
            request.host = Some(self.host_calls(caller, target, &servers, PrefacePolicy::IfNotEmpty).await?);
            sessions.execute(&caller.principal, request, cancel).await
        };
        let mut result = run.await;
        // The caller does not learn the id of the new session then, so it could not use it.
        if let Some(session) = new_session.filter(|_| result.is_err() || caller_left.is_cancelled()) {
            let _ = sessions.stop(&caller.principal, &session).await;
        }
        if let Ok(result) = &mut result {
            result.session_created |= is_new;
        }
        result
    }

    /// Finds the servers that a call names.
    async fn find_servers(&self, caller: &Caller, server_names: &[String]) -> Result<Vec<KnownServer>, Failure> {
        if server_names.is_empty() {
            return Ok(Vec::new());
        }
        // Boxed: otherwise the future of every call would have the size of this rare one.
        Box::pin(self.find_named_servers(caller, server_names)).await
    }

    async fn find_named_servers(&self, caller: &Caller, server_names: &[String]) -> Result<Vec<KnownServer>, Failure> {
        let refuse = |failure: Failure| self.0.sessions.refused(&caller.principal, None, failure);
        if server_names.len() > MAX_SERVERS {
            let message = format!("servers has more than {MAX_SERVERS} names");
            return Err(refuse(Failure::new(Kind::Validation, message).with("field", "servers")));
        }
        let mut known = self.0.hosting.known_servers(&caller.profile).await;
        // A server that has never been connected has no known tools yet.
        let deadline = Instant::now() + FIRST_START_TIMEOUT;
        for server in known.servers().iter().filter(|server| server.tools.is_empty() && is_named(server_names, server))
        {
            self.0.hosting.wait_for_tools(&server.name, deadline).await;
        }
        known = self.0.hosting.known_servers(&caller.profile).await;
        let find = |name: &String| {
            super::tool_call::find(&known, name).cloned().map_err(|error| {
                let failure = Failure::new(Kind::Validation, error.message).with("field", "servers");
                refuse(failure.hint("search_tools finds tools of all servers and shows the server of each"))
            })
        };
        server_names.iter().map(find).collect()
    }

    /// Grants servers to a session and returns the handler of its requests.
    async fn host_calls(
        &self,
        caller: &Caller,
        target: Target,
        servers: &[KnownServer],
        preface_policy: PrefacePolicy,
    ) -> Result<HostCalls, Failure> {
        let grants = match &target.session {
            None => SessionGrants::default(),
            Some(session) => self.grant(session, servers).await?,
        };
        let saved = if caller.authorizer.allows_action(Action::UseMemory) {
            self.0.saved_tools.get(self.store(), &caller.principal, target.language).await.map_err(store_failure)?
        } else {
            Arc::default()
        };
        let preface = if caller.authorizer.allows_any_server(&grants) {
            let known = Box::pin(self.0.hosting.known_servers(&caller.profile)).await;
            let session = target.session.as_ref();
            let subject = Subject { principal: &caller.principal, session, grants: Some(&grants) };
            let granted = known.servers().iter().filter(|server| {
                let object = Object::Server { name: &server.name, uuid: &server.uuid };
                caller.authorizer.allows(subject, Action::UseServers, object)
            });
            Some(preface::build(granted, &saved))
        } else if preface_policy == PrefacePolicy::Always || !saved.is_empty() {
            Some(preface::build(std::iter::empty(), &saved))
        } else {
            None
        };
        Ok(CodeRun::new(self.clone(), caller.clone(), target, grants).into_host_calls(preface))
    }

    async fn grant(&self, session: &SessionId, servers: &[KnownServer]) -> Result<SessionGrants, Failure> {
        let is_live = |session: &SessionId| self.0.sessions.is_live(session);
        let grants = self.0.grants.of_session(session, is_live).await.map_err(store_failure)?;
        if !servers.is_empty() {
            let servers = servers.iter().map(|server| server.uuid.clone()).collect();
            Box::pin(self.0.grants.add(session, &grants, servers)).await.map_err(store_failure)?;
        }
        Ok(grants)
    }
}

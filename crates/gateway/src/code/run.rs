//! Runs code that may call servers: finds or creates its session, grants it the servers, and executes it.

use std::sync::Arc;
use std::time::Duration;

use ringfence_config::CODE_FLAVOR;
use ringfence_core::{Failure, Kind, Language, SessionId};
use ringfence_session::{CallResult, CodeRequest, HostCalls};
use ringfence_store::StoreError;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::host_calls::CodeRun;
use super::{Caller, CodeMode, Inner, Target, preface};
use crate::authorize::{Action, Object, SessionGrants, Subject};
use crate::catalogue::KnownServer;
use crate::tools::arguments::RunPython;

/// Maximum time that code waits for the tools of servers that start for the first time.
pub(super) const FIRST_START_TIMEOUT: Duration = Duration::from_secs(20);

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
    /// Runs code for `run_python`, in this session or in a new one.
    pub(crate) async fn run_python(
        &self,
        caller: &Caller,
        session: Option<SessionId>,
        call: RunPython,
        cancel: CancellationToken,
    ) -> Result<CallResult, Failure> {
        let servers = self.find_servers(caller, &call.servers).await?;
        let Inner { sessions, settings, .. } = &*self.0;
        let timeout = call.timeout.unwrap_or(settings.timeout.min(settings.max_timeout));
        let (session, is_new) = if let Some(session) = session {
            (session, false)
        } else {
            let (template, flavor) = (Some(settings.template.clone()), Some(CODE_FLAVOR.to_owned()));
            (sessions.create_session_for_code(&caller.principal, template, flavor).await?, true)
        };
        let run = async {
            let language = sessions.language(&caller.principal, &session)?;
            if language != Language::Python {
                return Err(sessions.refused(&caller.principal, Some(&session), not_python(&session)));
            }
            let target = Target { session: Some(session.clone()), language };
            let host = self.host_calls(caller, target, &servers, PrefacePolicy::Always).await?;
            let request = CodeRequest {
                code: call.code,
                template: None,
                flavor: None,
                session_id: Some(session.clone()),
                timeout: Some(timeout),
                host: Some(host),
                questions: caller.questions.clone(),
                rich_html: false,
            };
            sessions.execute(&caller.principal, request, cancel.clone()).await
        };
        let mut result = run.await;
        if is_new {
            self.stop_if_unknown(caller, &session, &result, &cancel).await;
        }
        if let Ok(result) = &mut result {
            result.session_created |= is_new;
        }
        result
    }

    /// Stops a new session whose id the caller does not learn, so that it could not use it.
    async fn stop_if_unknown(
        &self,
        caller: &Caller,
        session: &SessionId,
        result: &Result<CallResult, Failure>,
        caller_left: &CancellationToken,
    ) {
        if result.is_err() || caller_left.is_cancelled() {
            let _ = self.0.sessions.stop(&caller.principal, session).await;
        }
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
        if let Some(session) = new_session {
            self.stop_if_unknown(caller, &session, &result, &caller_left).await;
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
        // A server that has never been connected has no known tools yet. One that starts on demand starts here.
        let deadline = Instant::now() + FIRST_START_TIMEOUT;
        let mut starts = tokio::task::JoinSet::new();
        for server in known.servers().iter().filter(|server| server.tools.is_empty() && is_named(server_names, server))
        {
            let (hosting, name) = (self.0.hosting.clone(), server.name.clone());
            starts.spawn(async move { hosting.wait_for_tools(&name, deadline).await });
        }
        starts.join_all().await;
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

fn not_python(session: &SessionId) -> Failure {
    Failure::new(Kind::Validation, format!("session {session} does not run Python"))
        .with("field", "session_id")
        .hint("omit session_id, or use execute_code")
}

/// Converts an error of the database, which is reported to the caller with an incident id only.
#[allow(clippy::needless_pass_by_value, reason = "used with map_err")]
fn store_failure(error: StoreError) -> Failure {
    Failure::new(Kind::Internal, format!("the store failed: {error}"))
}

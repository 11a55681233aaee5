//! Code with servers: the session it runs in, what it may call there, and what came of it.

use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Failure, Kind, SessionId};
use ringfence_session::{Answer, CodeRequest, HostCalls};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::caller_sessions::store_failure;
use super::host_calls::CodeRun;
use super::{Caller, CodeMode, Inner, Target, preface};
use crate::authorize::Action;
use crate::authorize::SessionGrants;
use crate::catalogue::KnownServer;

/// How long code waits for servers that are started for the first time.
const FIRST_START: Duration = Duration::from_secs(20);

fn is_named(named: &[String], server: &KnownServer) -> bool {
    named.iter().any(|name| *name == server.name || *name == server.alias)
}

/// Whether an interpreter is told what there is also where there is nothing: it then has the helpers at hand.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Telling {
    Always,
    IfAny,
}

/// Servers that one call may name.
pub(crate) const MOST_NAMED: usize = 64;

impl CodeMode {
    /// Runs code in the caller's own session.
    pub(crate) async fn run(
        &self,
        caller: &Caller,
        code: String,
        named: &[String],
        timeout: Option<Duration>,
        cancel: CancellationToken,
    ) -> Result<Answer, Failure> {
        let servers = self.resolve(caller, named).await?;
        let timeout = self.check_timeout(timeout)?;
        let mut is_second = false;
        loop {
            let (session, is_new_session) = self.caller_session(caller).await?;
            let language = match self.0.sessions.language(&caller.principal, &session) {
                Err(_) if !is_second => {
                    is_second = true;
                    continue;
                }
                language => language?,
            };
            let target = Target { session: Some(session.clone()), language };
            let host = self.host_calls(caller, target, &servers, Telling::Always).await?;
            let request = CodeRequest {
                code: code.clone(),
                template: None,
                flavor: None,
                session_id: Some(session),
                timeout: Some(timeout),
                host: Some(host),
            };
            match self.0.sessions.execute(&caller.principal, request, cancel.clone()).await {
                // It has expired in between; nothing ran.
                Err(failure) if failure.kind == Kind::SessionNotFound && !is_second => is_second = true,
                answered => return answered.map(|answer| Answer { session_created: is_new_session, ..answer }),
            }
        }
    }

    fn check_timeout(&self, wanted: Option<Duration>) -> Result<Duration, Failure> {
        let most = self.0.settings.max_timeout;
        let timeout = wanted.unwrap_or(self.0.settings.timeout.min(most));
        if timeout > most {
            let message = format!("a timeout of {} s is more than {} s", timeout.as_secs_f64(), most.as_secs());
            let failure = Failure::new(Kind::Validation, message).with("field", "timeout");
            return Err(failure.with("rule", "code.max_timeout_s").hint(format!(
                "ask for at most {} s; whoever runs the server can allow more with code.max_timeout_s",
                most.as_secs()
            )));
        }
        Ok(timeout)
    }

    /// Runs code in whichever session it asks for.
    pub(crate) async fn execute(
        &self,
        caller: &Caller,
        mut request: CodeRequest,
        named: &[String],
        cancel: CancellationToken,
    ) -> Result<Answer, Failure> {
        let servers = self.resolve(caller, named).await?;
        let Inner { sessions, .. } = &*self.0;
        let language = if let Some(session) = &request.session_id {
            // Before anything is granted to it: it must be the caller's.
            sessions.language(&caller.principal, session)?
        } else {
            let language = sessions.template_language(request.template.as_deref());
            language.map_err(|failure| sessions.refused(&caller.principal, None, failure))?
        };
        let mut is_new = false;
        if !servers.is_empty() && request.session_id.is_none() {
            // What it may call is written down with the session, so that has to be there first.
            let (template, flavor) = (request.template.take(), request.flavor.take());
            let made = Box::pin(sessions.create_session(&caller.principal, template, flavor)).await?;
            request.session_id = Some(made.session_id);
            is_new = true;
        }
        let target = Target { session: request.session_id.clone(), language };
        let (made, gone) = (target.session.clone().filter(|_| is_new), cancel.clone());
        let run = async {
            request.host = Some(self.host_calls(caller, target, &servers, Telling::IfAny).await?);
            sessions.execute(&caller.principal, request, cancel).await
        };
        let mut answer = run.await;
        // One of which nobody was told would only take a place.
        if let Some(made) = made.filter(|_| answer.is_err() || gone.is_cancelled()) {
            let _ = sessions.stop(&caller.principal, &made).await;
        }
        if let Ok(answer) = &mut answer {
            answer.session_created |= is_new;
        }
        answer
    }

    /// The servers that a caller has named.
    async fn resolve(&self, caller: &Caller, named: &[String]) -> Result<Vec<KnownServer>, Failure> {
        if named.is_empty() {
            return Ok(Vec::new());
        }
        // Boxed, as what else is done seldom: a call is moved about, with room for all that may be done in it.
        Box::pin(self.find_servers(caller, named)).await
    }

    async fn find_servers(&self, caller: &Caller, named: &[String]) -> Result<Vec<KnownServer>, Failure> {
        let refused = |failure: Failure| self.0.sessions.refused(&caller.principal, None, failure);
        if named.len() > MOST_NAMED {
            let message = format!("more than {MOST_NAMED} servers are named");
            return Err(refused(Failure::new(Kind::Validation, message).with("field", "servers")));
        }
        let mut known = self.0.hosting.known_servers(&caller.profile).await;
        // One that was never there before has no tools yet that code could see.
        let until = Instant::now() + FIRST_START;
        for server in known.servers().iter().filter(|server| server.tools.is_empty() && is_named(named, server)) {
            self.0.hosting.wait_for_tools(&server.name, until).await;
        }
        known = self.0.hosting.known_servers(&caller.profile).await;
        let find = |name: &String| {
            super::tool_call::find(&known, name).cloned().map_err(|error| {
                let failure = Failure::new(Kind::Validation, error.message).with("field", "servers");
                refused(failure.hint("search_tools finds tools of all servers, and names the server of each"))
            })
        };
        named.iter().map(find).collect()
    }

    async fn host_calls(
        &self,
        caller: &Caller,
        target: Target,
        named: &[KnownServer],
        telling: Telling,
    ) -> Result<HostCalls, Failure> {
        let grants = match &target.session {
            None => SessionGrants::default(),
            Some(session) => self.grant(session, named).await?,
        };
        let saved = if caller.authorizer.allows_action(Action::UseMemory) {
            self.0.prefaces.saved(self.store(), &caller.principal, target.language).await.map_err(store_failure)?
        } else {
            Arc::default()
        };
        let binds = caller.profile.grants_servers_to_code();
        let has_servers = caller.authorizer.allows_action(Action::UseServers) && (binds || !grants.is_empty());
        let preface = if has_servers {
            let known = Box::pin(self.0.hosting.known_servers(&caller.profile)).await;
            let mine = known.servers().iter().filter(|server| binds || grants.contains(&server.uuid));
            Some(preface::compose(mine, &saved))
        } else if telling == Telling::Always || !saved.is_empty() {
            Some(preface::compose(std::iter::empty(), &saved))
        } else {
            None
        };
        Ok(CodeRun::new(self.clone(), caller.clone(), target, grants).into_host_calls(preface))
    }

    async fn grant(&self, session: &SessionId, named: &[KnownServer]) -> Result<SessionGrants, Failure> {
        let is_live = |session: &SessionId| self.0.sessions.is_live(session);
        let grants = self.0.grants.of_session(session, is_live).await.map_err(store_failure)?;
        if !named.is_empty() {
            let servers = named.iter().map(|server| server.uuid.clone()).collect();
            Box::pin(self.0.grants.add(session, &grants, servers)).await.map_err(store_failure)?;
        }
        Ok(grants)
    }
}

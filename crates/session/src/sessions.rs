//! All live sessions of a server. The files of this folder implement the operations that callers have.

mod adoption;
mod create;
mod events;
mod files;
mod health;
mod lifecycle;
mod network;
mod outputs;
mod processes;
mod request_checks;
mod template_packages;
mod usage;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use ringfence_backend::interpreter::host_python;
use ringfence_backend::protected_names::{self, Unchecked};
use ringfence_backend::{Backend, BackendConfig, Persistence, SupervisorId, WarmPython};
use ringfence_config::{GuestWritable, NetworkSettings, SessionSettings};
use ringfence_core::sync::Mutex;
use ringfence_core::{AuditEvent, Failure, Kind, Language, Principal, SessionId, Volume};
use ringfence_egress::Remedy;
use ringfence_guest::precompiled;
use ringfence_store::{Audit, Store, StoreError};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::admission::{ServiceLimits, SessionSlots};
use crate::api::{CallResult, CodeRequest, CommandRequest, SessionInfo, Stopped};
use crate::calls::{Code, Outcome};
use crate::instances::{InterpreterNeed, Pool};
use crate::network::QuestionSender;
use crate::session::{Call, CallRecord, LogEntry, SessionHandle, Work};
use crate::state::{EndReason, State, UseGuard};
use health::SandboxFailure;
use request_checks::SessionRequest;

/// Maximum time to wait for the calls in sessions that are left to the next server. Longer than the interrupts of a
/// cancelled call and its kill take: nothing limits the time of a call after this server has ended.
const LEAVE_TIMEOUT: Duration = Duration::from_secs(6);

const IDLE_POLL_INTERVAL: Duration = Duration::from_millis(10);

pub use files::{Directory, FileContent, FileRange, FileWritten, MAX_FILE_BYTES, MAX_LISTED_ENTRIES};
pub use processes::{Attachment, ProcessEnd};

/// Cheap to clone; clones share the sessions.
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    settings: SessionSettings,
    backend: Backend,
    pool: Pool,
    slots: SessionSlots,
    live: Mutex<HashMap<SessionId, SessionHandle>>,
    tasks: TaskTracker,
    audit: Audit,
    /// The store that records sessions for the next server.
    store: Option<Store>,
    /// The reason why the last sandbox of the default template and flavor could not be created.
    sandbox_failure: Mutex<Option<SandboxFailure>>,
}

impl Sessions {
    /// Sessions that end with this process. `program` is ringfence itself, of which the backend starts a helper process.
    pub fn new(settings: SessionSettings, program: PathBuf) -> Self {
        Self::build(settings, program, Audit::disabled(), None)
    }

    /// Like [`Self::new`], with an audit log.
    pub fn audited(settings: SessionSettings, program: PathBuf, audit: Audit) -> Self {
        Self::build(settings, program, audit, None)
    }

    /// Sessions that survive the death of the server. Adopts those of an earlier server. `directory` is for the sockets
    /// of launchers.
    pub async fn persistent(
        settings: SessionSettings,
        program: PathBuf,
        store: Store,
        directory: PathBuf,
    ) -> Result<Self, StoreError> {
        let persistence = Persistence {
            directory,
            scope_tag: settings.adoption_tag(),
            supervisor: SupervisorId::of_this_process(),
            lease: settings.lease,
        };
        let audit = Audit::in_store(store.clone()).with_run(settings.scope.as_ref().map(|scope| &scope.run));
        let sessions = Self::build(settings, program, audit, Some((store, persistence)));
        *sessions.0.sandbox_failure() = Some(SandboxFailure::untested());
        sessions.adopt().await?;
        Ok(sessions)
    }

    fn build(settings: SessionSettings, program: PathBuf, audit: Audit, stored: Option<(Store, Persistence)>) -> Self {
        let slots = SessionSlots::new(ServiceLimits::from(&settings));
        // Volumes that contain programs of the host were refused earlier, where they were added.
        let _ = settings.guest_writable.add(&settings.volumes);
        let python = host_python(&settings.guest_writable);
        precompiled::set_interpreter(python.clone());
        // Without a pool for Python, no warm interpreter is wanted either.
        let is_pooled = settings.pool.get(Language::Python.name()).is_some_and(|size| *size > 0);
        let python = python.filter(|_| is_pooled);
        let warm_python = python.map(|program| WarmPython { program, preload: settings.preload.clone() });
        let (store, persistence) = stored.unzip();
        let backend = Backend::native(BackendConfig { program, persistence, warm_python });
        let pool = Pool::new(backend.clone(), settings.clone());
        let (live, tasks) = (Mutex::default(), TaskTracker::new());
        let sandbox_failure = Mutex::default();
        Self(Arc::new(Inner { settings, backend, pool, slots, live, tasks, audit, store, sandbox_failure }))
    }

    /// Creates a session without running anything in it.
    pub async fn create_session(
        &self,
        principal: &Principal,
        template: Option<String>,
        flavor: Option<String>,
    ) -> Result<SessionInfo, Failure> {
        let handle = self.create_for(principal, template, flavor, InterpreterNeed::MaybeLater).await?;
        Ok(handle.describe(&self.0.settings))
    }

    /// Creates a session in which code will run immediately.
    pub async fn create_session_for_code(
        &self,
        principal: &Principal,
        template: Option<String>,
        flavor: Option<String>,
    ) -> Result<SessionId, Failure> {
        let handle = self.create_for(principal, template, flavor, InterpreterNeed::Immediately).await?;
        Ok(handle.descriptor.id.clone())
    }

    async fn create_for(
        &self,
        principal: &Principal,
        template: Option<String>,
        flavor: Option<String>,
        need: InterpreterNeed,
    ) -> Result<SessionHandle, Failure> {
        let request = SessionRequest { template, flavor, session_id: None, timeout: None };
        let created = self.create(principal, &request, need).await;
        let (_, handle, _guard) = created.map_err(|failure| self.refused(principal, None, failure))?;
        Ok(handle)
    }

    /// Runs code in a session, which is created if none is named.
    pub async fn execute(
        &self,
        principal: &Principal,
        request: CodeRequest,
        cancel: CancellationToken,
    ) -> Result<CallResult, Failure> {
        request_checks::check_code(&request.code)
            .map_err(|failure| self.refused(principal, request.session_id.as_ref(), failure.with("field", "code")))?;
        let CodeRequest { code, template, flavor, session_id, timeout, host, questions, rich_html } = request;
        let code = Code { text: code, host, rich_html: rich_html || self.0.settings.rich_html };
        let request = SessionRequest { template, flavor, session_id, timeout };
        let session_id = request.session_id.clone();
        let result = self.call(principal, request, (Work::Code(code), questions), cancel).await;
        result.map_err(|failure| self.refused(principal, session_id.as_ref(), failure))
    }

    /// Runs a shell command in a session, which is created if none is named.
    pub async fn run_command(
        &self,
        principal: &Principal,
        request: CommandRequest,
        cancel: CancellationToken,
    ) -> Result<CallResult, Failure> {
        request_checks::check_command(&request.command).map_err(|failure| {
            self.refused(principal, request.session_id.as_ref(), failure.with("field", "command"))
        })?;
        let CommandRequest { command, template, flavor, session_id, timeout, questions } = request;
        let request = SessionRequest { template, flavor, session_id, timeout };
        let session_id = request.session_id.clone();
        let result = self.call(principal, request, (Work::Command(command), questions), cancel).await;
        result.map_err(|failure| self.refused(principal, session_id.as_ref(), failure))
    }

    /// Whether the session exists, for any principal.
    pub fn is_live(&self, id: &SessionId) -> bool {
        self.live().contains_key(id)
    }

    /// Whether the session exists for this principal.
    pub fn has(&self, principal: &Principal, id: &SessionId) -> bool {
        self.find(principal, id).is_ok()
    }

    /// The language of a session.
    pub fn language(&self, principal: &Principal, id: &SessionId) -> Result<Language, Failure> {
        let live = self.live();
        let found = live.get(id).filter(|handle| handle.is_visible_to(principal));
        let language = found.map(|handle| handle.descriptor.template.language);
        drop(live);
        language.ok_or_else(|| self.refused(principal, Some(id), Failure::session_not_found(id)))
    }

    /// The full name of this template, or of the default one.
    pub fn template_name(&self, template: Option<&str>) -> Result<String, Failure> {
        let settings = &self.0.settings;
        let found = settings.templates.find(template.unwrap_or(&settings.default_template));
        found.map(|template| template.name.to_string()).map_err(|error| request_checks::unknown_name(&error))
    }

    /// The language of sessions with this template, or with the default one.
    pub fn template_language(&self, template: Option<&str>) -> Result<Language, Failure> {
        let settings = &self.0.settings;
        let found = settings.templates.find(template.unwrap_or(&settings.default_template));
        found.map(|template| template.language).map_err(|error| request_checks::unknown_name(&error))
    }

    /// Ends a session, and waits until all of its resources are freed.
    pub async fn stop(&self, principal: &Principal, id: &SessionId) -> Result<Stopped, Failure> {
        // A session that is ending is found too, and its end is waited for.
        let found = self.live().get(id).filter(|handle| principal.can_see(&handle.descriptor.principal)).cloned();
        let handle = found.ok_or_else(|| self.refused(principal, Some(id), Failure::session_not_found(id)))?;
        let was_running = matches!(handle.state.current(), State::Busy(_));
        handle.state.end(EndReason::Stopped);
        handle.ended.cancelled().await;
        Ok(Stopped { was_running })
    }

    /// The last calls of a session, oldest first.
    pub fn log(&self, principal: &Principal, id: &SessionId) -> Result<Vec<LogEntry>, Failure> {
        let handle = self.find(principal, id).map_err(|failure| self.refused(principal, Some(id), failure))?;
        Ok(handle.log.entries())
    }

    /// The audit log of these sessions.
    pub fn audit(&self) -> &Audit {
        &self.0.audit
    }

    /// Records that a request was refused, and returns the failure.
    pub fn refused(&self, principal: &Principal, session: Option<&SessionId>, failure: Failure) -> Failure {
        self.0.audit.record(AuditEvent::refusal(&failure).by(principal, session));
        failure
    }

    /// The volumes of every session.
    pub fn volumes(&self) -> &[Volume] {
        &self.0.settings.volumes
    }

    /// The network of new sessions.
    pub fn network(&self) -> &NetworkSettings {
        &self.0.settings.network
    }

    /// The paths that guests of sessions and of hosted servers may write.
    pub fn guest_writable(&self) -> &GuestWritable {
        &self.0.settings.guest_writable
    }

    /// Ends all sessions.
    pub async fn shut_down(&self) {
        self.shut_down_except(&[]).await;
    }

    /// Ends all sessions but these, which are left to the next server as if this one were killed.
    pub async fn shut_down_except(&self, left: &[SessionId]) {
        let left: Vec<SessionHandle> = left.iter().filter_map(|id| self.live().get(id).cloned()).collect();
        // A call that was cancelled ends without a loss if it gets some time.
        let all_idle = async {
            while left.iter().any(|handle| handle.state.is_in_use()) {
                tokio::time::sleep(IDLE_POLL_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(LEAVE_TIMEOUT, all_idle).await;
        self.0.tasks.close();
        for handle in &left {
            handle.state.leave();
        }
        for handle in self.live().values() {
            handle.state.end(EndReason::ShutDown);
        }
        self.0.tasks.wait().await;
        self.0.pool.end().await;
        // Ending the backend would end the instances that are left. Its launchers end by themselves, or wait for the next
        // server, when this process ends.
        if left.is_empty() {
            self.0.backend.end().await;
        }
    }

    async fn call(
        &self,
        principal: &Principal,
        request: SessionRequest,
        (work, questions): (Work, Option<QuestionSender>),
        cancel: CancellationToken,
    ) -> Result<CallResult, Failure> {
        let timeout = request_checks::check_timeout(&self.0.settings, request.timeout)?;
        let session_created = request.session_id.is_none();
        let mut notices = Vec::new();
        let (id, handle, guard) = if let Some(id) = &request.session_id {
            let handle = self.find(principal, id)?;
            notices = request_checks::ignored_options(&self.0.settings, &request, &handle.descriptor)?;
            let guard = handle.state.begin_use().ok_or_else(|| Failure::session_not_found(id))?;
            (id.clone(), handle, guard)
        } else {
            let is_code = matches!(work, Work::Code(..));
            let need = if is_code { InterpreterNeed::Immediately } else { InterpreterNeed::MaybeLater };
            // Boxed, so that the future of a call in an existing session stays small.
            Box::pin(self.create(principal, &request, need)).await?
        };
        let cancel_of_new = session_created.then(|| cancel.clone());
        let asks = questions.is_some();
        let call = (work, timeout, cancel, questions, guard);
        let result = self.run_in_session(principal, &id, &handle, call).await;
        if asks {
            self.store_answers(principal, &handle).await;
        }
        // The caller does not know the id of the new session, so it would only occupy a slot.
        if cancel_of_new.is_some_and(|cancel| cancel.is_cancelled() || result.is_err()) {
            handle.state.end(EndReason::Stopped);
            handle.ended.cancelled().await;
        }
        let mut outcome = result?;
        self.0.audit.record(events::call_finished(principal, &id, &outcome));
        let number = handle.outputs.add_call([&mut outcome.stdout, &mut outcome.stderr]);
        notices.append(&mut outcome.notices);
        if !outcome.refused_hosts.is_empty() {
            notices.extend(outcome.refused_hosts.lines(&Remedy::Session(id.to_string())));
        }
        notices.extend(self.changed_names(principal, &handle).await);
        Ok(CallResult {
            session_id: id,
            session_created,
            number,
            status: outcome.status,
            exit_code: outcome.exit_code,
            stdout: outcome.stdout,
            stderr: outcome.stderr,
            result: outcome.result,
            error: outcome.error,
            is_truncated: outcome.is_truncated,
            display: outcome.display,
            duration: outcome.duration,
            notices,
            open_calls: outcome.open_calls,
            retained: Arc::clone(&handle.outputs),
        })
    }

    /// Records each protected name that was created or replaced in a volume since the last call, and returns notices.
    async fn changed_names(&self, principal: &Principal, handle: &SessionHandle) -> Vec<String> {
        let Ok(changes) = handle.instance.names.changes().await else { return vec![Unchecked::NOTICE.into()] };
        for change in &changes {
            let event = protected_names::event(change).by(principal, Some(&handle.descriptor.id));
            self.0.audit.record(event);
        }
        changes.iter().map(ToString::to_string).collect()
    }

    /// Queues the work in the session, and waits for its result.
    async fn run_in_session(
        &self,
        principal: &Principal,
        id: &SessionId,
        handle: &SessionHandle,
        (work, timeout, cancel, questions, guard): (
            Work,
            Duration,
            CancellationToken,
            Option<QuestionSender>,
            UseGuard,
        ),
    ) -> Result<Outcome, Failure> {
        let record = CallRecord::begin(&handle.log, &work);
        let (reply, result) = oneshot::channel();
        let (kind, text) = work.describe();
        let (kind_and_length, arrived) = ((kind, text.len()), ringfence_core::now_ms());
        handle.calls.try_send(Call { work, timeout, cancel, questions, guard, reply }).map_err(
            |error| match error {
                mpsc::error::TrySendError::Full(_) => {
                    let limit = self.0.settings.max_queued_calls;
                    Failure::new(Kind::Busy, format!("the session has reached its limit of {limit} queued calls"))
                        .with("rule", "sessions.max_queued_calls")
                        .hint("wait for the running calls, or use another session")
                }
                mpsc::error::TrySendError::Closed(_) => Failure::session_not_found(id),
            },
        )?;
        // The session's task runs first: the audit event can wait until the call is sent to the kernel.
        tokio::task::yield_now().await;
        self.0.audit.record(events::call_started(principal, id, kind_and_length, timeout).at_time(arrived));
        // The reply channel is closed if the session ends before the call runs.
        let outcome = result.await.map_err(|_| Failure::session_not_found(id))??;
        record.end(&outcome);
        Ok(outcome)
    }

    fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    fn find(&self, principal: &Principal, id: &SessionId) -> Result<SessionHandle, Failure> {
        let found = self.live().get(id).filter(|handle| handle.is_visible_to(principal)).cloned();
        found.ok_or_else(|| Failure::session_not_found(id))
    }

    fn live(&self) -> MutexGuard<'_, HashMap<SessionId, SessionHandle>> {
        self.0.live.lock()
    }
}

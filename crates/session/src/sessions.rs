//! All live sessions of a server: made, found, limited, stopped.

use ringfence_core::sync::Mutex;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use ringfence_core::Volume;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admission::{Place, Places};
use super::adoption::Keeping;
use super::call::Outcome;
use super::events;
use super::health::Trouble;
use super::limits::ServiceLimits;
use super::log::Record;
use super::pool::Pool;
use super::prepare::Interpreter;
use super::state::{EndReason, State};
use super::{Answer, CodeRequest, CommandRequest, SessionInfo, Stopped};
use crate::request_checks;
use crate::request_checks::Wanted;
use crate::session_record::{Handle, SessionDescriptor};
use crate::session_state::{Visit, now};
use crate::session_task::{Call, Work};
use ringfence_backend::Identity;
use ringfence_backend::LauncherSockets;
use ringfence_backend::Launchers;
use ringfence_backend::native;
use ringfence_backend::protected_names;
use ringfence_backend::protected_names::Unchecked;
use ringfence_config::GuestWritable;
use ringfence_config::SessionSettings;
use ringfence_core::AuditEvent;
use ringfence_core::Flavor;
use ringfence_core::Language;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_guest::precompiled;
use ringfence_store::Audit;
use ringfence_store::{Store, StoreError};

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Sessions(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) settings: SessionSettings,
    pub(crate) launchers: Launchers,
    pub(crate) pool: Pool,
    places: Places,
    pub(crate) live: Mutex<HashMap<SessionId, Handle>>,
    pub(crate) tasks: TaskTracker,
    pub(crate) audit: Audit,
    pub(crate) keeping: Option<Keeping>,
    /// Why the last sandbox of the usual kind could not be made, if so.
    pub(crate) trouble: Mutex<Option<Trouble>>,
}

impl Sessions {
    /// `program` is ringfence itself: sandboxes are made by a helper process of it.
    pub fn new(settings: SessionSettings, program: PathBuf) -> Self {
        Self::build(settings, program, Audit::disabled(), None)
    }

    /// The same, with an audit of all that happens.
    pub fn audited(settings: SessionSettings, program: PathBuf, audit: Audit) -> Self {
        Self::build(settings, program, audit, None)
    }

    /// Sessions that outlive a server that dies, for which `directory` is the place of the launchers' sockets; those
    /// that another has left behind are taken over.
    pub async fn kept(
        settings: SessionSettings,
        program: PathBuf,
        store: Store,
        directory: PathBuf,
    ) -> Result<Self, StoreError> {
        let mark = settings.scope.as_ref().map(|scope| scope.tag.clone());
        let doors = LauncherSockets { directory, mark, keeper: Identity::of_own_supervisor() };
        let keeping = Keeping { store: store.clone(), doors };
        let audit = Audit::in_store(store).with_run(settings.scope.as_ref().map(|scope| &scope.run));
        let sessions = Self::build(settings, program, audit, Some(keeping));
        *sessions.0.trouble() = Some(Trouble::unproven());
        sessions.adopt().await?;
        Ok(sessions)
    }

    fn build(settings: SessionSettings, program: PathBuf, audit: Audit, keeping: Option<Keeping>) -> Self {
        let places = Places::new(ServiceLimits::from(&settings));
        // Volumes that contain programs of the host were refused earlier, where they were added.
        let _ = settings.guest_writable.add(&settings.volumes);
        let python = native::host_python(&settings.guest_writable);
        precompiled::set_interpreter(python.clone());
        // Whoever wants none ready wants no interpreter kept warm either.
        let is_pooled = settings.pool.get(Language::Python.name()).is_some_and(|size| *size > 0);
        let python = python.filter(|_| is_pooled);
        let warmth = python.and_then(|python| native::python_zygote(&python, &settings.preload));
        let launchers =
            Launchers::new(program, keeping.as_ref().map(|keeping| keeping.doors.clone()), settings.lease, warmth);
        let pool = Pool::new(launchers.clone(), settings.clone());
        let (live, tasks) = (Mutex::default(), TaskTracker::new());
        let trouble = Mutex::default();
        Self(Arc::new(Inner { settings, launchers, pool, places, live, tasks, audit, keeping, trouble }))
    }

    /// Makes a session without running anything in it yet.
    pub async fn create_session(
        &self,
        principal: &Principal,
        template: Option<String>,
        flavor: Option<String>,
    ) -> Result<SessionInfo, Failure> {
        let wanted = Wanted { template, flavor, session_id: None, timeout: None };
        let made = self.create(principal, &wanted, Interpreter::MaybeLater).await;
        let (_, handle, _visit) = made.map_err(|failure| self.refused(principal, None, failure))?;
        Ok(handle.describe(&self.0.settings))
    }

    /// Runs code in a session, which is made if none is named.
    pub async fn execute(
        &self,
        principal: &Principal,
        request: CodeRequest,
        cancel: CancellationToken,
    ) -> Result<Answer, Failure> {
        request_checks::check_code(&request.code)
            .map_err(|failure| self.refused(principal, request.session_id.as_ref(), failure.with("field", "code")))?;
        let CodeRequest { code, template, flavor, session_id, timeout, host } = request;
        let wanted = Wanted { template, flavor, session_id, timeout };
        let asked = wanted.session_id.clone();
        let called = self.call(principal, wanted, Work::Code(code, host), cancel).await;
        called.map_err(|failure| self.refused(principal, asked.as_ref(), failure))
    }

    /// Runs one shell line in a session, which is made if none is named.
    pub async fn run_command(
        &self,
        principal: &Principal,
        request: CommandRequest,
        cancel: CancellationToken,
    ) -> Result<Answer, Failure> {
        request_checks::check_line(&request.command).map_err(|failure| {
            self.refused(principal, request.session_id.as_ref(), failure.with("field", "command"))
        })?;
        let CommandRequest { command, template, flavor, session_id, timeout } = request;
        let wanted = Wanted { template, flavor, session_id, timeout };
        let asked = wanted.session_id.clone();
        let called = self.call(principal, wanted, Work::Command(command), cancel).await;
        called.map_err(|failure| self.refused(principal, asked.as_ref(), failure))
    }

    /// Whether there is such a session, whoever's it is.
    pub fn is_live(&self, id: &SessionId) -> bool {
        self.live().contains_key(id)
    }

    /// Whether there is such a session for this caller.
    pub fn has(&self, principal: &Principal, id: &SessionId) -> bool {
        self.find(principal, id).is_ok()
    }

    /// What is spoken in a session.
    pub fn language(&self, principal: &Principal, id: &SessionId) -> Result<Language, Failure> {
        let live = self.live();
        let found = live.get(id).filter(|handle| handle.is_there_for(principal));
        let language = found.map(|handle| handle.descriptor.template.language);
        drop(live);
        language.ok_or_else(|| self.refused(principal, Some(id), Failure::session_not_found(id)))
    }

    /// What would be spoken in a session of this template.
    pub fn template_language(&self, template: Option<&str>) -> Result<Language, Failure> {
        let settings = &self.0.settings;
        let found = settings.templates.find(template.unwrap_or(&settings.default_template));
        found.map(|template| template.language).map_err(|error| request_checks::unknown(&error))
    }

    /// Ends a session and frees everything it had.
    pub async fn stop(&self, principal: &Principal, id: &SessionId) -> Result<Stopped, Failure> {
        // Whoever stops one that is ending is told so when it has ended, too.
        let found = self.live().get(id).filter(|handle| principal.can_see(&handle.descriptor.principal)).cloned();
        let handle = found.ok_or_else(|| self.refused(principal, Some(id), Failure::session_not_found(id)))?;
        let was_running = handle.shared.state() == State::Busy;
        handle.shared.end(EndReason::Stopped);
        handle.ended.cancelled().await;
        Ok(Stopped { was_running })
    }

    /// Where the events of these sessions go.
    pub fn audit(&self) -> &Audit {
        &self.0.audit
    }

    /// Notes that a request was not served.
    pub fn refused(&self, principal: &Principal, session: Option<&SessionId>, failure: Failure) -> Failure {
        self.0.audit.record(AuditEvent::refusal(&failure).by(principal, session));
        failure
    }

    /// What every session is shown of the host.
    pub fn volumes(&self) -> &[Volume] {
        &self.0.settings.volumes
    }

    /// The paths that guests of sessions and of hosted servers may write.
    pub fn guest_writable(&self) -> &GuestWritable {
        &self.0.settings.guest_writable
    }

    /// Ends all sessions.
    pub async fn shut_down(&self) {
        self.0.tasks.close();
        for handle in self.live().values() {
            handle.shared.end(EndReason::ShutDown);
        }
        self.0.tasks.wait().await;
        self.0.pool.end().await;
        self.0.launchers.end().await;
    }

    async fn call(
        &self,
        principal: &Principal,
        wanted: Wanted,
        work: Work,
        cancel: CancellationToken,
    ) -> Result<Answer, Failure> {
        let start = Instant::now();
        let timeout = request_checks::check_timeout(&self.0.settings, wanted.timeout)?;
        let session_created = wanted.session_id.is_none();
        let mut ignored = Vec::new();
        let (id, handle, visit) = if let Some(id) = &wanted.session_id {
            let handle = self.find(principal, id)?;
            ignored = request_checks::compare(&self.0.settings, &wanted, &handle.descriptor)?;
            let visit = handle.shared.enter().ok_or_else(|| Failure::session_not_found(id))?;
            (id.clone(), handle, visit)
        } else {
            let is_code = matches!(work, Work::Code(..));
            let interpreter = if is_code { Interpreter::NeededNow } else { Interpreter::MaybeLater };
            // Boxed: a call in a live session need not have room for it.
            Box::pin(self.create(principal, &wanted, interpreter)).await?
        };
        let gone = session_created.then(|| cancel.clone());
        let answered = self.call_in(principal, &id, &handle, (work, timeout, cancel, visit)).await;
        // One of which nobody was told would only take a place.
        if gone.is_some_and(|gone| gone.is_cancelled() || answered.is_err()) {
            handle.shared.end(EndReason::Stopped);
            handle.ended.cancelled().await;
        }
        let outcome = answered?;
        self.0.audit.record(events::call_finished(principal, &id, &outcome, start.elapsed()));
        let Outcome { status, exit_code, mut stdout, mut stderr, result, error, is_cut, display, notices, open_calls } =
            outcome;
        let number = handle.outputs.keep([&mut stdout, &mut stderr]);
        ignored.extend(notices);
        ignored.extend(self.changed_names(principal, &handle).await);
        let duration = start.elapsed();
        Ok(Answer {
            session_id: id,
            session_created,
            number,
            status,
            exit_code,
            stdout,
            stderr,
            result,
            error,
            is_cut,
            display,
            duration,
            notices: ignored,
            open_calls,
        })
    }

    /// Records each protected name that has been created or replaced in a volume since the last call, and gives a
    /// notice of it.
    async fn changed_names(&self, principal: &Principal, handle: &Handle) -> Vec<String> {
        let Ok(changes) = handle.names.changes().await else { return vec![Unchecked::NOTICE.into()] };
        for change in &changes {
            let event = protected_names::event(change).by(principal, Some(&handle.descriptor.id));
            self.0.audit.record(event);
        }
        changes.iter().map(ToString::to_string).collect()
    }

    /// Does the work once it is its turn.
    async fn call_in(
        &self,
        principal: &Principal,
        id: &SessionId,
        handle: &Handle,
        (work, timeout, cancel, visit): (Work, Duration, CancellationToken, Visit),
    ) -> Result<Outcome, Failure> {
        let record = Record::begin(&handle.log, &work);
        let (reply, answered) = oneshot::channel();
        let (kind, text) = work.describe();
        let (measure, came) = ((kind, text.len()), ringfence_core::now_ms());
        handle.calls.try_send(Call { work, timeout, cancel, visit, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                let waiting = self.0.settings.max_queued_calls;
                Failure::new(Kind::Busy, format!("{waiting} calls wait in this session already"))
                    .with("rule", "sessions.max_queued_calls")
                    .hint("wait for the calls under way, or use another session")
            }
            mpsc::error::TrySendError::Closed(_) => Failure::session_not_found(id),
        })?;
        // The session goes first: what is written down of the call can wait until it is on its way.
        tokio::task::yield_now().await;
        self.0.audit.record(events::call_started(principal, id, measure, timeout).at_time(came));
        // A session that ends while the call waits in it is no longer there.
        let outcome = answered.await.map_err(|_| Failure::session_not_found(id))??;
        record.end(outcome.status, outcome.exit_code);
        Ok(outcome)
    }

    async fn create(
        &self,
        principal: &Principal,
        wanted: &Wanted,
        interpreter: Interpreter,
    ) -> Result<(SessionId, Handle, Visit), Failure> {
        let (start, settings) = (Instant::now(), &self.0.settings);
        let (template, flavor) = request_checks::choose(settings, wanted)?;
        self.health().map_err(|why| Failure::new(Kind::Busy, why))?;
        let id = SessionId::random().map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
        let place = self.take_place(&id, principal, flavor).await?;
        // From the start, so that it is not evicted before its first call.
        let visit = place.shared.enter().ok_or_else(|| Failure::session_not_found(&id))?;
        let descriptor = SessionDescriptor {
            id: id.clone(),
            principal: principal.clone(),
            template: template.clone(),
            flavor: flavor.clone(),
            created: now(),
        };
        let prepared = self.0.move_in(&descriptor, interpreter).await?;
        let handle = self.settle(descriptor, prepared, place);
        self.0.audit.record(events::created(principal, &id, template, flavor, start.elapsed()));
        Ok((id, handle, visit))
    }

    /// Takes a place once those that must make room for it have ended.
    pub(crate) async fn take_place(
        &self,
        id: &SessionId,
        principal: &Principal,
        flavor: &Flavor,
    ) -> Result<Place, Failure> {
        let note = |id: &SessionId, owner: &Principal| self.0.audit.record(events::evicted(owner, id, principal));
        let (place, evicted) = self.0.places.take(id, principal, flavor.limits.memory_bytes, note)?;
        for id in evicted {
            let ended = self.live().get(&id).map(|handle| handle.ended.clone());
            if let Some(ended) = ended {
                ended.cancelled().await;
            }
        }
        Ok(place)
    }

    pub(crate) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    pub(crate) fn find(&self, principal: &Principal, id: &SessionId) -> Result<Handle, Failure> {
        let found = self.live().get(id).filter(|handle| handle.is_there_for(principal)).cloned();
        found.ok_or_else(|| Failure::session_not_found(id))
    }

    pub(crate) fn live(&self) -> MutexGuard<'_, HashMap<SessionId, Handle>> {
        self.0.live.lock()
    }
}

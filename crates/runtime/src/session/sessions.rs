//! All live sessions of a server: made, found, limited, stopped.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfence_sandbox::Volume;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::admission::{Place, Places};
use super::adoption::Keeping;
use super::call::Outcome;
use super::doors::Doors;
use super::events;
use super::launchers::Launchers;
use super::limits::ServiceLimits;
use super::log::Record;
use super::pool::Pool;
use super::prepare::{self, Interpreter};
use super::resident::{Call, Work};
use super::settings::Settings;
use super::shared::{Visit, now};
use super::state::{EndReason, State};
use super::tenancy::{Handle, Tenancy, Trouble};
use super::{
    Answer, Choice, CodeRequest, CommandRequest, Failure, Kind, Principal, SessionId, SessionInfo, Stopped, warmth,
};
use crate::audit::{self, Audit, AuditEvent};
use crate::config::CODE_FLAVOR;
use crate::flavor::Flavor;
use crate::store::{Store, StoreError};
use crate::supervision::Identity;
use crate::template::Language;

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Sessions(pub(super) Arc<Inner>);

pub(super) struct Inner {
    pub(super) settings: Settings,
    pub(super) launchers: Launchers,
    pub(super) pool: Pool,
    places: Places,
    pub(super) live: Mutex<HashMap<SessionId, Handle>>,
    pub(super) tasks: TaskTracker,
    pub(super) audit: Audit,
    pub(super) keeping: Option<Keeping>,
    /// Why the last sandbox of the usual kind could not be made, if so.
    pub(super) trouble: Mutex<Option<Trouble>>,
}

impl Sessions {
    /// `program` is ringfence itself: sandboxes are made by a helper process of it.
    pub fn new(settings: Settings, program: PathBuf) -> Self {
        Self::build(settings, program, Audit::nowhere(), None)
    }

    /// The same, with an audit of all that happens.
    pub fn audited(settings: Settings, program: PathBuf, audit: Audit) -> Self {
        Self::build(settings, program, audit, None)
    }

    /// Sessions that outlive a server that dies, for which `directory` is the place of the launchers' sockets; those
    /// that another has left behind are taken over.
    pub async fn kept(
        settings: Settings,
        program: PathBuf,
        store: Store,
        directory: PathBuf,
    ) -> Result<Self, StoreError> {
        let mark = settings.scope.as_ref().map(|scope| scope.tag.clone());
        let doors = Doors { directory, mark, keeper: Identity::of_own_supervisor() };
        let keeping = Keeping { store: store.clone(), doors };
        let audit = Audit::in_store(store).of_run(settings.scope.as_ref().map(|scope| &scope.run));
        let sessions = Self::build(settings, program, audit, Some(keeping));
        sessions.adopt().await?;
        Ok(sessions)
    }

    fn build(settings: Settings, program: PathBuf, audit: Audit, keeping: Option<Keeping>) -> Self {
        let places = Places::new(ServiceLimits::from(&settings));
        let directory = prepare::interpreter_directory(Language::Python);
        // Whoever wants none ready wants no interpreter kept warm either.
        let is_pooled = settings.pool.get(Language::Python.name()).is_some_and(|size| *size > 0);
        let warmth = if is_pooled { warmth::python(directory.as_deref(), &settings.preload) } else { None };
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
        if request.code.trim().is_empty() {
            let failure = Failure::new(Kind::Validation, "code is empty").suggest("send the code to run");
            return Err(self.refused(principal, request.session_id.as_ref(), failure));
        }
        if request.code.len() > MOST_CODE_BYTES {
            let most = ringfence_sandbox::bytes::show(MOST_CODE_BYTES as u64);
            let message = format!("code has {} bytes, more than the limit of {most}", request.code.len());
            let failure = Failure::new(Kind::Validation, message).with("field", "code");
            let failure = failure.suggest("write data and programs to files with write_file, and run those");
            return Err(self.refused(principal, request.session_id.as_ref(), failure));
        }
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
        check_line(&request.command).map_err(|failure| {
            self.refused(principal, request.session_id.as_ref(), failure.with("field", "command"))
        })?;
        let CommandRequest { command, template, flavor, session_id, timeout } = request;
        let wanted = Wanted { template, flavor, session_id, timeout };
        let asked = wanted.session_id.clone();
        let called = self.call(principal, wanted, Work::Command(command), cancel).await;
        called.map_err(|failure| self.refused(principal, asked.as_ref(), failure))
    }

    pub fn list(&self, principal: &Principal) -> Vec<SessionInfo> {
        let own: Vec<Handle> = {
            let live = self.live();
            live.values().filter(|handle| principal.sees(&handle.tenancy.principal)).cloned().collect()
        };
        let mut infos: Vec<SessionInfo> = own.iter().map(|handle| handle.describe(&self.0.settings)).collect();
        infos.sort_by(|one, other| (one.created, &one.session_id).cmp(&(other.created, &other.session_id)));
        infos
    }

    pub fn info(&self, principal: &Principal, id: &SessionId) -> Result<SessionInfo, Failure> {
        let handle = self.find(principal, id).map_err(|failure| self.refused(principal, Some(id), failure))?;
        Ok(handle.describe(&self.0.settings))
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
        let found = live.get(id).filter(|handle| principal.sees(&handle.tenancy.principal));
        let language = found.map(|handle| handle.tenancy.template.language);
        drop(live);
        language.ok_or_else(|| self.refused(principal, Some(id), Failure::not_found(id)))
    }

    /// What would be spoken in a session of this template.
    pub fn template_language(&self, template: Option<&str>) -> Result<Language, Failure> {
        let settings = &self.0.settings;
        let found = settings.templates.find(template.unwrap_or(&settings.default_template));
        found.map(|template| template.language).map_err(|error| invalid(&error))
    }

    /// Ends a session and frees everything it had.
    pub async fn stop(&self, principal: &Principal, id: &SessionId) -> Result<Stopped, Failure> {
        let handle = self.find(principal, id).map_err(|failure| self.refused(principal, Some(id), failure))?;
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
        self.0.audit.record(AuditEvent::refusal(&failure).of(principal, session));
        failure
    }

    /// What every session is shown of the host.
    pub fn volumes(&self) -> &[Volume] {
        &self.0.settings.volumes
    }

    /// What callers may ask for.
    pub fn choice(&self) -> Choice {
        let Settings { templates, flavors, default_template, default_flavor, .. } = &self.0.settings;
        let sizes = flavors.iter().map(|flavor| &*flavor.name).filter(|name| *name != CODE_FLAVOR);
        Choice {
            templates: offer(templates.iter().map(|template| &*template.name), default_template),
            flavors: offer(sizes, default_flavor),
        }
    }

    /// Why no session could be started now, if so.
    pub fn health(&self) -> Result<(), String> {
        if self.0.tasks.is_closed() { Err("the server is shutting down".into()) } else { Ok(()) }
    }

    /// Why the last sandbox of the usual kind could not be made, if so.
    pub fn trouble(&self) -> Option<String> {
        self.0.trouble().as_ref().map(|trouble| trouble.why.clone())
    }

    /// Whether sessions can be started: whether sandboxes can be made and what happens be written down. What has failed is tried again.
    pub async fn check_health(&self) -> Result<(), String> {
        self.health()?;
        self.0.check_sandboxes().await?;
        match &self.0.keeping {
            Some(keeping) => keeping.store.check().await.map_err(|error| format!("the store fails: {error}")),
            None => Ok(()),
        }
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
        let timeout = self.check_timeout(wanted.timeout)?;
        let session_created = wanted.session_id.is_none();
        let mut ignored = Vec::new();
        let (id, handle, visit) = if let Some(id) = &wanted.session_id {
            let handle = self.find(principal, id)?;
            ignored = self.check_choice(&wanted, &handle)?;
            let visit = handle.shared.enter().ok_or_else(|| Failure::not_found(id))?;
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
        handle.outputs.keep([&mut stdout, &mut stderr]);
        let duration = start.elapsed();
        ignored.extend(notices);
        Ok(Answer {
            session_id: id,
            session_created,
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
        let (measure, came) = ((kind, text.len()), audit::now_ms());
        handle.calls.try_send(Call { work, timeout, cancel, visit, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                let waiting = self.0.settings.most_queued_calls;
                Failure::new(Kind::Busy, format!("{waiting} calls wait in this session already"))
                    .with("rule", "sessions.max_queued_calls")
                    .suggest("wait for the calls under way, or use another session")
            }
            mpsc::error::TrySendError::Closed(_) => Failure::not_found(id),
        })?;
        // The session goes first: what is written down of the call can wait until it is on its way.
        tokio::task::yield_now().await;
        self.0.audit.record(events::call_started(principal, id, measure, timeout).at(came));
        // A session that ends while the call waits in it is no longer there.
        let outcome = answered.await.map_err(|_| Failure::not_found(id))??;
        record.end(outcome.status, outcome.exit_code);
        Ok(outcome)
    }

    /// What a caller has asked of a session that is another already, in words: a wish that cannot be one is refused.
    fn check_choice(&self, wanted: &Wanted, handle: &Handle) -> Result<Vec<String>, Failure> {
        let (settings, tenancy) = (&self.0.settings, &handle.tenancy);
        let mut ignored = Vec::new();
        let mut compare = |what: &str, asked: &str, has: &str| {
            if asked != has {
                ignored.push(format!("{what} `{asked}` is ignored: this session has `{has}`"));
            }
        };
        if let Some(asked) = &wanted.template {
            let asked = settings.templates.find(asked).map_err(|error| invalid(&error))?;
            compare("template", &asked.name, &tenancy.template.name);
        }
        if let Some(asked) = &wanted.flavor {
            let asked = settings.flavors.find(asked).map_err(|error| invalid(&error))?;
            compare("flavor", &asked.name, &tenancy.flavor.name);
        }
        Ok(ignored)
    }

    fn check_timeout(&self, wanted: Option<Duration>) -> Result<Duration, Failure> {
        let most = self.0.settings.most_timeout;
        match wanted {
            None => Ok(self.0.settings.timeout.min(most)),
            Some(timeout) if !timeout.is_zero() && timeout <= most => Ok(timeout),
            Some(timeout) => {
                let message =
                    format!("a timeout of {} s is not between 0 and {} s", timeout.as_secs_f64(), most.as_secs());
                Err(Failure::new(Kind::Validation, message)
                    .with("rule", "sessions.max_timeout_s")
                    .suggest("ask for less time, or let an administrator raise sessions.max_timeout_s"))
            }
        }
    }

    async fn create(
        &self,
        principal: &Principal,
        wanted: &Wanted,
        interpreter: Interpreter,
    ) -> Result<(SessionId, Handle, Visit), Failure> {
        let (start, settings) = (Instant::now(), &self.0.settings);
        let template = wanted.template.as_deref().unwrap_or(&settings.default_template);
        let template = settings.templates.find(template).map_err(|error| invalid(&error))?;
        let flavor = wanted.flavor.as_deref().unwrap_or(&settings.default_flavor);
        let flavor = settings.flavors.find(flavor).map_err(|error| invalid(&error))?;
        self.health().map_err(|why| Failure::new(Kind::Busy, why))?;
        let id = SessionId::draw().map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
        let place = self.take_place(&id, principal, flavor).await?;
        // From the start, so that it is not evicted before its first call.
        let visit = place.shared.enter().ok_or_else(|| Failure::not_found(&id))?;
        let tenancy = Tenancy {
            id: id.clone(),
            principal: principal.clone(),
            template: template.clone(),
            flavor: flavor.clone(),
            created: now(),
        };
        let prepared = self.0.move_in(&tenancy, interpreter).await?;
        let handle = self.settle(tenancy, prepared, place);
        self.0.audit.record(events::created(principal, &id, template, flavor, start.elapsed()));
        Ok((id, handle, visit))
    }

    /// Takes a place once those that must make room for it have ended.
    pub(super) async fn take_place(
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

    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    pub(super) fn find(&self, principal: &Principal, id: &SessionId) -> Result<Handle, Failure> {
        let found = self.live().get(id).filter(|handle| principal.sees(&handle.tenancy.principal)).cloned();
        found.ok_or_else(|| Failure::not_found(id))
    }

    pub(super) fn live(&self) -> MutexGuard<'_, HashMap<SessionId, Handle>> {
        self.0.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a request says about the session it wants.
struct Wanted {
    template: Option<String>,
    flavor: Option<String>,
    session_id: Option<SessionId>,
    timeout: Option<Duration>,
}

fn invalid(error: &dyn std::error::Error) -> Failure {
    Failure::new(Kind::Validation, error.to_string())
        .suggest("name one of those, or leave it out")
        .suggest("or let an administrator add it to the configuration")
}

/// More than anybody writes; interpreters take twice as much, with what is escaped.
const MOST_CODE_BYTES: usize = 8 << 20;

/// A shell is given its line as an argument, which Linux bounds at 128 KiB, and in a frame of the init's.
const MOST_LINE_BYTES: usize = 96 << 10;

fn check_line(line: &str) -> Result<(), Failure> {
    let invalid = |message: String| Failure::new(Kind::Validation, message);
    if line.trim().is_empty() {
        return Err(invalid("command is empty".into()).suggest("send the shell line to run"));
    }
    if line.len() > MOST_LINE_BYTES {
        let most = ringfence_sandbox::bytes::show(MOST_LINE_BYTES as u64);
        return Err(invalid(format!("command has {} bytes, more than the limit of {most}", line.len()))
            .suggest("write it to a file with write_file and run that, or use the bash template of execute_code"));
    }
    if line.contains('\0') {
        return Err(invalid("command has a NUL in it, which no argument can have".into())
            .suggest("write binary data with write_file"));
    }
    Ok(())
}

/// Names as they are offered, with the one that is taken where none is named.
fn offer<'a>(names: impl Iterator<Item = &'a str>, default: &str) -> String {
    let mark = |name: &str| if name == default { format!("{name} (default)") } else { name.to_owned() };
    names.map(mark).collect::<Vec<_>>().join(", ")
}

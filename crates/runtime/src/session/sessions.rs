//! All live sessions of a server: made, found, limited, stopped.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ringfence_sandbox::launcher::Launched;
use ringfence_sandbox::{Enforcement, Volume};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::call::Outcome;
use super::files::Files;
use super::guest::Guest;
use super::launch::Helper;
use super::log::{Log, Record};
use super::processes::Processes;
use super::resident::{Call, Resident, Shared, Work, now};
use super::settings::Settings;
use super::whole::Outputs;
use super::{
    Answer, CodeRequest, CommandRequest, Failure, Kind, Principal, SessionId, SessionInfo, SessionStatus, Stopped,
    language,
};
use crate::flavor::Flavor;
use crate::interpreter;
use crate::template::Template;

/// Calls that may wait for their turn in one session.
const QUEUED: usize = 32;

/// Cheap to clone; all clones are one.
#[derive(Clone)]
pub struct Sessions(Arc<Inner>);

struct Inner {
    settings: Settings,
    helper: Helper,
    places: Arc<Semaphore>,
    live: Mutex<HashMap<SessionId, Handle>>,
    tasks: TaskTracker,
}

/// What is kept of a live session outside of its own task.
#[derive(Clone)]
pub(super) struct Handle {
    principal: Principal,
    template: Template,
    flavor: Flavor,
    created: u64,
    enforcement: Enforcement,
    pid: rustix::process::Pid,
    pub(super) shared: Arc<Shared>,
    pub(super) log: Arc<Log>,
    pub(super) outputs: Arc<Outputs>,
    pub(super) files: Files,
    pub(super) processes: Arc<Processes>,
    calls: mpsc::Sender<Call>,
    stop: CancellationToken,
    ended: CancellationToken,
}

impl Sessions {
    /// `program` is ringfence itself: sandboxes are made by a helper process of it.
    pub fn new(settings: Settings, program: PathBuf) -> Self {
        let places = Arc::new(Semaphore::new(settings.most_sessions));
        let (helper, live, tasks) = (Helper::new(program), Mutex::default(), TaskTracker::new());
        Self(Arc::new(Inner { settings, helper, places, live, tasks }))
    }

    /// Makes a session without running anything in it yet.
    pub async fn create_session(
        &self,
        principal: &Principal,
        template: Option<String>,
        flavor: Option<String>,
    ) -> Result<SessionInfo, Failure> {
        let wanted = Wanted { template, flavor, session_id: None, timeout: None };
        let (id, handle) = self.create(principal, &wanted).await?;
        Ok(self.describe(&id, &handle).await)
    }

    /// Runs code in a session, which is made if none is named.
    pub async fn execute(
        &self,
        principal: &Principal,
        request: CodeRequest,
        cancel: CancellationToken,
    ) -> Result<Answer, Failure> {
        if request.code.trim().is_empty() {
            return Err(Failure::new(Kind::Validation, "code is empty").suggest("send the code to run"));
        }
        let CodeRequest { code, template, flavor, session_id, timeout } = request;
        let wanted = Wanted { template, flavor, session_id, timeout };
        self.call(principal, wanted, Work::Code(code), cancel).await
    }

    /// Runs one shell line in a session, which is made if none is named.
    pub async fn run_command(
        &self,
        principal: &Principal,
        request: CommandRequest,
        cancel: CancellationToken,
    ) -> Result<Answer, Failure> {
        if request.command.trim().is_empty() {
            return Err(Failure::new(Kind::Validation, "command is empty").suggest("send the shell line to run"));
        }
        let CommandRequest { command, template, flavor, session_id, timeout } = request;
        let wanted = Wanted { template, flavor, session_id, timeout };
        self.call(principal, wanted, Work::Command(command), cancel).await
    }

    pub async fn list(&self, principal: &Principal) -> Vec<SessionInfo> {
        let own: Vec<(SessionId, Handle)> = {
            let live = self.live();
            let own = live.iter().filter(|(_, handle)| principal.sees(&handle.principal));
            own.map(|(id, handle)| (id.clone(), handle.clone())).collect()
        };
        let mut infos = Vec::new();
        for (id, handle) in own {
            infos.push(self.describe(&id, &handle).await);
        }
        infos.sort_by(|one, other| (one.created, &one.session_id).cmp(&(other.created, &other.session_id)));
        infos
    }

    pub async fn info(&self, principal: &Principal, id: &SessionId) -> Result<SessionInfo, Failure> {
        let handle = self.find(principal, id)?;
        Ok(self.describe(id, &handle).await)
    }

    /// Ends a session and frees everything it had.
    pub async fn stop(&self, principal: &Principal, id: &SessionId) -> Result<Stopped, Failure> {
        let handle = self.find(principal, id)?;
        let was_running = handle.shared.busy.load(std::sync::atomic::Ordering::Relaxed);
        handle.stop.cancel();
        handle.ended.cancelled().await;
        Ok(Stopped { was_running })
    }

    /// What every session is shown of the host.
    pub fn volumes(&self) -> &[Volume] {
        &self.0.settings.volumes
    }

    /// Why no session could be started now, if so.
    pub fn health(&self) -> Result<(), String> {
        if self.0.tasks.is_closed() { Err("the server is shutting down".into()) } else { Ok(()) }
    }

    /// Ends all sessions.
    pub async fn shut_down(&self) {
        self.0.tasks.close();
        for handle in self.live().values() {
            handle.stop.cancel();
        }
        self.0.tasks.wait().await;
        self.0.helper.end().await;
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
        let (id, handle) = if let Some(id) = &wanted.session_id {
            (id.clone(), self.find(principal, id)?)
        } else {
            self.create(principal, &wanted).await?
        };
        let record = Record::begin(&handle.log, &work);
        let (reply, answered) = oneshot::channel();
        handle.calls.try_send(Call { work, timeout, cancel, reply }).map_err(|error| match error {
            mpsc::error::TrySendError::Full(_) => {
                Failure::new(Kind::ResourceLimit, format!("{QUEUED} calls wait in this session already"))
                    .suggest("wait for the calls under way, or use another session")
            }
            mpsc::error::TrySendError::Closed(_) => Failure::not_found(&id),
        })?;
        // A session that ends while the call waits in it is no longer there.
        let outcome = answered.await.map_err(|_| Failure::not_found(&id))??;
        let Outcome { status, exit_code, mut stdout, mut stderr, result, error, display, notices } = outcome;
        handle.outputs.keep([&mut stdout, &mut stderr]);
        let duration = start.elapsed();
        record.end(status, exit_code);
        Ok(Answer {
            session_id: id,
            session_created,
            status,
            exit_code,
            stdout,
            stderr,
            result,
            error,
            display,
            duration,
            notices,
        })
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
                    .suggest("ask for less time, or let an administrator raise the limit"))
            }
        }
    }

    async fn create(&self, principal: &Principal, wanted: &Wanted) -> Result<(SessionId, Handle), Failure> {
        let settings = &self.0.settings;
        let template = wanted.template.as_deref().unwrap_or(&settings.default_template);
        let template: Template = template.parse().map_err(|error| invalid(&error))?;
        let flavor = wanted.flavor.as_deref().unwrap_or(&settings.default_flavor);
        let flavor: Flavor = flavor.parse().map_err(|error| invalid(&error))?;
        self.health().map_err(|why| Failure::new(Kind::ResourceLimit, why))?;
        let place = Arc::clone(&self.0.places).try_acquire_owned().map_err(|_| {
            Failure::new(Kind::ResourceLimit, format!("all {} sessions are in use", settings.most_sessions))
                .suggest("stop a session that is no longer needed with stop_session")
                .suggest("or let an administrator raise the limit of sessions")
        })?;
        let id = SessionId::draw().map_err(|error| Failure::new(Kind::Internal, error.to_string()))?;
        let mut spec = template.spec(flavor, Vec::new());
        spec.command = None;
        spec.files = language::files();
        spec.volumes.clone_from(&settings.volumes);
        if let Some(found) = interpreter::find(template.interpreter()) {
            spec.volumes.push(found.volume);
            let path = spec.environment.entry("PATH".into()).or_default();
            *path = format!("{}:{path}", found.directory.display());
        }
        let environment = spec.environment.clone();
        let launched = self.0.helper.launch(spec).await?;
        let handle = self.settle(&id, principal, template, flavor, launched, environment, place)?;
        Ok((id, handle))
    }

    #[allow(clippy::too_many_arguments)]
    fn settle(
        &self,
        id: &SessionId,
        principal: &Principal,
        template: Template,
        flavor: Flavor,
        launched: Launched,
        environment: std::collections::BTreeMap<String, String>,
        place: OwnedSemaphorePermit,
    ) -> Result<Handle, Failure> {
        let enforcement = launched.enforcement;
        let guest = Guest::new(launched, environment).map_err(|error| {
            Failure::new(Kind::SandboxCreation, format!("the sandbox cannot be spoken to: {error}"))
        })?;
        let (calls, receiver) = mpsc::channel(QUEUED);
        let handle = Handle {
            principal: principal.clone(),
            template,
            flavor,
            created: now(),
            enforcement,
            pid: guest.pid(),
            shared: Arc::default(),
            log: Arc::default(),
            outputs: Arc::default(),
            files: Files::new(guest.control()),
            processes: guest.processes(),
            calls,
            stop: CancellationToken::new(),
            ended: CancellationToken::new(),
        };
        handle.shared.touch();
        let resident = Resident {
            guest,
            template,
            memory_limit: flavor.limits.memory_bytes,
            helper: self.0.helper.clone(),
            shared: Arc::clone(&handle.shared),
            calls: receiver,
            stop: handle.stop.clone(),
            idle_timeout: self.0.settings.idle_timeout,
        };
        self.live().insert(id.clone(), handle.clone());
        let (inner, ended, id) = (Arc::clone(&self.0), handle.ended.clone(), id.clone());
        self.0.tasks.spawn(async move {
            resident.live().await;
            inner.live.lock().unwrap_or_else(PoisonError::into_inner).remove(&id);
            drop(place);
            ended.cancel();
        });
        Ok(handle)
    }

    pub(super) fn tasks(&self) -> &TaskTracker {
        &self.0.tasks
    }

    pub(super) fn find(&self, principal: &Principal, id: &SessionId) -> Result<Handle, Failure> {
        let found = self.live().get(id).filter(|handle| principal.sees(&handle.principal)).cloned();
        found.ok_or_else(|| Failure::not_found(id))
    }

    async fn describe(&self, id: &SessionId, handle: &Handle) -> SessionInfo {
        let used = self.0.helper.examine(handle.pid).await.memory_bytes;
        let by = |cgroup: bool, otherwise| if cgroup { "cgroup" } else { otherwise };
        let busy = handle.shared.busy.load(std::sync::atomic::Ordering::Relaxed);
        SessionInfo {
            session_id: id.clone(),
            principal: handle.principal.name().into(),
            template: handle.template.name().into(),
            flavor: handle.flavor.name.into(),
            status: if busy { SessionStatus::Busy } else { SessionStatus::Idle },
            created: handle.created,
            last_used: handle.shared.last_used(),
            expires: handle.shared.last_used() + self.0.settings.idle_timeout.as_secs(),
            memory_bytes: handle.enforcement.memory_by_cgroup.then_some(used),
            memory_limit_bytes: handle.flavor.limits.memory_bytes,
            backend: "native",
            enforced_by: [
                ("memory", by(handle.enforcement.memory_by_cgroup, "rlimit and watchdog")),
                ("processes", by(handle.enforcement.pids_by_cgroup, "rlimit")),
                ("cpu", by(handle.enforcement.cpu_by_cgroup, "affinity")),
            ]
            .into(),
        }
    }

    fn live(&self) -> MutexGuard<'_, HashMap<SessionId, Handle>> {
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
}

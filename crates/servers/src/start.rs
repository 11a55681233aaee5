//! The start of a server in a sandbox: what it needs is looked at, installed, copied in, and then it is run.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Command, Network, Root, Spec};

use super::host::Host;
use super::host_path::interpreter_name;
use super::hosted::Hosted;
use super::install::{self, Installed};
use super::needs::{Need, Needs, Program};
use super::packages::Packages;
use super::phase::{Phase, StartFailure};
use super::plan::Plan;
use super::programs;
use super::progress::Progress;
use super::shared::{Lodger, MARK};
use super::stage::{self, Bounds, Project};
use super::tail::Tail;
use super::written_names::Report;
use crate::server_sandbox::{Cell, Inmate};
use ringfence_backend::interpreter;
use ringfence_backend::protected_names;
use ringfence_backend::protected_names::ProtectedNames;
use ringfence_config::GuestWritten;
use ringfence_core::Flavor;
use ringfence_core::{Language, Template, proxy_environment};
use ringfence_egress::{Policy, Rule};
use ringfence_entries::{HostPathMode, SandboxSettings, ServerEntry, StdioSettings};

/// For the init to say whether it could start a process.
const PATIENCE: Duration = Duration::from_secs(30);

/// Arguments and variables together; a frame to the init holds several times as much.
const MOST_ARGUMENT_BYTES: usize = 128 << 10;

pub(crate) async fn start(
    host: &Host,
    entry: &ServerEntry,
    settings: &StdioSettings,
    progress: &Progress,
) -> Result<Hosted, StartFailure> {
    check(entry, settings)?;
    let rules = rules(&settings.sandbox_settings.allow)?;
    progress.say(Phase::SessionCreate, "looking at what it needs");
    let (plan, needs, kept, walls) = {
        let (entry, settings, host) = (entry.clone(), settings.clone(), host.clone());
        let planned = tokio::task::spawn_blocking(move || {
            let mut plan = Plan::of(&entry, &settings)?;
            if let Some(confinement) = &host.0.settings.confinement {
                plan.confine(confinement)?;
            }
            let kept = plan.keep(&host.0.settings.own)?;
            host.0.settings.guest_writable.add(&plan.volumes).map_err(|error| {
                StartFailure::lasting(Phase::SessionCreate, error.to_string()).hint(GuestWritten::HINT)
            })?;
            let mut walls = settings.sandbox_settings.clone();
            walls.image = image(&host, walls.image.as_deref())?;
            let needs = Needs::of(&plan, &settings)?;
            Ok::<_, StartFailure>((plan, needs, kept, walls))
        });
        planned.await.map_err(|error| StartFailure::transient(Phase::SessionCreate, error.to_string()))??
    };
    let walls = &walls;
    let mut installed = Vec::new();
    for need in &needs.wanted {
        if plan.mode == HostPathMode::ReadWrite && matches!(need, Need::NodeProject { .. }) {
            // A project that is mounted brings its packages: they are looked for in it, and nothing is written there.
            continue;
        }
        installed.push(install::ensure(host, need, walls, plan.project.as_ref(), progress).await?);
    }
    let program = program(&needs, &installed)?;

    progress.say(Phase::SessionCreate, "making its sandbox");
    let tail: Arc<Tail> = Arc::default();
    let mut spec = specify(host, walls);
    spec.volumes.extend(plan.volumes.iter().cloned());
    spec.protected_paths = kept;
    spec.strict_volumes.clone_from(&host.0.settings.strict_volumes);
    if walls.shared {
        spec.volumes.push(Packages::whole(host.cache()).map_err(|error| {
            StartFailure::lasting(Phase::SessionCreate, format!("the package cache cannot be used: {error}"))
        })?);
        add_interpreters(&mut spec, &["python3", "node"]);
    } else {
        spec.volumes.extend(installed.iter().map(|installed| installed.packages.volume()));
        add_interpreters(&mut spec, &["python3", "node", &program]);
    }
    let memory_limit = spec.limits.memory_bytes;
    let bounds = Bounds::of(&spec.workspace);
    let mut path = spec.environment.get("PATH").cloned().unwrap_or_default();
    for installed in &installed {
        path = format!("{}:{path}", installed.programs().display());
    }
    let argv: Vec<OsString> = std::iter::once(&program).chain(&needs.args).map(Into::into).collect();
    let command = Command { argv, workdir: needs.workdir.clone() };
    let make = |spec: Spec, tail| Cell::make(&host.0.launchers, spec, rules.clone(), tail);

    if walls.shared {
        let kind = serde_json::to_string(&(&spec, &walls.allow)).unwrap_or_default();
        let cell = host.0.lodgings.enter(kind, make(spec, None)).await?;
        let mut lodger = Lodger::new(Arc::clone(&cell), &entry.uuid);
        let area = Lodger::area(&entry.uuid);
        let mut environment = environment(&plan, &path, &area, &walls.allow);
        environment.insert(MARK.into(), entry.uuid.clone());
        let project = staged(&plan, &installed).unwrap_or_else(|| empty(&area));
        progress.say(Phase::SessionCreate, "copying its files");
        stage::copy_in(&cell, &project, bounds).await?;
        progress.say(Phase::ProcessStart, "starting its process");
        let inmate = cell.start(&command, &environment)?;
        lodger.runs(inmate.handle());
        started(&inmate, &command).await?;
        return Ok(Hosted::lodging(lodger, inmate, memory_limit, tail));
    }
    let made = ProtectedNames::around(protected_names::writable(&spec), make(spec, Some(Arc::clone(&tail))));
    let (cell, names) = made.await?;
    if let Some(project) = staged(&plan, &installed) {
        progress.say(Phase::SessionCreate, "copying its files");
        stage::copy_in(&cell, &project, bounds).await?;
    }
    progress.say(Phase::ProcessStart, "starting its process");
    // Not the workspace: files of the project must not be taken for a person's settings.
    let inmate = cell.start(&command, &environment(&plan, &path, "/tmp", &walls.allow))?;
    started(&inmate, &command).await?;
    if !names.is_empty() {
        let report = Report { names, audit: host.0.settings.audit.clone(), tail: Arc::clone(&tail) };
        host.0.reports.spawn(report.follow(entry.clone(), inmate.handle()));
    }
    Ok(Hosted::alone(cell, inmate, memory_limit, tail))
}

/// The program to start, now that all is installed.
fn program(needs: &Needs, installed: &[Installed]) -> Result<String, StartFailure> {
    let is_python = |installed: &&Installed| matches!(installed.need, Need::Pip { .. } | Need::PythonProject { .. });
    match &needs.program {
        Program::OfNpm(package) => {
            let from = installed.iter().find(|installed| matches!(installed.need, Need::Npm { .. }));
            let from = from.ok_or_else(|| StartFailure::lasting(Phase::DepInstall, "nothing was installed"))?;
            let name = programs::of_npm_package(&from.packages.host(), package)?;
            Ok(from.programs().join(name).display().to_string())
        }
        // The interpreter that has the packages, whatever place the entry names.
        Program::Named(name) if interpreter_name(name) == Some("python3") => {
            let found = installed.iter().find(is_python);
            Ok(found.map_or_else(|| name.clone(), |found| found.programs().join("python3").display().to_string()))
        }
        Program::Named(name) => {
            if let [Installed { need: Need::Pip { .. }, packages }] = installed {
                programs::check_brought(&packages.host().join("bin"), name)?;
            }
            Ok(name.clone())
        }
    }
}

/// A project that is copied.
fn staged(plan: &Plan, installed: &[Installed]) -> Option<Project> {
    let moved = plan.project.clone().filter(|_| plan.mode == HostPathMode::ReadOnly)?;
    // Node looks for packages beside the code.
    let link = installed.iter().find_map(|installed| match &installed.need {
        Need::NodeProject { guest, .. } => {
            let below = guest.strip_prefix(&moved.guest).unwrap_or(Path::new(""));
            Some((below.join("node_modules"), installed.packages.guest().join("node_modules")))
        }
        _ => None,
    });
    Some(Project { host: Some(moved.host), within: moved.within, guest: moved.guest, link })
}

/// Only the place of one.
fn empty(area: &str) -> Project {
    Project { host: None, within: None, guest: PathBuf::from(area), link: None }
}

fn check(entry: &ServerEntry, settings: &StdioSettings) -> Result<(), StartFailure> {
    let refuse = |message: &str| StartFailure::lasting(Phase::ProcessStart, message);
    if settings.command.trim().is_empty() {
        return Err(refuse("the entry names no command"));
    }
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if entry.uuid.is_empty() || !entry.uuid.bytes().all(is_name) {
        return Err(refuse("the entry's uuid is not one"));
    }
    let variables = settings.env.iter().chain(&settings.sandbox_settings.env);
    let length: usize = settings.args.iter().map(String::len).sum::<usize>()
        + variables.map(|(name, value)| name.len() + value.len()).sum::<usize>();
    if length > MOST_ARGUMENT_BYTES {
        return Err(refuse("its arguments and variables are longer than 128 KiB"));
    }
    Ok(())
}

/// The root file system that an entry names, if it is one that no guest can change.
fn image(host: &Host, given: Option<&Path>) -> Result<Option<PathBuf>, StartFailure> {
    let settings = &host.0.settings;
    let root = given.map(|given| settings.own.check_root(given, &settings.guest_writable)).transpose();
    root.map_err(|why| {
        StartFailure::lasting(Phase::BoxUnavailable, format!("the image of its box: {why}"))
            .hint("give a directory that holds another root file system, outside of what guests may write")
    })
}

/// What an entry may reach, as rules of the proxy.
pub(crate) fn rules(allow: &[String]) -> Result<Vec<Rule>, StartFailure> {
    let parsed = Policy::parse(allow.iter().map(String::as_str));
    parsed.map(|policy| policy.rules).map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        StartFailure::lasting(Phase::SessionCreate, format!("{error}{cause}")).hint(error.hint())
    })
}

/// A sandbox as an entry's box describes it.
pub(crate) fn specify(host: &Host, walls: &SandboxSettings) -> Spec {
    let mut limits = Flavor::small().limits;
    limits.memory_bytes = walls.memory_mb.map_or(limits.memory_bytes, |mib| mib.saturating_mul(1 << 20));
    limits.cpus = walls.cpus.unwrap_or(limits.cpus);
    limits.pids = walls.pids_limit.unwrap_or(limits.pids);
    let flavor = Flavor::new("server", limits);
    let mut spec = Template::builtin(Language::Bash).spec(&flavor, Vec::new());
    spec.command = None;
    spec.accept.clone_from(&host.0.settings.accept);
    spec.root = walls.image.clone().map_or(Root::Host, Root::Directory);
    if !walls.allow.is_empty() {
        spec.network = Network::Proxy;
    }
    spec
}

/// Shows interpreters that lie outside of what every sandbox is shown; a root of its own brings its own.
pub(crate) fn add_interpreters(spec: &mut Spec, names: &[&str]) {
    if spec.root != Root::Host {
        return;
    }
    for found in names.iter().filter_map(|name| interpreter::find(name)) {
        if !spec.volumes.iter().any(|volume| volume.guest == found.volume.guest) {
            spec.volumes.push(found.volume);
        }
        let path = spec.environment.entry("PATH".into()).or_default();
        let directory = found.directory.display().to_string();
        if !path.split(':').any(|known| known == directory) {
            *path = format!("{directory}:{path}");
        }
    }
}

/// What a process has: the entry's variables, and what any program needs. Nothing of the host's.
fn environment(plan: &Plan, path: &str, home: &str, allow: &[String]) -> BTreeMap<String, String> {
    let pairs = [("HOME", home), ("LANG", "C.UTF-8"), ("PATH", path), ("TMPDIR", "/tmp"), ("USER", "agent")];
    let mut environment: BTreeMap<String, String> =
        pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    if !allow.is_empty() {
        environment.extend(proxy_environment());
    }
    environment.extend(plan.environment.clone());
    environment
}

/// Waits until the process runs.
async fn started(inmate: &Inmate, command: &Command) -> Result<(), StartFailure> {
    let started = tokio::time::timeout(PATIENCE, inmate.handle().started()).await;
    match started {
        Ok(Ok(())) => Ok(()),
        Ok(Err(why)) => {
            let program = command.argv.first().map(|program| program.display().to_string()).unwrap_or_default();
            let message = format!("{program} cannot be started in {}: {why}", command.workdir.display());
            let hint = "a program is looked for inside the sandbox: in the host's /usr, in its project, and among its packages";
            Err(StartFailure::lasting(Phase::ProcessStart, message).hint(hint))
        }
        Err(_) => Err(StartFailure::transient(Phase::ProcessStart, "the sandbox did not start the process in time")),
    }
}

//! Starts a server in a sandbox: plans, installs dependencies, launches the sandbox, copies the project in, and starts
//! the process.

mod credentials;
mod protected_names_report;

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ringfence_core::{Command, Spec};

use crate::context::Context;
use crate::hosted::HostedServer;
use crate::install::{self, Installed};
use crate::phase::{Phase, Progress, StartFailure};
use crate::plan::{Dependency, Ecosystem, LaunchCommand, Plan, Program, interpreter_name};
use crate::server_sandbox::shared::{MARKER_VARIABLE, SharedServer};
use crate::server_sandbox::{
    Process, RefusalReport, ServerEgress, ServerSandbox, StderrTail, add_interpreters, egress_rules, sandbox_spec,
};
use crate::staging::{self, CopyLimits, Project};
use credentials::NewCredentials;
use protected_names_report::ProtectedNamesReport;
use ringfence_backend::protected_names;
use ringfence_backend::protected_names::ProtectedNames;
use ringfence_config::GuestWritten;
use ringfence_core::proxy_environment;
use ringfence_entries::{HostPathMode, SandboxSettings, ServerEntry, StdioSettings};

/// Timeout for the sandbox to start the server's process.
const PROCESS_START_TIMEOUT: Duration = Duration::from_secs(30);

/// Maximum size of arguments and variables together. A frame to the sandbox's init can be several times as large.
const MAX_ARGUMENT_BYTES: usize = 128 << 10;

/// Starts the server of an entry in a sandbox.
pub(crate) async fn start_in_sandbox(
    context: &Arc<Context>,
    entry: &ServerEntry,
    settings: &StdioSettings,
    progress: &Progress,
) -> Result<HostedServer, StartFailure> {
    check_entry(entry, settings)?;
    let rules = egress_rules(&settings.sandbox_settings.allow)?;
    progress.report(Phase::SessionCreate, "checking its dependencies");
    let Planned { plan, launch, protected_paths, settings: sandbox } = {
        let (context, entry, settings) = (Arc::clone(context), entry.clone(), settings.clone());
        let planned = tokio::task::spawn_blocking(move || plan(&context, &entry, &settings));
        planned.await.map_err(|error| StartFailure::transient(Phase::SessionCreate, error.to_string()))??
    };
    let sandbox = &sandbox;
    let credentials = NewCredentials::generate(context, sandbox, &rules).await?;
    let mut installed = Vec::new();
    for dependency in &launch.dependencies {
        if plan.mode == HostPathMode::ReadWrite && matches!(dependency, Dependency::NodeProject { .. }) {
            // A mounted Node project must contain its packages: node searches them in the project, and ringfence
            // installs nothing there.
            continue;
        }
        let project = plan.project.as_ref();
        installed.push(install::ensure_installed(context, dependency, sandbox, project, progress).await?);
    }
    let program = program(&launch, &installed)?;

    progress.report(Phase::SessionCreate, "creating its sandbox");
    let stderr_tail: Arc<StderrTail> = Arc::default();
    let mut spec = sandbox_spec(sandbox, &rules, &context.settings.accept);
    spec.volumes.extend(plan.volumes.iter().cloned());
    credentials.add_to(&mut spec);
    spec.protected_paths = protected_paths;
    spec.strict_volumes.clone_from(&context.settings.strict_volumes);
    if sandbox.shared {
        spec.volumes.push(install::whole_cache_volume(&context.settings.cache).map_err(|error| {
            StartFailure::permanent(Phase::SessionCreate, format!("the package cache cannot be used: {error}"))
        })?);
        add_interpreters(&mut spec, &["python3", "node"]);
    } else {
        spec.volumes.extend(installed.iter().map(Installed::volume));
        add_interpreters(&mut spec, &["python3", "node", &program]);
    }
    let memory_limit = spec.limits.memory_bytes;
    let limits = CopyLimits::of(&spec.workspace);
    let mut path = spec.environment.get("PATH").cloned().unwrap_or_default();
    for installed in &installed {
        path = format!("{}:{path}", installed.programs_directory().display());
    }
    let argv: Vec<OsString> = std::iter::once(&program).chain(&launch.args).map(Into::into).collect();
    let command = Command { argv, workdir: launch.workdir.clone() };
    let audit = &context.settings.audit;
    let launch_sandbox = |spec: Spec, report: RefusalReport| {
        let egress = ServerEgress { rules: rules.clone(), credentials: credentials.for_egress(), report };
        ServerSandbox::launch(&context.backend, spec, egress)
    };

    if sandbox.shared {
        let report = RefusalReport::SharedSandbox { server: entry.name.clone(), audit: audit.clone() };
        let common_settings = serde_json::to_string(&(&spec, &sandbox.allow)).unwrap_or_default();
        let launched = context.shared_sandboxes.get_or_launch(common_settings, launch_sandbox(spec, report)).await?;
        let mut shared = SharedServer::new(Arc::clone(&launched), &entry.uuid);
        let directory = SharedServer::directory(&entry.uuid);
        let mut environment = environment(&plan, &path, &directory);
        environment.insert(MARKER_VARIABLE.into(), entry.uuid.clone());
        let project = project_to_copy(&plan, &installed).unwrap_or_else(|| empty_directory(&directory));
        progress.report(Phase::SessionCreate, "copying its files");
        staging::copy_in(&launched, &project, limits).await?;
        progress.report(Phase::ProcessStart, "starting its process");
        let process = launched.start(&command, &environment)?;
        shared.set_process(process.handle());
        wait_until_started(&process, &command).await?;
        return Ok(HostedServer::in_shared_sandbox(shared, process, memory_limit, stderr_tail));
    }
    let report = RefusalReport::of_server(entry, &stderr_tail, audit);
    let launching = ProtectedNames::around(protected_names::writable(&spec), launch_sandbox(spec, report));
    let (launched, names) = launching.await?;
    if let Some(project) = project_to_copy(&plan, &installed) {
        progress.report(Phase::SessionCreate, "copying its files");
        staging::copy_in(&launched, &project, limits).await?;
    }
    progress.report(Phase::ProcessStart, "starting its process");
    // HOME is not the workspace: programs would read files of the project as settings of the user.
    let mut environment = environment(&plan, &path, "/tmp");
    environment.extend(credentials.environment());
    let process = launched.start(&command, &environment)?;
    wait_until_started(&process, &command).await?;
    if !names.is_empty() {
        let report = ProtectedNamesReport {
            names,
            audit: context.settings.audit.clone(),
            stderr_tail: Arc::clone(&stderr_tail),
        };
        context.protected_name_reports.spawn(report.run(entry.clone(), process.handle()));
    }
    Ok(HostedServer::in_sandbox(launched, process, memory_limit, stderr_tail))
}

/// The result of planning a start.
struct Planned {
    plan: Plan,
    launch: LaunchCommand,
    protected_paths: Vec<PathBuf>,
    /// The settings of the sandbox, with the checked path of the image.
    settings: SandboxSettings,
}

/// Plans a start, and checks what the server would see. Reads files; may block.
fn plan(context: &Context, entry: &ServerEntry, settings: &StdioSettings) -> Result<Planned, StartFailure> {
    let mut plan = Plan::of(entry, settings)?;
    if let Some(confinement) = &context.settings.confinement {
        plan.confine(confinement)?;
    }
    let protected_paths = plan.protected_paths(&context.settings.protected_paths)?;
    context
        .settings
        .guest_writable
        .add(&plan.volumes)
        .map_err(|error| StartFailure::permanent(Phase::SessionCreate, error.to_string()).hint(GuestWritten::HINT))?;
    let mut sandbox = settings.sandbox_settings.clone();
    sandbox.image = checked_image(context, sandbox.image.as_deref())?;
    let launch = LaunchCommand::of(&plan, settings)?;
    Ok(Planned { plan, launch, protected_paths, settings: sandbox })
}

/// Returns the program to start, after all dependencies are installed.
fn program(launch: &LaunchCommand, installed: &[Installed]) -> Result<String, StartFailure> {
    match &launch.program {
        Program::OfNpmPackage(package) => {
            let is_npm = |installed: &&Installed| matches!(installed.dependency, Dependency::NpmPackages { .. });
            let found = installed.iter().find(is_npm);
            let found = found.ok_or_else(|| {
                StartFailure::permanent(Phase::DepInstall, format!("the npm package {package} was not installed"))
            })?;
            let name = install::default_npm_program(&found.host(), package)?;
            Ok(found.programs_directory().join(name).display().to_string())
        }
        // The interpreter of the environment with the packages, whatever path the entry names.
        Program::Named(name) if interpreter_name(name) == Some("python3") => {
            let found = installed.iter().find(|installed| installed.dependency.ecosystem() == Ecosystem::Python);
            let python = found.map(|found| found.programs_directory().join("python3").display().to_string());
            Ok(python.unwrap_or_else(|| name.clone()))
        }
        Program::Named(name) => {
            if let [installed] = installed
                && matches!(installed.dependency, Dependency::PipPackages { .. })
            {
                install::check_program_exists(&installed.host().join("bin"), name)?;
            }
            Ok(name.clone())
        }
    }
}

/// Returns the project, if it is copied and not mounted.
fn project_to_copy(plan: &Plan, installed: &[Installed]) -> Option<Project> {
    let project = plan.project.clone().filter(|_| plan.mode == HostPathMode::ReadOnly)?;
    // Node searches packages beside the code.
    let link = installed.iter().find_map(|installed| match &installed.dependency {
        Dependency::NodeProject { guest, .. } => {
            let below = guest.strip_prefix(&project.guest).unwrap_or(Path::new(""));
            Some((below.join("node_modules"), installed.guest().join("node_modules")))
        }
        _ => None,
    });
    Some(Project { host: Some(project.host), allowed_root: project.allowed_root, guest: project.guest, link })
}

fn empty_directory(directory: &str) -> Project {
    Project { host: None, allowed_root: None, guest: PathBuf::from(directory), link: None }
}

fn check_entry(entry: &ServerEntry, settings: &StdioSettings) -> Result<(), StartFailure> {
    let refuse = |message: &str| StartFailure::permanent(Phase::ProcessStart, message);
    if settings.command.trim().is_empty() {
        return Err(refuse("`command` of the entry is empty"));
    }
    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    if entry.uuid.is_empty() || !entry.uuid.bytes().all(is_valid) {
        return Err(refuse("`uuid` of the entry is invalid"));
    }
    let variables = settings.env.iter().chain(&settings.sandbox_settings.env);
    let length: usize = settings.args.iter().map(String::len).sum::<usize>()
        + variables.map(|(name, value)| name.len() + value.len()).sum::<usize>();
    if length > MAX_ARGUMENT_BYTES {
        return Err(refuse("the arguments and variables of the entry are larger than 128 KiB"));
    }
    Ok(())
}

/// Returns the root file system that an entry names, and refuses one that guests could change.
fn checked_image(context: &Context, image: Option<&Path>) -> Result<Option<PathBuf>, StartFailure> {
    let settings = &context.settings;
    let root = image.map(|image| settings.protected_paths.check_root(image, &settings.guest_writable)).transpose();
    root.map_err(|reason| {
        StartFailure::permanent(Phase::BoxUnavailable, format!("`image` in the entry's box cannot be used: {reason}"))
            .hint("give a directory that contains another root file system and that guests cannot write")
    })
}

/// Returns the variables of a server's process: those of the entry, and those that every program needs. No variable of
/// the host is passed on.
fn environment(plan: &Plan, path: &str, home: &str) -> BTreeMap<String, String> {
    let pairs = [("HOME", home), ("LANG", "C.UTF-8"), ("PATH", path), ("TMPDIR", "/tmp"), ("USER", "agent")];
    let mut environment: BTreeMap<String, String> =
        pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    environment.extend(proxy_environment());
    environment.extend(plan.environment.clone());
    environment
}

async fn wait_until_started(process: &Process, command: &Command) -> Result<(), StartFailure> {
    let started = tokio::time::timeout(PROCESS_START_TIMEOUT, process.handle().wait_until_started()).await;
    match started {
        Ok(Ok(())) => Ok(()),
        Ok(Err(reason)) => {
            let program = command.argv.first().map(|program| program.display().to_string()).unwrap_or_default();
            let message = format!("{program} cannot be started in {}: {reason}", command.workdir.display());
            let hint = "the program must exist inside the sandbox: in the host's /usr, in the project, or in an installed package";
            Err(StartFailure::permanent(Phase::ProcessStart, message).hint(hint))
        }
        Err(_) => {
            Err(StartFailure::transient(Phase::ProcessStart, "the sandbox did not start the process within 30 s"))
        }
    }
}

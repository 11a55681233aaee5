//! `ringfence serve`: sandbox sessions as an MCP server, over stdio or HTTP.

mod arguments;
pub(super) mod hosting;
mod http;
pub(super) mod log;
mod operator_socket;
mod readiness;
mod scope;
mod session_name;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use ringfence_config::{Configuration, ProtectedPaths, cache_directory};
use ringfence_core::Volume;
use ringfence_egress::GuestFiles;
use ringfence_gateway::Gateway;
use ringfence_mcp::connection::ConnectionName;
use ringfence_mcp::stdio;
use ringfence_servers::guest_writable;
use ringfence_servers::import::client_files;
use ringfence_session::Sessions;
use ringfence_store::{Audit, Store, damage_reports};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio_util::sync::CancellationToken;

use crate::configuration::sources;
use crate::failure::Failure;
use crate::inherited_socket;
use crate::self_exe::SELF_EXE;
use crate::signals::{Signals, StopRequest};
use http::Http;
use readiness::Readiness;

pub(crate) use arguments::Arguments;
pub(super) use http::{http_options, listen, no_address};
pub(super) use scope::{RunScope, protect};

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let inherited = inherited_socket::take()?;
    let sources = sources(arguments.config.clone(), arguments.flags());
    let configuration = ringfence_config::load(&sources)?;
    let run_scope = RunScope::load(arguments.scope.as_deref(), &sources.environment)?;
    let scope = run_scope.as_ref().map(|run_scope| Arc::clone(&run_scope.scope));
    log::start(&configuration.log, scope.as_ref().map(|scope| &scope.run), std::io::stderr);
    for warning in &configuration.warnings {
        tracing::warn!("{warning}");
    }
    raise_descriptor_limit();
    forbid_core_dumps();
    let failed = |error: std::io::Error| Failure::new("cannot start the server").caused_by(&error);
    let program = PathBuf::from(SELF_EXE);
    // The other half of the CPUs is for the guests. On a small host a call then need not change threads.
    let workers = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().div_ceil(2));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().map_err(failed)?;
    // Checked before anything is written.
    let mut http = if arguments.stdio { None } else { Some(Http::new(arguments, &configuration, inherited)?) };
    if let (Some(http), Some(scope)) = (&mut http, &scope) {
        http.options.drain_timeout = scope.drain_timeout;
    }
    let settings = run_scope
        .iter()
        .try_fold(configuration.sessions.clone(), |settings, run_scope| run_scope.restrict(settings))?;
    let protected = run_scope.iter().try_fold(
        ProtectedPaths::of_server(&sources, &configuration, client_files(Some(&configuration))),
        |protected, run_scope| run_scope.protect_file(protected),
    )?;
    check_volumes(&settings.volumes)?;
    let settings = match &arguments.session {
        Some(name) => settings.with_process_name(name.as_str()),
        None => settings,
    };
    let settings = protect(settings, &protected)?.with_unpacked_images(cache_directory().as_deref())?;
    let secrets = configuration.secrets()?;
    let directory = configuration.state_directory()?;
    let store = Store::open(&directory)?;
    for report in damage_reports(&directory) {
        tracing::error!("{}; {}", report.message(), report.hint());
    }
    if let (Some(name), Some(tag)) = (&arguments.session, settings.adoption_tag()) {
        session_name::claim(&directory, name, &tag)?;
    }
    let launchers = directory.join("launchers");
    std::fs::create_dir_all(&launchers).map_err(failed)?;
    let served = runtime.block_on(async {
        let mut settings = settings;
        settings.flavors = settings.flavors.with(configuration.code.flavor());
        settings.guest_writable = guest_writable(&configuration, &settings.volumes, &store).await;
        settings.network.secrets = secrets.clone();
        GuestFiles::remove_stale(&std::env::temp_dir());
        let audit = Audit::in_store(store.clone()).with_run(scope.as_ref().map(|scope| &scope.run));
        let writable = settings.guest_writable.clone();
        let host =
            hosting::host(&configuration, program.clone(), writable, audit, scope.as_deref(), protected, secrets)?;
        settings.template_packages = Some(host.template_packages());
        if settings.network.packages {
            settings.network.mirror = Some(hosting::package_mirror(&host, &configuration.packages)?);
        }
        let sessions = Sessions::persistent(settings, program, store.clone(), launchers).await?;
        let proof = tokio::spawn({
            let sessions = sessions.clone();
            async move { sessions.test_sandbox().await }
        });
        let readiness = Readiness { sessions: sessions.clone(), proof };
        let hosting = hosting::start(sources, &configuration, host, &sessions, &store, scope.as_deref()).await;
        let gateway = Gateway::new(sessions.clone()).with_hosting(hosting.clone());
        let gateway = gateway.with_code(configuration.code.clone());
        let gateway = gateway.with_request_timeout(configuration.server.timeouts.request);
        let gateway = scope.iter().fold(gateway, |gateway, scope| gateway.with_scope(Arc::clone(scope)));
        let scope_profile = scope.as_ref().and_then(|scope| scope.profile.as_ref());
        let gateway = match scope_profile.or(configuration.server.profile.as_ref()) {
            Some(profile) => gateway.with_profile(profile).ok_or_else(|| unknown_profile(profile, &configuration))?,
            None => gateway,
        };
        let _scope_file = run_scope.and_then(RunScope::remove_on_drop);
        let max_requests = configuration.server.max_concurrent_requests;
        let name = arguments.session.clone();
        let served = serve((http, name), max_requests, &directory, gateway.clone(), readiness).await;
        let left = match &arguments.session {
            Some(_) => gateway.sessions_of_named_connections().await,
            None => Vec::new(),
        };
        tokio::join!(hosting.shut_down(), sessions.shut_down_except(&left));
        gateway.finish_calls().await;
        store.close().await;
        served.map(|()| ExitCode::SUCCESS)
    });
    // Everything has been shut down. A read of standard input may still be pending, and the client need not close it.
    runtime.shutdown_background();
    served
}

/// Fails if a volume does not exist: the person who starts the server learns of it, not the first caller.
fn check_volumes(volumes: &[Volume]) -> Result<(), Failure> {
    let missing = volumes.iter().find_map(|volume| volume.host.symlink_metadata().err().map(|error| (volume, error)));
    missing.map_or(Ok(()), |(volume, error)| {
        Err(Failure::new(format!("cannot mount the volume {}", volume.host.display()))
            .caused_by(&error)
            .hint("create it, or name another one with --volume or sessions.volumes; `~` is not expanded"))
    })
}

fn unknown_profile(name: &str, configuration: &Configuration) -> Failure {
    let known: Vec<&str> = configuration.profiles.keys().map(String::as_str).collect();
    Failure::new(format!("unknown profile `{name}`"))
        .hint(format!("use one of {}, or define [profiles.{name}] in the configuration file", known.join(", ")))
}

/// Raises the limit of open descriptors: each connection and session needs some, and the usual limit is low.
pub(super) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If this fails, connections wait until descriptors are free.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

/// Prevents that the values of secrets get into a core dump. The limit of 1 also excludes programs that receive core dumps
/// from the kernel, see core(5).
pub(super) fn forbid_core_dumps() {
    let limit = getrlimit(Resource::Core);
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(1), ..limit });
}

async fn serve(
    (http, name): (Option<Http>, Option<ConnectionName>),
    max_requests: usize,
    state: &Path,
    gateway: Gateway,
    readiness: Readiness,
) -> Result<(), Failure> {
    let shutdown = CancellationToken::new();
    // A client that has started the server over stdio, and stops it, waits for no more responses.
    let drain = http.as_ref().map_or_else(|| shutdown.clone(), |http| http.options.drain.clone());
    let signal_task = stop_on_signal(drain, shutdown.clone())?;
    let operator = operator_socket::open(state, &gateway, &shutdown);
    let served = match http {
        None => {
            let wait_until_ready = tokio::spawn(readiness.wait("over stdio".into()));
            let served = tokio::select! {
                served = stdio::serve(gateway, name, max_requests, tokio::io::stdin(), tokio::io::stdout()) => served.map_err(|error| Failure::new("the stdio server failed").caused_by(&error)),
                () = shutdown.cancelled() => Ok(()),
            };
            wait_until_ready.abort();
            served
        }
        Some(http) => http.serve(gateway, readiness, shutdown.clone()).await,
    };
    signal_task.abort();
    shutdown.cancel();
    operator.close().await;
    served
}

/// Stops the server on a signal. After SIGTERM or SIGHUP, requests in progress may finish, until a second signal.
fn stop_on_signal(
    drain: CancellationToken,
    shutdown: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, Failure> {
    let mut signals = Signals::watch()?;
    Ok(tokio::spawn(async move {
        if signals.next().await == StopRequest::Graceful {
            tracing::info!(
                "stopping the server once the requests in progress have finished; a second signal stops it now"
            );
            drain.cancel();
            tokio::select! {
                _ = signals.next() => {}
                () = shutdown.cancelled() => {}
            }
        }
        tracing::info!("stopping the server");
        shutdown.cancel();
    }))
}

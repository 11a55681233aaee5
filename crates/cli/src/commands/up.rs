//! `ringfence up`: an endpoint that stays available. A supervisor replaces the server when it dies or hangs.
#![allow(clippy::doc_markdown)] // the doc comments of arguments are the text of `--help`

mod endpoint_file;
mod log;
mod status_socket;
pub(crate) mod worker;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use ringfence_config::{Configuration, ProtectedPaths, Sources, cache_directory};
use ringfence_servers::import::client_files;
use ringfence_supervisor::{Ending, Options, StartError, Supervisor, TokenSource};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::serve::{self, RunScope};
use crate::configuration::sources;
use crate::exit_code::GAVE_UP;
use crate::failure::Failure;
use crate::inherited_socket::take_listener;
use crate::self_exe::SELF_EXE;
use crate::service_manager::ServiceManager;
use crate::signals::Signals;
use endpoint_file::EndpointFile;
use log::Log;

/// Serve under a supervisor that replaces the server if it dies or hangs; the endpoint never changes.
///
/// The supervisor accepts connections and passes them to the server. While no server runs, connections wait and are not
/// refused; a connection without a request in progress continues with the next server. Sessions keep their variables: the
/// next server adopts them. A call that was in progress fails with an error which says that it may have run.
///
/// When the server is ready and has all expected tools, one line of JSON is written to standard output: endpoint, pid (of
/// the supervisor), tools. After that, use `ringfence status`. On SIGTERM, SIGHUP and Ctrl-C, calls get a few seconds to
/// finish before everything is stopped; a second signal stops everything immediately.
///
/// If the first server does not become ready, or all restarts are used up, the supervisor exits with code 75 and writes
/// one line of JSON with the reason. After ten minutes of health, all restarts are available again.
///
/// All options of `serve` except --stdio are accepted too.
#[derive(Args)]
#[group(skip)]
#[command(mut_arg("stdio", |argument| argument.hide(true)), mut_arg("session", |argument| argument.hide(true)))]
pub(crate) struct Arguments {
    /// Maximum number of restarts before the supervisor gives up
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    max_restarts: u32,
    /// Interval between health probes, in milliseconds; a probe lists the tools like a client
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = milliseconds())]
    probe_interval_ms: u64,
    /// Timeout of a probe, in milliseconds; after three failed probes the server is killed and replaced
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = milliseconds())]
    probe_timeout_ms: u64,
    /// Maximum time, in milliseconds, until a new server is ready and has all expected tools
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = milliseconds())]
    preflight_timeout_ms: u64,
    /// A tool that the server must have; can be given more than once
    #[arg(long = "expect-tool", value_name = "NAME")]
    expected_tools: Vec<String>,
    /// Write the endpoint to this file once the server is ready; the file is removed at the end
    #[arg(long, value_name = "FILE")]
    endpoint_file: Option<PathBuf>,
    #[command(flatten)]
    serve: serve::Arguments,
}

/// Parses milliseconds, from 1 to an hour.
fn milliseconds() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(1..=3_600_000)
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let inherited = take_listener()?;
    if arguments.serve.stdio {
        return Err(Failure::new("`ringfence up` does not support --stdio").hint("use `ringfence serve --stdio`"));
    }
    let sources = sources(arguments.serve.config.clone(), arguments.serve.flags());
    let configuration = ringfence_config::load(&sources)?;
    // The worker makes the same checks; made here, they fail before anything is started.
    let listen = serve::listen(&configuration, inherited);
    let address = listen.address().map_err(|error| serve::no_address(&error))?;
    serve::http_options(&arguments.serve, &configuration, address)?;
    serve::raise_descriptor_limit();
    let log = Log::start();
    let writer = log.clone();
    let run_scope = RunScope::load(arguments.serve.scope.as_deref(), &sources.environment)?;
    serve::log::start(&configuration.log, run_scope.as_ref().map(|run_scope| &run_scope.scope.run), move || {
        writer.clone()
    });
    // Unpacking an image takes longer than a worker may take to become ready.
    let protected = ProtectedPaths::of_server(&sources, &configuration, client_files(Some(&configuration)));
    serve::protect(configuration.sessions.clone(), &protected)?.with_unpacked_images(cache_directory().as_deref())?;
    let mut options = options(arguments, &configuration)?;
    options.listen = listen;
    options.scope_file = run_scope.as_ref().map(RunScope::path).transpose()?;
    options.token = Some(token_source(sources));
    options.log = Some(log.for_worker());
    let failed = |error: std::io::Error| Failure::new("cannot start the supervisor").caused_by(&error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let ended = runtime.block_on(supervise(arguments, options, &configuration, run_scope));
    runtime.shutdown_background();
    if let Ok(Ending::GaveUp(reason)) = &ended {
        tracing::error!("the supervisor gave up after {} restarts: {}", reason.restarts, reason.detail);
    }
    log.flush();
    match ended? {
        Ending::Stopped => Ok(ExitCode::SUCCESS),
        Ending::GaveUp(reason) => {
            // If standard output is closed, the exit code still reports the failure.
            let _ = print_line(&json!(reason));
            Ok(ExitCode::from(GAVE_UP))
        }
    }
}

/// Returns a source that loads the token again for each worker, as the worker does: the configuration may change.
fn token_source(sources: Sources) -> TokenSource {
    TokenSource::new(move || {
        let token = ringfence_config::load(&sources).ok()?.tokens().ok()?.into_iter().next()?;
        Some(token.secret.expose().to_owned())
    })
}

fn options(arguments: &Arguments, configuration: &Configuration) -> Result<Options, Failure> {
    let program = PathBuf::from(SELF_EXE);
    Ok(Options {
        // All options of this process, which the worker parses with the same parser.
        arguments: std::iter::once(worker::ROLE.into()).chain(std::env::args_os().skip(2)).collect(),
        state_directory: Some(configuration.state_directory()?),
        expected_tools: arguments.expected_tools.clone(),
        max_restarts: arguments.max_restarts,
        probe_interval: Duration::from_millis(arguments.probe_interval_ms),
        probe_timeout: Duration::from_millis(arguments.probe_timeout_ms),
        preflight_timeout: Duration::from_millis(arguments.preflight_timeout_ms),
        ..Options::new(program)
    })
}

/// Runs the supervisor from its start to its end.
async fn supervise(
    arguments: &Arguments,
    options: Options,
    configuration: &Configuration,
    run_scope: Option<RunScope>,
) -> Result<Ending, Failure> {
    let mut signals = Signals::watch()?;
    let supervisor = Supervisor::launch(options).map(Arc::new).map_err(launch_failure)?;
    // From here on workers may read the scope file.
    let _scope_file = run_scope.and_then(RunScope::remove_on_drop);
    if let Some(path) = &arguments.endpoint_file {
        EndpointFile::remove_stale(path)?;
    }
    let (manager, end) = (ServiceManager::find(), CancellationToken::new());
    let _status = status_socket::open(&configuration.state_directory()?, &supervisor, &end);
    let stop = async {
        signals.next().await;
        tracing::info!("stopping the server once the calls in progress have finished; a second signal stops it now");
        manager.notify_stopping();
        supervisor.request_stop();
        signals.next().await;
        tracing::info!("stopping the server");
        supervisor.request_immediate_stop();
        std::future::pending::<()>().await;
    };
    let announced = async {
        let _file = announce(arguments, &supervisor, &manager).await?;
        let waiting = Arc::clone(&supervisor);
        let ending = tokio::task::spawn_blocking(move || waiting.wait()).await;
        Ok(ending.unwrap_or(Ending::Stopped))
    };
    let watchdog = async {
        manager.feed_watchdog_while(&end, || supervisor.is_responsive()).await;
        std::future::pending::<()>().await;
    };
    let ending = tokio::select! {
        ending = announced => ending,
        () = stop => Ok(Ending::Stopped),
        () = watchdog => Ok(Ending::Stopped),
    };
    end.cancel();
    // After a failed announcement the supervisor is stopped too, before the failure is reported.
    let ended = tokio::task::spawn_blocking(move || supervisor.stop()).await.unwrap_or(Ending::Stopped);
    ending.map(|ending| if ending == Ending::Stopped { ended } else { ending })
}

/// Waits until the endpoint is ready, then announces it: in the endpoint file, on standard output and to the service
/// manager. Announces nothing if the supervisor ends before; the caller reports that.
async fn announce(
    arguments: &Arguments,
    supervisor: &Arc<Supervisor>,
    manager: &ServiceManager,
) -> Result<Option<EndpointFile>, Failure> {
    let waiting = Arc::clone(supervisor);
    let tools = match tokio::task::spawn_blocking(move || waiting.ready()).await {
        Ok(Ok(tools)) => tools,
        Ok(Err(StartError::GaveUp(_) | StartError::Stopped)) | Err(_) => return Ok(None),
        Ok(Err(error)) => return Err(Failure::new(error.to_string())),
    };
    let endpoint = supervisor.endpoint();
    let file = arguments.endpoint_file.as_deref().map(|path| EndpointFile::write(path, endpoint)).transpose()?;
    print_line(&json!({"endpoint": endpoint, "pid": std::process::id(), "tools": tools}))?;
    manager.notify_ready(&format!("serving MCP at {endpoint}"));
    Ok(file)
}

fn launch_failure(error: StartError) -> Failure {
    let text = error.to_string();
    match error {
        StartError::Scope(error) => error.into(),
        StartError::Listen(cause) => {
            Failure::new(text).caused_by(&cause).hint("choose another --port, or 0 for any free port")
        }
        StartError::Thread(cause) => Failure::new(text).caused_by(&cause),
        StartError::GaveUp(_) | StartError::Stopped => Failure::new(text),
    }
}

/// Writes one line of JSON for the program that has started this one.
fn print_line(line: &serde_json::Value) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|error| Failure::new("cannot write to standard output").caused_by(&error))
}

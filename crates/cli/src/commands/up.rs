//! `ringfence up`: an endpoint that stays, under a supervisor that replaces its server when that dies or hangs.
#![allow(clippy::doc_markdown)] // the comments on arguments are what `--help` shows

mod endpoint_file;
mod log;
mod status_socket;

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::RangedU64ValueParser;

use ringfence_config::Own;
use ringfence_config::SCOPE_FILE_VARIABLE;
use ringfence_config::cache_directory;
use ringfence_config::{Configuration, Sources};
use ringfence_servers::import::client_files;
use ringfence_supervisor::{Ending, Options, StartError, Supervisor, TokenSource};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use super::config::sources;
use super::serve::{self, Scoped};
use crate::failure::{Failure, GAVE_UP};
use crate::inherited::take_listener;
use crate::own_program::{OWN_PROGRAM, set_process_name};
use crate::service_manager::ServiceManager;
use crate::signals::Signals;
use endpoint_file::EndpointFile;
use log::Log;

/// The argument with which this program becomes the worker of an `up` with the same options.
pub(crate) const WORKER_ROLE: &str = "worker";

/// Serve, and stay up: a server that dies or hangs is replaced, and its endpoint never changes.
///
/// The supervisor accepts connections and hands them to the server under it. While there is none they wait, and are not
/// refused; one on which nothing was asked goes on with the next server. Sessions keep their variables: the next server
/// takes them over. A call that was under way is answered with an error that says that it may have run.
///
/// Once the server answers and has every expected tool, one JSON line says so on standard output: endpoint, pid (of the
/// supervisor), tools. `ringfence status` tells how it goes on. SIGTERM, SIGHUP and Ctrl-C let calls finish for a few
/// seconds, then end everything; a second signal does not wait for them.
///
/// If the first server does not get that far, or the restarts are used up, it ends with exit code 75 and one JSON line
/// with the reason. Restarts are earned back by ten minutes of health.
///
/// Also takes the options of `serve`.
#[derive(Args)]
#[group(skip)]
#[command(mut_arg("stdio", |argument| argument.hide(true)))]
pub(crate) struct Arguments {
    /// How often the server may be replaced before that is given up
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    max_restarts: u32,
    /// Between probes: the tools are listed, as a client would
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = milliseconds())]
    probe_interval_ms: u64,
    /// How long a probe may take; after three that failed the server is killed and replaced
    #[arg(long, value_name = "MS", default_value_t = 5000, value_parser = milliseconds())]
    probe_timeout_ms: u64,
    /// How long a server may take until it answers and has all expected tools
    #[arg(long, value_name = "MS", default_value_t = 30_000, value_parser = milliseconds())]
    preflight_timeout_ms: u64,
    /// A tool that must be offered; can be given more than once
    #[arg(long = "expect-tool", value_name = "NAME")]
    expected_tools: Vec<String>,
    /// Write the endpoint to this file once it is ready; removed at the end
    #[arg(long, value_name = "FILE")]
    endpoint_file: Option<PathBuf>,
    #[command(flatten)]
    serve: serve::Arguments,
}

/// From one to an hour.
fn milliseconds() -> RangedU64ValueParser {
    RangedU64ValueParser::new().range(1..=3_600_000)
}

/// The worker of an `up` with these options.
pub(crate) fn work(mut arguments: Box<Arguments>) -> Result<ExitCode, Failure> {
    set_process_name();
    // The supervisor names it by the variable, and removes it when the last worker has read it.
    if arguments.serve.scope.take().is_some() && std::env::var_os(SCOPE_FILE_VARIABLE).is_none() {
        return Err(Failure::new(format!("a worker was given --scope, and no {SCOPE_FILE_VARIABLE}"))
            .hint("workers are started by `ringfence up`; to serve without a supervisor, use `ringfence serve`"));
    }
    serve::run(&arguments.serve)
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let inherited = take_listener()?;
    if arguments.serve.stdio {
        return Err(Failure::new("--stdio has no endpoint that could stay up").hint("use `ringfence serve --stdio`"));
    }
    let sources = sources(arguments.serve.config.clone(), arguments.serve.flags());
    let configuration = ringfence_config::load(&sources)?;
    // Refused here what the worker would refuse, and before anything is started.
    let listen = serve::listen(&configuration, inherited);
    let address = listen.address().map_err(|error| Failure::new("the listener has no address").because(&error))?;
    serve::http_options(&arguments.serve, &configuration, address)?;
    serve::raise_descriptor_limit();
    let log = Log::start();
    let writer = log.clone();
    let scoped = Scoped::load(arguments.serve.scope.as_deref(), &sources.environment)?;
    serve::log::start(&configuration.log, scoped.as_ref().map(|scoped| &scoped.scope.run), move || writer.clone());
    // No worker has the time for it in which it must answer.
    let own = Own::of_server(&sources, &configuration, client_files(Some(&configuration)));
    serve::keep(configuration.sessions.clone(), &own)?.unpacked(cache_directory().as_deref())?;
    let mut options = options(arguments, &configuration)?;
    options.listen = listen;
    options.scope_file = scoped.as_ref().map(Scoped::path).transpose()?;
    options.token = Some(token_of(sources));
    options.log = Some(log.for_worker());
    let failed = |error: std::io::Error| Failure::new("the supervisor cannot start").because(&error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
    let ended = runtime.block_on(supervise(arguments, options, &configuration, scoped));
    runtime.shutdown_background();
    if let Ok(Ending::GaveUp(why)) = &ended {
        tracing::error!("given up after {} restarts: {}", why.restarts, why.detail);
    }
    log.flush();
    match ended? {
        Ending::Stopped => Ok(ExitCode::SUCCESS),
        Ending::GaveUp(why) => {
            // Where nobody reads it, the exit code still tells.
            let _ = say(&json!(why));
            Ok(ExitCode::from(GAVE_UP))
        }
    }
}

/// Read as every worker reads it: the configuration and what it names may change.
fn token_of(sources: Sources) -> TokenSource {
    TokenSource::new(move || {
        let token = ringfence_config::load(&sources).ok()?.tokens().ok()?.into_iter().next()?;
        Some(token.secret.expose().to_owned())
    })
}

fn options(arguments: &Arguments, configuration: &Configuration) -> Result<Options, Failure> {
    let program = PathBuf::from(OWN_PROGRAM);
    Ok(Options {
        // The same options as ours, read by the same parser: none can be forgotten on the way.
        arguments: std::iter::once(WORKER_ROLE.into()).chain(std::env::args_os().skip(2)).collect(),
        state_directory: Some(configuration.state_directory()?),
        expected_tools: arguments.expected_tools.clone(),
        max_restarts: arguments.max_restarts,
        probe_interval: Duration::from_millis(arguments.probe_interval_ms),
        probe_timeout: Duration::from_millis(arguments.probe_timeout_ms),
        preflight_timeout: Duration::from_millis(arguments.preflight_timeout_ms),
        ..Options::new(program)
    })
}

/// From the start of the supervisor to its end.
async fn supervise(
    arguments: &Arguments,
    options: Options,
    configuration: &Configuration,
    scoped: Option<Scoped>,
) -> Result<Ending, Failure> {
    let mut signals = Signals::watch()?;
    let supervisor = Supervisor::launch(options).map(Arc::new).map_err(not_launched)?;
    // From here on workers read it.
    let _removed_at_the_end = scoped.and_then(Scoped::removal);
    if let Some(path) = &arguments.endpoint_file {
        EndpointFile::clear(path)?;
    }
    let (manager, end) = (ServiceManager::find(), CancellationToken::new());
    let _status = status_socket::open(&configuration.state_directory()?, &supervisor, &end);
    let stop = async {
        signals.next().await;
        tracing::info!("ending once the calls under way have ended, soon; a second signal ends at once");
        manager.is_stopping();
        supervisor.request_stop();
        signals.next().await;
        tracing::info!("ending");
        supervisor.request_immediate_stop();
        std::future::pending::<()>().await;
    };
    let announced = async {
        let _file = announce(arguments, &supervisor, &manager).await?;
        let waiting = Arc::clone(&supervisor);
        let ending = tokio::task::spawn_blocking(move || waiting.wait()).await;
        Ok(ending.unwrap_or(Ending::Stopped))
    };
    let awake = async {
        manager.keep_awake_while(&end, || supervisor.is_responsive()).await;
        std::future::pending::<()>().await;
    };
    let ending = tokio::select! {
        ending = announced => ending,
        () = stop => Ok(Ending::Stopped),
        () = awake => Ok(Ending::Stopped),
    };
    end.cancel();
    // What was announced badly is ended too, before anybody is told.
    let ended = tokio::task::spawn_blocking(move || supervisor.stop()).await.unwrap_or(Ending::Stopped);
    ending.map(|ending| if ending == Ending::Stopped { ended } else { ending })
}

/// Tells everybody who waits for it where the endpoint is, once it is ready. A supervisor that ends before has its
/// ending told later.
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
    say(&json!({"endpoint": endpoint, "pid": std::process::id(), "tools": tools}))?;
    manager.is_ready(&format!("serving MCP at {endpoint}"));
    Ok(file)
}

fn not_launched(error: StartError) -> Failure {
    let text = error.to_string();
    match error {
        StartError::Scope(error) => error.into(),
        StartError::Listen(cause) => Failure::new(text).because(&cause).hint("choose another --port, or 0 for any"),
        StartError::Thread(cause) => Failure::new(text).because(&cause),
        StartError::GaveUp(_) | StartError::Stopped => Failure::new(text),
    }
}

/// One line for the program that has started this one.
fn say(line: &serde_json::Value) -> Result<(), Failure> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{line}")
        .and_then(|()| output.flush())
        .map_err(|error| Failure::new("standard output cannot be written").because(&error))
}

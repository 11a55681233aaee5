//! `ringfence serve`: sandbox sessions as an MCP server, over stdio or HTTP.
#![allow(clippy::doc_markdown)] // the comments on arguments are what `--help` shows

mod hosting;
mod operator_socket;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ringfence_gateway::{Gateway, HttpOptions, Token, check, serve_http, serve_stdio};
use ringfence_runtime::config::{self, Configuration, Flag, Log, LogFormat, parse_volume};
use ringfence_runtime::session::Sessions;
use ringfence_runtime::store::Store;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use super::config::sources;
use crate::failure::Failure;

/// Serve sandbox sessions to agents over MCP.
///
/// Without options it listens on http://127.0.0.1:8000/mcp; with --stdio it speaks on its standard streams, for
/// clients that start their servers themselves. Ctrl-C ends all sessions.
///
/// Options are stronger than variables, and those than the configuration file; `ringfence config show` tells what holds.
///
/// On any other address than loopback a token is needed: [server.tokens.NAME] in the configuration, or
/// RINGFENCE_AUTH_TOKEN (or MCP_AUTH_TOKEN, MSB_API_KEY).
#[derive(Args)]
pub(crate) struct Arguments {
    /// The configuration file [default: ringfence.toml here, or in ~/.config/ringfence]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The address to listen on [default: 127.0.0.1] [env: RINGFENCE_HOST, MCP_SERVER_HOST]
    #[arg(long)]
    host: Option<IpAddr>,
    /// The port; 0 for any that is free [default: 8000] [env: RINGFENCE_PORT, MCP_SERVER_PORT]
    #[arg(long)]
    port: Option<u16>,
    /// Speak MCP on standard input and output instead
    #[arg(long, conflicts_with_all = ["host", "port"])]
    stdio: bool,
    /// The profile that is offered at /mcp and over stdio: `code` for code that calls tools, or one of [profiles.NAME]
    /// [default: everything] [env: RINGFENCE_PROFILE]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Let web pages of this host call it
    #[arg(long)]
    enable_cors: bool,
    /// Listen without a token where others can reach it
    #[arg(long)]
    insecure_no_auth: bool,
    /// Show a directory or file of the host to every session, read-only unless `rw`; in place of those of the
    /// configuration
    #[arg(long = "volume", short = 'v', value_name = "HOST:GUEST[:ro|rw]", value_parser = volume)]
    volumes: Vec<String>,
    /// How many sessions there may be at once [default: 64] [env: RINGFENCE_MAX_SESSIONS, MSB_MAX_SESSIONS]
    #[arg(long)]
    max_sessions: Option<u32>,
    /// What is logged on standard error: error, warn, info, debug or trace [default: info]
    #[arg(long)]
    log_level: Option<tracing::Level>,
    /// How it is written [default: text]
    #[arg(long, value_enum)]
    log_format: Option<LogFormatOption>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormatOption {
    Text,
    Json,
}

/// Checked here for the sake of the message; the configuration takes the text.
fn volume(text: &str) -> Result<String, String> {
    parse_volume(text).map(|_| text.to_owned())
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let sources = sources(arguments.config.clone(), arguments.flags());
    let configuration = config::load(&sources)?;
    start_log(&configuration.log);
    for warning in &configuration.warnings {
        tracing::warn!("{warning}");
    }
    raise_descriptor_limit();
    let failed = |error: std::io::Error| Failure::new("the server cannot start").because(&error);
    let program = std::env::current_exe().map_err(failed)?;
    // The other half of the CPUs is for the guests; and on a small host a call need not pass from thread to thread.
    let workers = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().div_ceil(2));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().map_err(failed)?;
    // Refused before anything is written.
    let http = if arguments.stdio { None } else { Some(Http::new(arguments, &configuration)?) };
    let directory = configuration.state_directory()?;
    let store = Store::open(&directory)?;
    let launchers = directory.join("launchers");
    std::fs::create_dir_all(&launchers).map_err(failed)?;
    runtime.block_on(async {
        let mut settings = configuration.sessions.clone();
        settings.flavors = settings.flavors.with(configuration.code.flavor());
        let sessions = Sessions::kept(settings, program.clone(), store.clone(), launchers).await?;
        let hosting = hosting::start(sources, &configuration, program, &sessions, &store).await?;
        let gateway = Gateway::new(sessions.clone()).with_hosting(hosting.clone());
        let gateway = gateway.with_code(configuration.code.clone());
        let gateway = gateway.with_request_timeout(configuration.server.times.request);
        let gateway = match &configuration.server.profile {
            Some(profile) => gateway.offering(profile).ok_or_else(|| Failure::new("there is no such profile"))?,
            None => gateway,
        };
        let served = serve(http, configuration.server.most_requests, &directory, gateway.clone()).await;
        tokio::join!(hosting.shut_down(), sessions.shut_down());
        gateway.end().await;
        store.close().await;
        served.map(|()| ExitCode::SUCCESS)
    })
}

/// Connections and sessions take descriptors, and the usual limit is for programs that have few.
fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, connections wait until there are descriptors again.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

async fn serve(http: Option<Http>, at_once: usize, state: &Path, gateway: Gateway) -> Result<(), Failure> {
    let shutdown = CancellationToken::new();
    // A client that has started its server itself, and tells it to end, waits for nothing more.
    let drain = http.as_ref().map_or_else(|| shutdown.clone(), |http| http.options.drain.clone());
    let ended = end_on_signal(drain, shutdown.clone())?;
    let operator = operator_socket::open(state, &gateway, &shutdown);
    let served = match http {
        None => tokio::select! {
            served = serve_stdio(gateway, at_once) => served.map_err(|error| Failure::new("serving stdio failed").because(&error)),
            () = shutdown.cancelled() => Ok(()),
        },
        Some(http) => serve_over_http(http, gateway, shutdown.clone()).await,
    };
    ended.abort();
    shutdown.cancel();
    operator.close().await;
    served
}

/// Where and how to listen; only if that is safe.
struct Http {
    address: SocketAddr,
    options: HttpOptions,
}

impl Http {
    fn new(arguments: &Arguments, configuration: &Configuration) -> Result<Self, Failure> {
        let server = &configuration.server;
        let tokens = configuration.tokens()?.into_iter();
        let options = HttpOptions {
            tokens: tokens
                .map(|token| Token { principal: token.name, secret: token.secret.expose().to_owned() })
                .collect(),
            allowed_hosts: server.allowed_hosts.clone(),
            enable_cors: server.enable_cors,
            insecure_no_auth: arguments.insecure_no_auth,
            max_requests: server.most_requests,
            max_connections: server.most_connections,
            drain_timeout: server.times.drain,
            ..HttpOptions::default()
        };
        let address = (server.host, server.port).into();
        check(address, &options).map_err(|error| Failure::new(error.to_string()).hint(error.hint()))?;
        Ok(Self { address, options })
    }
}

async fn serve_over_http(http: Http, gateway: Gateway, shutdown: CancellationToken) -> Result<(), Failure> {
    let Http { address, options } = http;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::new(format!("cannot listen on {address}")).because(&error).hint("choose another --port, or 0 for any")
    })?;
    let bound = listener.local_addr().map_err(|error| Failure::new("the listener has no address").because(&error))?;
    tracing::info!("serving MCP at http://{bound}/mcp");
    let served = serve_http(listener, gateway, options, shutdown).await;
    served.map_err(|error| Failure::new("serving HTTP failed").because(&error))
}

/// Ends the server politely: on Ctrl-C soon, on SIGTERM when what is under way has ended, or on a second signal.
fn end_on_signal(
    drain: CancellationToken,
    shutdown: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, Failure> {
    let failed = |error: std::io::Error| Failure::new("cannot watch for signals").because(&error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    Ok(tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {
                tracing::info!("ending once the requests under way have ended; a second signal ends at once");
                drain.cancel();
                tokio::select! {
                    _ = interrupt.recv() => {}
                    _ = terminate.recv() => {}
                    () = shutdown.cancelled() => {}
                }
            }
        }
        tracing::info!("ending");
        shutdown.cancel();
    }))
}

impl Arguments {
    /// What was given, by the keys that it stands for.
    fn flags(&self) -> Vec<Flag> {
        let format = self.log_format.map(|format| match format {
            LogFormatOption::Text => "text",
            LogFormatOption::Json => "json",
        });
        let level = self.log_level.map(|level| level.as_str().to_lowercase());
        let volumes = (!self.volumes.is_empty()).then(|| self.volumes.clone());
        [
            self.host.map(|host| Flag::new("--host", "server.host", host.to_string())),
            self.port.map(|port| Flag::new("--port", "server.port", i64::from(port))),
            self.profile.clone().map(|profile| Flag::new("--profile", "server.profile", profile)),
            self.enable_cors.then(|| Flag::new("--enable-cors", "server.enable_cors", true)),
            volumes.map(|volumes| Flag::new("--volume", "sessions.volumes", volumes)),
            self.max_sessions.map(|most| Flag::new("--max-sessions", "sessions.max_sessions", i64::from(most))),
            level.map(|level| Flag::new("--log-level", "log.level", level)),
            format.map(|format| Flag::new("--log-format", "log.format", format)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

fn start_log(settings: &Log) {
    // Crates below us say more than a person wants to read.
    let filter = EnvFilter::new(format!(
        "warn,ringfence={level},ringfence_gateway={level},ringfence_runtime={level}",
        level = settings.level.name()
    ));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    // Where nobody reads the log any more, a complaint about it would be printed there too, and panic.
    let log = log.log_internal_errors(false);
    match settings.format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}

//! `ringfence serve`: sandbox sessions as an MCP server, over stdio or HTTP.
#![allow(clippy::doc_markdown)] // the comments on arguments are what `--help` shows

mod hosting;
pub(super) mod log;
mod operator_socket;
mod readiness;
mod scope;

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use clap::{Args, ValueEnum};

use ringfence_config::Own;
use ringfence_config::cache_directory;
use ringfence_config::{Configuration, Flag, parse_volume};
use ringfence_core::Volume;
use ringfence_gateway::{
    AuthenticationOptions, Gateway, MIN_TOKEN_BYTES, Token, check_listen_address, serve_http, short_token,
};
use ringfence_mcp::handover::{HandedConnections, WorkerSetup};
use ringfence_mcp::http::{HttpOptions, Incoming};
use ringfence_mcp::stdio;
use ringfence_servers::guest_writable;
use ringfence_servers::import::client_files;
use ringfence_session::Sessions;
use ringfence_store::{Store, damage_reports};
use ringfence_supervisor::Listen;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::config::sources;
use crate::failure::Failure;
use crate::inherited;
use crate::inherited::Inherited;
use crate::own_program::OWN_PROGRAM;
use crate::service_manager::ServiceManager;
use crate::signals::{Signals, Told};
use readiness::Readiness;
pub(super) use scope::{Scoped, keep};

/// Serve sandbox sessions to agents over MCP.
///
/// Without options it listens on http://127.0.0.1:8000/mcp; with --stdio it speaks on its standard streams, for
/// clients that start their servers themselves. Ctrl-C ends all sessions.
///
/// Options are stronger than variables, and those than the configuration file; `ringfence config show` tells what holds.
///
/// Without a token only the user who runs the server, and root, may connect on loopback. On any other address a token of
/// at least 16 bytes is needed: [server.tokens.NAME] in the configuration, or RINGFENCE_AUTH_TOKEN (or MCP_AUTH_TOKEN,
/// MSB_API_KEY).
#[derive(Args)]
#[allow(clippy::struct_excessive_bools)] // each is a flag of its own
pub(crate) struct Arguments {
    /// The configuration file [default: ringfence.toml here, or in ~/.config/ringfence] [env: RINGFENCE_CONFIG]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,
    /// The address to listen on [default: 127.0.0.1] [env: RINGFENCE_HOST, MCP_SERVER_HOST]
    #[arg(long, value_parser = ringfence_config::host)]
    host: Option<IpAddr>,
    /// The port; 0 for any that is free [default: 8000] [env: RINGFENCE_PORT, MCP_SERVER_PORT]
    #[arg(long)]
    port: Option<u16>,
    /// Speak MCP on standard input and output instead
    #[arg(long, conflicts_with_all = ["host", "port"])]
    pub(super) stdio: bool,
    /// The profile that is offered at /mcp and over stdio: `code` for code that calls tools, or one of [profiles.NAME]
    /// [default: everything] [env: RINGFENCE_PROFILE]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Serve one run alone: the file (mode 0600) says which tools may be called, and which directories shown; it is
    /// removed at the end [capabilities: code, command, files.read, files.write, sessions, servers, memory] [env:
    /// RINGFENCE_SCOPE_FILE, which is left to whoever set it]
    #[arg(long, value_name = "FILE")]
    pub(super) scope: Option<PathBuf>,
    /// Let web pages of this host call it
    #[arg(long)]
    enable_cors: bool,
    /// Without a token, let every user of this host connect on loopback [env: RINGFENCE_ALLOW_LOCAL_USERS]
    #[arg(long)]
    allow_local_users: bool,
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
    #[arg(long, value_parser = level)]
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

fn level(text: &str) -> Result<tracing::Level, String> {
    ringfence_config::level(text).parse().map_err(|_| "there are error, warn, info, debug and trace".to_owned())
}

/// Checked here for the sake of the message; the configuration takes the text.
fn volume(text: &str) -> Result<String, String> {
    parse_volume(text).map(|_| text.to_owned())
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let inherited = inherited::take()?;
    let sources = sources(arguments.config.clone(), arguments.flags());
    let configuration = ringfence_config::load(&sources)?;
    let scoped = Scoped::load(arguments.scope.as_deref(), &sources.environment)?;
    let scope = scoped.as_ref().map(|scoped| Arc::clone(&scoped.scope));
    log::start(&configuration.log, scope.as_ref().map(|scope| &scope.run), std::io::stderr);
    for warning in &configuration.warnings {
        tracing::warn!("{warning}");
    }
    raise_descriptor_limit();
    let failed = |error: std::io::Error| Failure::new("the server cannot start").because(&error);
    let program = PathBuf::from(OWN_PROGRAM);
    // The other half of the CPUs is for the guests; and on a small host a call need not pass from thread to thread.
    let workers = std::thread::available_parallelism().map_or(1, |cpus| cpus.get().div_ceil(2));
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build().map_err(failed)?;
    // Refused before anything is written.
    let mut http = if arguments.stdio { None } else { Some(Http::new(arguments, &configuration, inherited)?) };
    if let (Some(http), Some(scope)) = (&mut http, &scope) {
        http.options.drain_timeout = scope.drain;
    }
    let settings = scoped.iter().try_fold(configuration.sessions.clone(), |settings, scoped| scoped.bind(settings))?;
    let own = scoped
        .iter()
        .try_fold(Own::of_server(&sources, &configuration, client_files(Some(&configuration))), |own, scoped| {
            scoped.keep(own)
        })?;
    check_volumes(&settings.volumes)?;
    let settings = keep(settings, &own)?.unpacked(cache_directory().as_deref())?;
    let directory = configuration.state_directory()?;
    let store = Store::open(&directory)?;
    for report in damage_reports(&directory) {
        tracing::error!("{}; {}", report.message(), report.hint());
    }
    let launchers = directory.join("launchers");
    std::fs::create_dir_all(&launchers).map_err(failed)?;
    let served = runtime.block_on(async {
        let mut settings = settings;
        settings.flavors = settings.flavors.with(configuration.code.flavor());
        settings.guest_writable = guest_writable(&configuration, &settings.volumes, &store).await;
        let sessions = Sessions::kept(settings, program.clone(), store.clone(), launchers).await?;
        let proof = tokio::spawn({
            let sessions = sessions.clone();
            async move { sessions.prove().await }
        });
        let readiness = Readiness { sessions: sessions.clone(), proof };
        let hosting =
            hosting::start(sources, &configuration, program, &sessions, &store, scope.as_deref(), own).await?;
        let gateway = Gateway::new(sessions.clone()).with_hosting(hosting.clone());
        let gateway = gateway.with_code(configuration.code.clone());
        let gateway = gateway.with_request_timeout(configuration.server.times.request);
        let gateway = scope.iter().fold(gateway, |gateway, scope| gateway.within(Arc::clone(scope)));
        let of_scope = scope.as_ref().and_then(|scope| scope.profile.as_ref());
        let gateway = match of_scope.or(configuration.server.profile.as_ref()) {
            Some(profile) => gateway.with_profile(profile).ok_or_else(|| no_profile(profile, &configuration))?,
            None => gateway,
        };
        let _removed_at_the_end = scoped.and_then(Scoped::removal);
        let served = serve(http, configuration.server.most_requests, &directory, gateway.clone(), readiness).await;
        tokio::join!(hosting.shut_down(), sessions.shut_down());
        gateway.end().await;
        store.close().await;
        served.map(|()| ExitCode::SUCCESS)
    });
    // All that must end has ended. Standard input may still be waited for, and its client need not close it.
    runtime.shutdown_background();
    served
}

/// Told to whoever starts the server, and not to its first caller.
fn check_volumes(volumes: &[Volume]) -> Result<(), Failure> {
    let missing = volumes.iter().find_map(|volume| volume.host.symlink_metadata().err().map(|error| (volume, error)));
    missing.map_or(Ok(()), |(volume, error)| {
        Err(Failure::new(format!("the volume {} cannot be shown", volume.host.display()))
            .because(&error)
            .hint("make it, or name another with --volume or sessions.volumes; `~` stands for nothing here"))
    })
}

fn no_profile(name: &str, configuration: &Configuration) -> Failure {
    let known: Vec<&str> = configuration.profiles.keys().map(String::as_str).collect();
    Failure::new(format!("there is no profile `{name}`"))
        .hint(format!("known are {}; [profiles.{name}] in the configuration would make it", known.join(", ")))
}

/// Connections and sessions take descriptors, and the usual limit is for programs that have few.
pub(super) fn raise_descriptor_limit() {
    let limit = getrlimit(Resource::Nofile);
    // Where it cannot be raised, connections wait until there are descriptors again.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}

async fn serve(
    http: Option<Http>,
    at_once: usize,
    state: &Path,
    gateway: Gateway,
    readiness: Readiness,
) -> Result<(), Failure> {
    let shutdown = CancellationToken::new();
    // A client that has started its server itself, and tells it to end, waits for nothing more.
    let drain = http.as_ref().map_or_else(|| shutdown.clone(), |http| http.options.drain.clone());
    let ended = end_on_signal(drain, shutdown.clone())?;
    let operator = operator_socket::open(state, &gateway, &shutdown);
    let served = match http {
        None => {
            let proving = tokio::spawn(readiness.wait("over stdio".into()));
            let served = tokio::select! {
                served = stdio::serve(gateway, at_once, tokio::io::stdin(), tokio::io::stdout()) => served.map_err(|error| Failure::new("serving stdio failed").because(&error)),
                () = shutdown.cancelled() => Ok(()),
            };
            proving.abort();
            served
        }
        Some(http) => serve_over_http(http, gateway, readiness, shutdown.clone()).await,
    };
    ended.abort();
    shutdown.cancel();
    operator.close().await;
    served
}

/// How connections are served, and where they come from.
struct Http {
    authentication: AuthenticationOptions,
    options: HttpOptions,
    source: Source,
}

enum Source {
    Listen(Listen),
    Supervisor(WorkerSetup),
}

impl Http {
    fn new(
        arguments: &Arguments,
        configuration: &Configuration,
        inherited: Option<Inherited>,
    ) -> Result<Self, Failure> {
        let source = match inherited {
            Some(Inherited::Supervisor(hello)) => Source::Supervisor(hello),
            Some(Inherited::Listener(listener)) => Source::Listen(Listen::Socket(listener)),
            None => Source::Listen(listen(configuration, None)),
        };
        let address = match &source {
            Source::Supervisor(hello) => hello.address(),
            Source::Listen(listen) => listen.address().map_err(|error| no_address(&error))?,
        };
        let (authentication, options) = http_options(arguments, configuration, address)?;
        Ok(Self { authentication, options, source })
    }
}

/// What was inherited listens already, wherever the configuration would.
pub(super) fn listen(configuration: &Configuration, inherited: Option<std::net::TcpListener>) -> Listen {
    let server = &configuration.server;
    inherited.map_or_else(|| Listen::Address((server.host, server.port).into()), Listen::Socket)
}

/// How to serve there; only if that is safe.
pub(super) fn http_options(
    arguments: &Arguments,
    configuration: &Configuration,
    address: SocketAddr,
) -> Result<(AuthenticationOptions, HttpOptions), Failure> {
    let server = &configuration.server;
    let tokens = configuration.tokens()?.into_iter();
    let authentication = AuthenticationOptions {
        tokens: tokens.map(|token| Token { principal: token.name, secret: token.secret.expose().to_owned() }).collect(),
        insecure_no_auth: arguments.insecure_no_auth,
        allow_local_users: server.allow_local_users,
    };
    let options = HttpOptions {
        allowed_hosts: server.allowed_hosts.clone(),
        enable_cors: server.enable_cors,
        max_requests: server.most_requests,
        max_connections: server.most_connections,
        drain_timeout: server.times.drain,
        ..HttpOptions::default()
    };
    check_listen_address(address, &authentication)
        .map_err(|error| Failure::new(error.to_string()).hint(error.hint()))?;
    if let Some(token) = short_token(&authentication.tokens) {
        tracing::warn!("the token of {:?} has fewer than {MIN_TOKEN_BYTES} bytes and may be guessed", token.principal);
    }
    Ok((authentication, options))
}

async fn serve_over_http(
    http: Http,
    gateway: Gateway,
    readiness: Readiness,
    shutdown: CancellationToken,
) -> Result<(), Failure> {
    let Http { source, authentication, options } = http;
    let incoming = open(source).await?;
    let bound = incoming.address().map_err(|error| no_address(&error))?;
    let manager = ServiceManager::find();
    let drain = options.drain.clone();
    let announce = async {
        let ready = async {
            readiness.wait(format!("at http://{bound}/mcp")).await;
            let serving = format!("serving MCP at http://{bound}/mcp");
            tracing::info!("{serving}");
            manager.is_ready(&serving);
        };
        tokio::select! { () = ready => {}, () = shutdown.cancelled() => {}, () = drain.cancelled() => {} }
    };
    let announce_end = async {
        tokio::select! { () = shutdown.cancelled() => {}, () = drain.cancelled() => {} }
        manager.is_stopping();
    };
    let serving = serve_http(incoming, gateway, authentication, options, shutdown.clone());
    let (served, (), (), ()) = tokio::join!(
        async {
            let served = serving.await;
            shutdown.cancel();
            served
        },
        announce,
        manager.keep_awake(&shutdown),
        announce_end
    );
    served.map_err(|error| Failure::new("serving HTTP failed").because(&error))
}

async fn open(source: Source) -> Result<Incoming, Failure> {
    let inherited = |error: std::io::Error| Failure::new("the inherited socket cannot be served").because(&error);
    match source {
        Source::Listen(Listen::Address(address)) => {
            let bound = TcpListener::bind(address).await.map_err(|error| {
                Failure::new(format!("cannot listen on {address}"))
                    .because(&error)
                    .hint("choose another --port, or 0 for any")
            });
            bound.map(Incoming::from)
        }
        Source::Listen(Listen::Socket(listener)) => {
            let taken = listener.set_nonblocking(true).and_then(|()| TcpListener::from_std(listener));
            taken.map(Incoming::from).map_err(inherited)
        }
        Source::Supervisor(hello) => {
            HandedConnections::new(hello).map(|handed| Incoming::Handed(Box::new(handed))).map_err(inherited)
        }
    }
}

fn no_address(error: &std::io::Error) -> Failure {
    Failure::new("the listener has no address").because(error)
}

/// Ends the server politely: on Ctrl-C soon, on SIGTERM or when its terminal is gone once what is under way has ended,
/// or on a second signal.
fn end_on_signal(
    drain: CancellationToken,
    shutdown: CancellationToken,
) -> Result<tokio::task::JoinHandle<()>, Failure> {
    let mut signals = Signals::watch()?;
    Ok(tokio::spawn(async move {
        if signals.next().await == Told::ToEnd {
            tracing::info!("ending once the requests under way have ended; a second signal ends at once");
            drain.cancel();
            tokio::select! {
                _ = signals.next() => {}
                () = shutdown.cancelled() => {}
            }
        }
        tracing::info!("ending");
        shutdown.cancel();
    }))
}

impl Arguments {
    /// What was given, by the keys that it stands for.
    pub(super) fn flags(&self) -> Vec<Flag> {
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
            self.allow_local_users.then(|| Flag::new("--allow-local-users", "server.allow_local_users", true)),
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

//! `ringfence serve`: sandbox sessions as an MCP server, over stdio or HTTP.
#![allow(clippy::doc_markdown)] // the comments on arguments are what `--help` shows

mod operator_socket;

use std::net::IpAddr;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use ringfence_gateway::{Gateway, HttpOptions, Token, check, serve_http, serve_stdio};
use ringfence_runtime::session::{Sessions, Settings};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

use crate::failure::Failure;
use crate::options::VolumeOption;

/// Serve sandbox sessions to agents over MCP.
///
/// Without options it listens on http://127.0.0.1:8000/mcp; with --stdio it speaks on its standard streams, for
/// clients that start their servers themselves. Ctrl-C ends all sessions.
///
/// On any other address than loopback a token is needed, in RINGFENCE_AUTH_TOKEN (or MCP_AUTH_TOKEN, MSB_API_KEY).
#[derive(Args)]
pub(crate) struct Arguments {
    /// The address to listen on [default: 127.0.0.1] [env: RINGFENCE_HOST, MCP_SERVER_HOST]
    #[arg(long)]
    host: Option<IpAddr>,
    /// The port; 0 for any that is free [default: 8000] [env: RINGFENCE_PORT, MCP_SERVER_PORT]
    #[arg(long)]
    port: Option<u16>,
    /// Speak MCP on standard input and output instead
    #[arg(long, conflicts_with_all = ["host", "port"])]
    stdio: bool,
    /// Let web pages of this host call it
    #[arg(long)]
    enable_cors: bool,
    /// Listen without a token where others can reach it
    #[arg(long)]
    insecure_no_auth: bool,
    /// Show a directory or file of the host to every session, read-only unless `rw`
    #[arg(long = "volume", short = 'v', value_name = "HOST:GUEST[:ro|rw]")]
    volumes: Vec<VolumeOption>,
    /// How many sessions there may be at once [default: 64] [env: RINGFENCE_MAX_SESSIONS, MSB_MAX_SESSIONS]
    #[arg(long)]
    max_sessions: Option<usize>,
    /// What is logged on standard error: error, warn, info, debug or trace
    #[arg(long, default_value = "info")]
    log_level: tracing::Level,
    /// How it is written
    #[arg(long, value_enum, default_value = "text")]
    log_format: LogFormat,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    Text,
    Json,
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    start_log(arguments);
    let failed = |error: std::io::Error| Failure::new("the server cannot start").because(&error);
    let program = std::env::current_exe().map_err(failed)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let sessions = Sessions::new(arguments.settings()?, program);
        let served = serve(arguments, Gateway::new(sessions.clone())).await;
        sessions.shut_down().await;
        served.map(|()| ExitCode::SUCCESS)
    })
}

async fn serve(arguments: &Arguments, gateway: Gateway) -> Result<(), Failure> {
    let shutdown = CancellationToken::new();
    let ended = end_on_signal(shutdown.clone())?;
    let operator = operator_socket::open(&gateway, &shutdown);
    let served = if arguments.stdio {
        tokio::select! {
            served = serve_stdio(gateway) => served.map_err(|error| Failure::new("serving stdio failed").because(&error)),
            () = shutdown.cancelled() => Ok(()),
        }
    } else {
        serve_over_http(arguments, gateway, shutdown.clone()).await
    };
    ended.abort();
    shutdown.cancel();
    operator.close().await;
    served
}

async fn serve_over_http(arguments: &Arguments, gateway: Gateway, shutdown: CancellationToken) -> Result<(), Failure> {
    let host = arguments.host.map_or_else(|| parsed(&["RINGFENCE_HOST", "MCP_SERVER_HOST"]), |host| Ok(Some(host)))?;
    let port = arguments.port.map_or_else(|| parsed(&["RINGFENCE_PORT", "MCP_SERVER_PORT"]), |port| Ok(Some(port)))?;
    let address = (host.unwrap_or(IpAddr::from([127, 0, 0, 1])), port.unwrap_or(8000)).into();
    let options = arguments.http_options();
    check(address, &options).map_err(|error| Failure::new(error.to_string()).hint(error.hint()))?;
    let listener = TcpListener::bind(address).await.map_err(|error| {
        Failure::new(format!("cannot listen on {address}")).because(&error).hint("choose another --port, or 0 for any")
    })?;
    let bound = listener.local_addr().map_err(|error| Failure::new("the listener has no address").because(&error))?;
    tracing::info!("serving MCP at http://{bound}/mcp");
    let served = serve_http(listener, gateway, options, shutdown).await;
    served.map_err(|error| Failure::new("serving HTTP failed").because(&error))
}

/// Ends the server politely on Ctrl-C or SIGTERM.
fn end_on_signal(shutdown: CancellationToken) -> Result<tokio::task::JoinHandle<()>, Failure> {
    let failed = |error: std::io::Error| Failure::new("cannot watch for signals").because(&error);
    let mut interrupt = signal(SignalKind::interrupt()).map_err(failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(failed)?;
    Ok(tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        tracing::info!("ending");
        shutdown.cancel();
    }))
}

impl Arguments {
    fn settings(&self) -> Result<Settings, Failure> {
        let mut settings =
            Settings { volumes: self.volumes.iter().map(|option| option.0.clone()).collect(), ..Settings::default() };
        let most = self
            .max_sessions
            .map_or_else(|| parsed(&["RINGFENCE_MAX_SESSIONS", "MSB_MAX_SESSIONS"]), |most| Ok(Some(most)))?;
        settings.most_sessions = most.unwrap_or(settings.most_sessions);
        Ok(settings)
    }

    fn http_options(&self) -> HttpOptions {
        let secret = first_set(&["RINGFENCE_AUTH_TOKEN", "MCP_AUTH_TOKEN", "MSB_API_KEY"]);
        let tokens = secret.map(|(_, secret)| Token { principal: "token".into(), secret }).into_iter().collect();
        HttpOptions {
            tokens,
            enable_cors: self.enable_cors,
            insecure_no_auth: self.insecure_no_auth,
            ..HttpOptions::default()
        }
    }
}

/// The first of these variables that is set, with its name.
fn first_set(names: &[&'static str]) -> Option<(&'static str, String)> {
    names.iter().find_map(|name| std::env::var(name).ok().map(|value| (*name, value)))
}

fn parsed<T: std::str::FromStr>(names: &[&'static str]) -> Result<Option<T>, Failure> {
    let Some((name, value)) = first_set(names) else { return Ok(None) };
    value
        .parse()
        .map(Some)
        .map_err(|_| Failure::new(format!("the variable {name} has a value that makes no sense: {value}")))
}

fn start_log(arguments: &Arguments) {
    // Crates below us say more than a person wants to read.
    let filter = EnvFilter::new(format!(
        "warn,ringfence={level},ringfence_gateway={level},ringfence_runtime={level}",
        level = arguments.log_level
    ));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match arguments.log_format {
        LogFormat::Text => log.with_target(false).init(),
        LogFormat::Json => log.json().init(),
    }
}

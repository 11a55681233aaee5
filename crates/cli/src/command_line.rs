//! The list of commands and roles: how they are parsed and run.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ringfence_backend::LAUNCHER_ROLE;

use crate::commands;
use crate::failure::Failure;
use crate::roles::{self, Role};

/// Sandbox runtime and MCP server for AI agents.
#[derive(Parser)]
#[command(name = "ringfence", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    Serve(commands::serve::Arguments),
    Up(Box<commands::up::Arguments>),
    Status(commands::status::Arguments),
    Session(commands::session::Arguments),
    Server(Box<commands::server::Arguments>),
    Code(commands::code::Arguments),
    Secret(commands::secret::Arguments),
    Allow(commands::allow::Arguments),
    Audit(commands::audit::Arguments),
    Cache(commands::cache::Arguments),
    Template(commands::template::Arguments),
    #[command(flatten)]
    QuickStart(QuickStart),
    Doctor(commands::doctor::Arguments),
    Config(commands::config::Arguments),
    Bench(commands::bench::Arguments),
    #[command(flatten)]
    Role(Role),
}

/// Commands and roles that start sandboxes. They are parsed without the definitions of the other commands, since building
/// those takes longer than the start of a sandbox.
#[derive(Subcommand)]
pub(crate) enum QuickStart {
    Run(Box<commands::run::Arguments>),
    /// Starts sandboxes for a server, over a socket on standard input
    #[command(hide = true, name = LAUNCHER_ROLE)]
    Launcher,
}

#[derive(Parser)]
#[command(name = "ringfence", version, max_term_width = 100)]
struct QuickStartArguments {
    #[command(subcommand)]
    command: QuickStart,
}

/// Parses the arguments of this process.
pub(crate) fn parse() -> Result<Command, clap::Error> {
    let name = std::env::args_os().nth(1).unwrap_or_default();
    if name == "run" || name == LAUNCHER_ROLE {
        Ok(Command::QuickStart(QuickStartArguments::try_parse()?.command))
    } else {
        Ok(Arguments::try_parse()?.command)
    }
}

impl Command {
    pub(crate) fn run(self) -> Result<ExitCode, Failure> {
        match self {
            Self::QuickStart(QuickStart::Run(arguments)) => commands::run::run(*arguments),
            Self::QuickStart(QuickStart::Launcher) => roles::launch_sandboxes(),
            Self::Role(role) => roles::run(role),
            Self::Serve(arguments) => commands::serve::run(&arguments),
            Self::Up(arguments) => commands::up::run(&arguments),
            Self::Status(arguments) => commands::status::run(&arguments),
            Self::Session(arguments) => commands::session::run(&arguments),
            Self::Server(arguments) => commands::server::run(&arguments),
            Self::Code(arguments) => commands::code::run(&arguments),
            Self::Secret(arguments) => commands::secret::run(&arguments),
            Self::Allow(arguments) => commands::allow::run(&arguments),
            Self::Audit(arguments) => commands::audit::run(&arguments),
            Self::Cache(arguments) => commands::cache::run(&arguments),
            Self::Template(arguments) => commands::template::run(&arguments),
            Self::Doctor(arguments) => commands::doctor::run(&arguments),
            Self::Config(arguments) => commands::config::run(arguments),
            Self::Bench(_) => commands::bench::run(),
        }
    }
}

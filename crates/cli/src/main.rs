//! The `ringfence` program: parses the command line and hands over to one file a command.
//!
//! No thread starts before a command asks for one: a sandbox can only be started from a process with a
//! single thread.

mod attach;
mod commands;
mod damage;
mod failure;
mod http;
mod inherited;
mod operator;
mod options;
mod own_program;
mod service_manager;
mod signals;
mod state;
mod time;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ringfence_backend::LAUNCHER_ROLE;

/// A safe place for AI agents to run code.
#[derive(Parser)]
#[command(name = "ringfence", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Serve(commands::serve::Arguments),
    Up(Box<commands::up::Arguments>),
    Status(commands::status::Arguments),
    Session(commands::session::Arguments),
    Server(Box<commands::server::Arguments>),
    Audit(commands::audit::Arguments),
    #[command(flatten)]
    QuickStart(QuickStart),
    Doctor(commands::doctor::Arguments),
    Config(commands::config::Arguments),
    Bench(commands::bench::Arguments),
    /// `serve` under a supervisor; started by `up` with its own options.
    #[command(hide = true, name = commands::up::WORKER_ROLE)]
    Worker(Box<commands::up::Arguments>),
    /// Tries to get out of the sandbox that it runs in; started by `doctor`.
    #[command(hide = true)]
    Escape(commands::escape::Arguments),
}

/// Commands that start a sandbox, and are parsed without the definitions of the other commands: building those takes
/// longer than the sandbox.
#[derive(Subcommand)]
enum QuickStart {
    Run(Box<commands::run::Arguments>),
    /// Makes sandboxes for a server, over a socket on standard input.
    #[command(hide = true, name = LAUNCHER_ROLE)]
    Launcher,
}

#[derive(Parser)]
#[command(name = "ringfence", version, max_term_width = 100)]
struct QuickStartArguments {
    #[command(subcommand)]
    command: QuickStart,
}

fn parse() -> Result<Command, clap::Error> {
    let name = std::env::args_os().nth(1).unwrap_or_default();
    if name == "run" || name == LAUNCHER_ROLE {
        Ok(Command::QuickStart(QuickStartArguments::try_parse()?.command))
    } else {
        Ok(Arguments::try_parse()?.command)
    }
}

fn main() -> ExitCode {
    let command = match parse() {
        Ok(command) => command,
        Err(error) => {
            let _ = error.print();
            // clap's own code, 2, would be taken for the command's.
            return ExitCode::from(if error.use_stderr() { failure::OWN_FAILURE } else { 0 });
        }
    };
    let result = match command {
        Command::Serve(arguments) => commands::serve::run(&arguments),
        Command::Up(arguments) => commands::up::run(&arguments),
        Command::Worker(arguments) => commands::up::work(arguments),
        Command::Status(arguments) => commands::status::run(&arguments),
        Command::Session(arguments) => commands::session::run(&arguments),
        Command::Server(arguments) => commands::server::run(&arguments),
        Command::Audit(arguments) => commands::audit::run(&arguments),
        Command::QuickStart(QuickStart::Run(arguments)) => commands::run::run(*arguments),
        Command::QuickStart(QuickStart::Launcher) => commands::launcher::run(),
        Command::Doctor(arguments) => commands::doctor::run(&arguments),
        Command::Config(arguments) => commands::config::run(arguments),
        Command::Bench(_) => commands::bench::run(),
        Command::Escape(arguments) => commands::escape::run(&arguments),
    };
    result.unwrap_or_else(|failure| failure.show())
}

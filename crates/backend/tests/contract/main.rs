//! The contract of `Backend` and `Instance`: one suite that every backend passes.
//!
//! Another backend adds a line to `BACKENDS`. The cases use only the public API. Like libtest, the program takes
//! `--list`, `--exact` and names of tests.
#![allow(clippy::print_stdout)] // test output

mod adoption;
mod cases;
mod egress;
mod egress_rules;
mod growth;
mod isolation;
mod limits;

use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;

use ringfence_backend::{Backend, BackendConfig, LAUNCHER_ROLE, Persistence, run_launcher};

/// Creates a backend, like a server with this persistence.
type Constructor = fn(Option<Persistence>) -> Backend;

const BACKENDS: [(&str, Constructor); 1] = [("native", native)];

fn native(persistence: Option<Persistence>) -> Backend {
    let program = std::env::current_exe().expect("find this program");
    Backend::native(BackendConfig { persistence, ..BackendConfig::new(program) })
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|argument| argument == LAUNCHER_ROLE) {
        let socket: OwnedFd = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).expect("duplicate the socket");
        return if run_launcher(socket).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    if let [role, backend, directory, scope_tag] = &arguments[..]
        && role == adoption::SERVER_ROLE
    {
        let (_, constructor) = BACKENDS.into_iter().find(|(name, _)| name == backend).expect("a backend");
        adoption::serve_until_killed(constructor, Path::new(directory), scope_tag);
    }
    let has_flag = |flag: &str| arguments.iter().any(|argument| argument == flag);
    // No test is ignored.
    if has_flag("--ignored") {
        return ExitCode::SUCCESS;
    }
    let filters: Vec<&String> = arguments.iter().filter(|argument| cases::is_filter(argument, &arguments)).collect();
    let is_selected = |name: &str| {
        filters.is_empty()
            || filters
                .iter()
                .any(|filter| if has_flag("--exact") { name == **filter } else { name.contains(&**filter) })
    };
    let (mut passed, mut failed) = (0, 0);
    for (backend, constructor) in BACKENDS {
        for (case, run) in cases::ALL {
            let name = format!("{backend}::{case}");
            if !is_selected(&name) {
                continue;
            }
            if has_flag("--list") {
                println!("{name}: test");
                continue;
            }
            let result = std::panic::catch_unwind(|| cases::run(constructor, *run));
            println!("test {name} ... {}", if result.is_ok() { "ok" } else { "FAILED" });
            *(if result.is_ok() { &mut passed } else { &mut failed }) += 1;
        }
    }
    if !has_flag("--list") {
        let outcome = if failed == 0 { "ok" } else { "FAILED" };
        println!("\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored");
    }
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

//! What this program becomes for `ringfence bench`: the server that is measured, and the bare one beside it. Both end
//! with the process that started them.

use std::net::Ipv4Addr;
use std::process::ExitCode;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::net::TcpListener;

use crate::commands::serve;
use crate::failure::{Failure, notice};

pub(crate) const SERVER_ROLE: &str = "bench-server";
pub(crate) const ECHO_ROLE: &str = "bench-echo";

/// `ringfence serve`, and nothing else.
pub(crate) fn serve(arguments: &serve::Arguments) -> Result<ExitCode, Failure> {
    end_with_parent()?;
    serve::run(arguments)
}

/// A bare rmcp server with an `echo` tool, in a runtime as `serve` has it.
pub(crate) fn serve_echo() -> Result<ExitCode, Failure> {
    let failed = |error: std::io::Error| Failure::new("the echo server failed").because(&error);
    end_with_parent()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().map_err(failed)?;
    runtime.block_on(async {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.map_err(failed)?;
        notice(&format!("serving MCP at http://{}/mcp", listener.local_addr().map_err(failed)?));
        ringfence_gateway::serve_echo(listener).await.map_err(failed)?;
        Ok(ExitCode::SUCCESS)
    })
}

/// The parent holds the other end of standard input, by which it is known to live.
fn end_with_parent() -> Result<(), Failure> {
    let failed = |errno: Errno| Failure::new("the server would outlive its parent").because(&errno);
    set_parent_process_death_signal(Some(Signal::TERM)).map_err(failed)?;
    // It may have died before that was set.
    let mut watched = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::empty())];
    match poll(&mut watched, Some(&Timespec::default())).map_err(failed)? {
        0 => Ok(()),
        _ => Err(failed(Errno::PIPE)),
    }
}

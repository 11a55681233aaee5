//! A running MCP server that ringfence hosts: its streams, its resource usage and its shutdown.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ringfence_egress::Rule;
use rustix::process::Signal;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio_util::task::AbortOnDropHandle;

use crate::host_process::{HostProcess, HostProcessStreams};
use crate::server_sandbox::shared::SharedServer;
use crate::server_sandbox::{Process, ProcessExit, ProcessHandle, ServerSandbox, StderrTail};

/// Time between SIGTERM and SIGKILL when a server is stopped.
const GRACE_PERIOD: Duration = Duration::from_secs(5);

/// A running server. Dropping it kills its processes and frees their resources.
pub struct HostedServer {
    placement: Placement,
    memory_limit: Option<u64>,
    stderr_tail: Arc<StderrTail>,
    streams: Option<(ServerInput, ServerOutput)>,
    _stderr_task: AbortOnDropHandle<()>,
}

/// The environment in which a server runs.
enum Placement {
    Sandbox(ServerSandbox, ProcessHandle),
    SharedSandbox(SharedServer),
    /// The server runs on the host without a sandbox, because its entry has `sandbox = false`.
    Host(HostProcess),
}

/// The server's standard input.
#[derive(Debug)]
pub struct ServerInput(Sender);

/// The server's standard output.
#[derive(Debug)]
pub struct ServerOutput(Receiver);

/// The current resource usage of a server.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Memory of all processes in its sandbox, if it is measured.
    pub memory_bytes: Option<u64>,
    pub memory_limit_bytes: Option<u64>,
    /// Number of processes in its sandbox, if they are counted.
    pub processes: Option<u64>,
}

impl HostedServer {
    pub(crate) fn in_sandbox(
        sandbox: ServerSandbox,
        process: Process,
        memory_limit: u64,
        stderr_tail: Arc<StderrTail>,
    ) -> Self {
        let handle = process.handle();
        sandbox.set_main_process(&handle);
        let Process { stdin, stdout, stderr, .. } = process;
        let placement = Placement::Sandbox(sandbox, handle);
        Self::new(placement, Some(memory_limit), stderr_tail, (stdin, stdout, stderr))
    }

    pub(crate) fn in_shared_sandbox(
        shared: SharedServer,
        process: Process,
        memory_limit: u64,
        stderr_tail: Arc<StderrTail>,
    ) -> Self {
        let Process { stdin, stdout, stderr, .. } = process;
        Self::new(Placement::SharedSandbox(shared), Some(memory_limit), stderr_tail, (stdin, stdout, stderr))
    }

    pub(crate) fn on_host(process: HostProcess, streams: HostProcessStreams) -> Self {
        let HostProcessStreams { stdin, stdout, stderr } = streams;
        Self::new(Placement::Host(process), None, Arc::default(), (stdin, stdout, stderr))
    }

    fn new(
        placement: Placement,
        memory_limit: Option<u64>,
        stderr_tail: Arc<StderrTail>,
        streams: (Sender, Receiver, Receiver),
    ) -> Self {
        let (stdin, stdout, stderr) = streams;
        let reader = Arc::clone(&stderr_tail);
        let stderr_task = AbortOnDropHandle::new(tokio::spawn(async move { reader.read(stderr).await }));
        let streams = Some((ServerInput(stdin), ServerOutput(stdout)));
        Self { placement, memory_limit, stderr_tail, streams, _stderr_task: stderr_task }
    }

    /// Returns the server's input and output at the first call, `None` at later ones.
    pub fn take_streams(&mut self) -> Option<(ServerInput, ServerOutput)> {
        self.streams.take()
    }

    /// Waits until the server's process has exited.
    pub async fn wait_for_exit(&self) -> ProcessExit {
        match &self.placement {
            Placement::Sandbox(_, process) => process.wait_for_exit().await,
            Placement::SharedSandbox(shared) => shared.wait_for_exit().await,
            Placement::Host(process) => process.wait_for_exit().await,
        }
    }

    /// Returns the last lines of standard error, 500 at most.
    pub fn stderr_tail(&self) -> Vec<String> {
        self.stderr_tail.lines()
    }

    /// Adds rules to the network of its sandbox until the server restarts, and returns all rules. Servers in a shared
    /// sandbox share its network. `None` if it runs without a sandbox.
    pub async fn allow(&self, rules: Vec<Rule>) -> Option<Vec<Rule>> {
        self.sandbox()?.allow(rules).await
    }

    /// Returns a line for each host that was refused, with the command that permits it.
    pub fn refused_hosts(&self) -> Vec<String> {
        self.sandbox().map(ServerSandbox::refused_hosts).unwrap_or_default()
    }

    fn sandbox(&self) -> Option<&ServerSandbox> {
        match &self.placement {
            Placement::Sandbox(sandbox, _) => Some(sandbox),
            Placement::SharedSandbox(shared) => shared.sandbox(),
            Placement::Host(_) => None,
        }
    }

    pub fn usage(&self) -> Usage {
        let memory_bytes = self.sandbox().and_then(ServerSandbox::memory_bytes);
        Usage { memory_bytes, memory_limit_bytes: self.memory_limit, processes: None }
    }

    /// Returns the host's process ID of the sandbox's init, or of the server itself if it has no sandbox. Users
    /// identify the sandbox by it.
    pub fn sandbox_id(&self) -> String {
        match &self.placement {
            Placement::Sandbox(sandbox, _) => sandbox.id(),
            Placement::SharedSandbox(shared) => shared.sandbox().map(ServerSandbox::id).unwrap_or_default(),
            Placement::Host(process) => process.id(),
        }
    }

    /// Stops the server: SIGTERM, and SIGKILL after five seconds. When this returns, the server's processes
    /// have ended and their resources are freed.
    ///
    /// A caller that has taken the streams should drop the input first, since most servers exit at its end.
    pub async fn stop(self) {
        let Self { placement, streams, .. } = self;
        drop(streams);
        match placement {
            Placement::Sandbox(sandbox, process) => {
                sandbox.signal(&process, Signal::TERM);
                let _ = tokio::time::timeout(GRACE_PERIOD, process.wait_for_exit()).await;
                sandbox.end().await;
            }
            Placement::SharedSandbox(shared) => shared.stop(GRACE_PERIOD).await,
            Placement::Host(process) => {
                process.signal(Signal::TERM);
                if tokio::time::timeout(GRACE_PERIOD, process.wait_for_exit()).await.is_err() {
                    process.signal(Signal::KILL);
                    process.wait_for_exit().await;
                }
            }
        }
    }
}

impl AsyncWrite for ServerInput {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

impl AsyncRead for ServerOutput {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

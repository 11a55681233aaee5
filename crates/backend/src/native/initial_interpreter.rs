//! The interpreter that is started together with its sandbox, by the same request to the launcher.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ringfence_core::{Command, WORKSPACE};
use ringfence_sandbox::launcher::InitialProcess;
use ringfence_sandbox::pipe;
use tokio::net::unix::pipe::Receiver;

use super::INITIAL_PROCESS;
use crate::kernel_socket::KernelSocket;
use crate::process::Process;

/// The request for the launcher: the process, its descriptors, and copies of the host's ends, which the launcher stores
/// for the next server.
pub(super) struct InitialInterpreter {
    pub(super) request: InitialProcess,
    guest_ends: [OwnedFd; InitialProcess::DESCRIPTORS],
    stored: [OwnedFd; 3],
}

impl InitialInterpreter {
    /// Prepares the request. Also returns the host's ends.
    pub(super) fn new(
        argv: Vec<OsString>,
        environment: BTreeMap<String, String>,
    ) -> io::Result<(Self, (Process, KernelSocket))> {
        let ([stdin, stdout, stderr], [_, from_stdout, from_stderr]) = pipe::standard_streams()?;
        let (socket, guest_socket) = KernelSocket::new()?;
        let stored = [socket.as_fd(), from_stdout.as_fd(), from_stderr.as_fd()].map(|fd| fd.try_clone_to_owned());
        let [stored_socket, stored_stdout, stored_stderr] = stored;
        let command = Command { argv, workdir: WORKSPACE.into() };
        let initial = Self {
            request: InitialProcess { process: INITIAL_PROCESS, command, environment },
            guest_ends: [stdin, stdout, stderr, guest_socket],
            stored: [stored_socket?, stored_stdout?, stored_stderr?],
        };
        let (stdout, stderr) = (Receiver::from_owned_fd(from_stdout)?, Receiver::from_owned_fd(from_stderr)?);
        Ok((initial, (Process { number: INITIAL_PROCESS, stdout, stderr }, socket)))
    }

    /// The descriptors in the order of the launcher's protocol.
    pub(super) fn descriptors(&self) -> Vec<BorrowedFd<'_>> {
        self.guest_ends.iter().chain(&self.stored).map(AsFd::as_fd).collect()
    }
}

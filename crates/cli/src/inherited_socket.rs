//! The socket that this process was started with, if any: that of a supervisor (`ringfence up`), or a listening socket
//! of a service manager (`sd_listen_fds(3)`).

use std::net::TcpListener;
use std::os::fd::OwnedFd;

use ringfence_mcp::handover::WorkerSetup;
use ringfence_sandbox::take_inherited_descriptor;
use ringfence_supervisor::{SUPERVISOR_VARIABLE, become_session_leader};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketType, sockopt};
use rustix::process::{Pid, Signal, getpid, getppid, set_parent_process_death_signal};

use crate::failure::Failure;

pub(crate) enum InheritedSocket {
    Listener(TcpListener),
    Supervisor(WorkerSetup),
}

/// Takes the inherited socket, if there is one. Call this before any descriptor is opened or any thread started.
pub(crate) fn take() -> Result<Option<InheritedSocket>, Failure> {
    if let Some(supervisor) = number(SUPERVISOR_VARIABLE)? {
        become_session_leader();
        die_with(supervisor)?;
        let setup = take_stdin().and_then(|socket| WorkerSetup::receive(socket).map_err(|error| no_supervisor(&error)));
        return setup.map(InheritedSocket::Supervisor).map(Some);
    }
    Ok(take_listener()?.map(InheritedSocket::Listener))
}

/// Takes the listening socket of a service manager, if there is one.
pub(crate) fn take_listener() -> Result<Option<TcpListener>, Failure> {
    let (Some(pid), Some(count)) = (number("LISTEN_PID")?, number("LISTEN_FDS")?) else { return Ok(None) };
    // The variables were set for the process that started this one.
    if pid != getpid().as_raw_nonzero().get() {
        return Ok(None);
    }
    if count != 1 {
        let failure =
            Failure::new(format!("{count} sockets were passed to this process in LISTEN_FDS, but it serves one"));
        return Err(failure.hint("give the .socket unit a single ListenStream="));
    }
    let socket = take_inherited_descriptor()
        .map_err(|errno| Failure::new("the socket of LISTEN_FDS is not open as descriptor 3").caused_by(&errno))?;
    check(socket).map(Some)
}

fn number(variable: &str) -> Result<Option<i32>, Failure> {
    let Some(text) = std::env::var_os(variable) else { return Ok(None) };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| Failure::new(format!("{variable} is not a number")))
}

fn no_supervisor(cause: &dyn std::error::Error) -> Failure {
    Failure::new("cannot use the supervisor's socket").caused_by(cause)
}

/// Returns the socket on standard input, and replaces standard input by /dev/null, so that no child process inherits the
/// socket.
fn take_stdin() -> Result<OwnedFd, Failure> {
    let failed = |errno: Errno| no_supervisor(&errno);
    let socket = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(failed)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    rustix::stdio::dup2_stdin(null).map_err(failed)?;
    Ok(socket)
}

fn check(socket: OwnedFd) -> Result<TcpListener, Failure> {
    let refused = |why: &str| {
        Failure::new(format!("the socket that was passed to this process cannot be used: {why}"))
            .hint("pass a listening TCP socket, such as that of a .socket unit with ListenStream=127.0.0.1:8000")
    };
    let is_stream =
        sockopt::socket_type(&socket).map_err(|_| refused("the descriptor is not a socket"))? == SocketType::STREAM;
    let family = sockopt::socket_domain(&socket).map_err(|_| refused("its address family is unknown"))?;
    if !is_stream || ![AddressFamily::INET, AddressFamily::INET6].contains(&family) {
        return Err(refused("it is not a TCP socket"));
    }
    if !sockopt::socket_acceptconn(&socket).unwrap_or(false) {
        return Err(refused("it is not listening"));
    }
    Ok(socket.into())
}

/// Makes the Linux kernel kill this process when the supervisor dies, even if this process is stopped or hangs. Its
/// sandboxes then wait for the next server until their lease ends.
///
/// The kernel sends the signal when the thread ends that has started this process. In the supervisor that is the thread
/// which watches the worker, so it ends after the worker.
fn die_with(supervisor: i32) -> Result<(), Failure> {
    let failed = |errno: Errno| Failure::new("cannot bind this worker to its supervisor").caused_by(&errno);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    // Checked only now: a supervisor that ends after the call above takes this process with it.
    if getppid() == Pid::from_raw(supervisor) {
        Ok(())
    } else {
        Err(Failure::new("the supervisor of this worker has ended"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_listening_tcp_sockets_are_accepted() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(check(listener.into()).unwrap().local_addr().unwrap(), address);
        let directory = tempfile::tempdir().unwrap();
        let connected = {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap()
        };
        for (socket, why) in [
            (OwnedFd::from(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()), "not a TCP socket"),
            (UnixListener::bind(directory.path().join("x")).unwrap().into(), "not a TCP socket"),
            (connected.into(), "not listening"),
            (std::fs::File::open("/dev/null").unwrap().into(), "not a socket"),
        ] {
            let error = check(socket).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        }
    }
}

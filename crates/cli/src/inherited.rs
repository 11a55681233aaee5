//! Where connections come from that this process was started with: a supervisor of ours, or a listening socket of a
//! service manager (`sd_listen_fds(3)`).

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

pub(crate) enum Inherited {
    Listener(TcpListener),
    Supervisor(WorkerSetup),
}

/// Takes it, if there is one. To be called before anything is opened or started.
pub(crate) fn take() -> Result<Option<Inherited>, Failure> {
    if let Some(supervisor) = number(SUPERVISOR_VARIABLE)? {
        become_session_leader();
        end_with(supervisor)?;
        let hello = take_stdin().and_then(|socket| WorkerSetup::receive(socket).map_err(|error| no_supervisor(&error)));
        return hello.map(Inherited::Supervisor).map(Some);
    }
    Ok(take_listener()?.map(Inherited::Listener))
}

/// That of a service manager.
pub(crate) fn take_listener() -> Result<Option<TcpListener>, Failure> {
    let (Some(pid), Some(count)) = (number("LISTEN_PID")?, number("LISTEN_FDS")?) else { return Ok(None) };
    // Said to somebody else, who has started this process.
    if pid != getpid().as_raw_nonzero().get() {
        return Ok(None);
    }
    if count != 1 {
        let refusal = Failure::new(format!("{count} sockets were passed to this process (LISTEN_FDS)"));
        return Err(refusal.hint("one is served: give the .socket unit a single ListenStream="));
    }
    let taken = take_inherited_descriptor().map_err(|errno| {
        Failure::new("the socket that LISTEN_FDS speaks of is not open as descriptor 3").because(&errno)
    })?;
    check(taken).map(Some)
}

fn number(variable: &str) -> Result<Option<i32>, Failure> {
    let Some(text) = std::env::var_os(variable) else { return Ok(None) };
    let number = text.to_str().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| Failure::new(format!("{variable} is not a number")))
}

fn no_supervisor(cause: &dyn std::error::Error) -> Failure {
    Failure::new("the supervisor's socket cannot be taken").because(cause)
}

/// Standard input is then an ordinary one again, so that no program which this one starts holds the socket too.
fn take_stdin() -> Result<OwnedFd, Failure> {
    let failed = |errno: Errno| no_supervisor(&errno);
    let taken = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3).map_err(failed)?;
    let null = rustix::fs::open("/dev/null", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(failed)?;
    rustix::stdio::dup2_stdin(null).map_err(failed)?;
    Ok(taken)
}

fn check(socket: OwnedFd) -> Result<TcpListener, Failure> {
    let refused = |why: &str| {
        Failure::new(format!("the socket that was passed to this process cannot be served: {why}"))
            .hint("pass a TCP socket that listens, such as that of a .socket unit with ListenStream=127.0.0.1:8000")
    };
    let is_stream = sockopt::socket_type(&socket).map_err(|_| refused("it is no socket"))? == SocketType::STREAM;
    let family = sockopt::socket_domain(&socket).map_err(|_| refused("it has no family"))?;
    if !is_stream || ![AddressFamily::INET, AddressFamily::INET6].contains(&family) {
        return Err(refused("it is not one of TCP"));
    }
    if !sockopt::socket_acceptconn(&socket).unwrap_or(false) {
        return Err(refused("it does not listen"));
    }
    Ok(socket.into())
}

/// Dies with the supervisor, as if killed: sandboxes wait for another server, or end with their lease. The kernel sees to
/// it, also when this process is stopped or hangs. It does so when the thread ends that has started this process: that
/// one looks after it, and ends later.
fn end_with(supervisor: i32) -> Result<(), Failure> {
    let failed = |errno: Errno| Failure::new("this worker cannot be bound to its supervisor").because(&errno);
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(failed)?;
    // Asked after that: one that ends from now on takes this process along.
    if getppid() == Pid::from_raw(supervisor) {
        Ok(())
    } else {
        Err(Failure::new("the supervisor of this worker is gone"))
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn only_a_tcp_socket_that_listens_is_served() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(check(listener.into()).unwrap().local_addr().unwrap(), address);
        let directory = tempfile::tempdir().unwrap();
        let connected = {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap()
        };
        for (socket, why) in [
            (OwnedFd::from(UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()), "not one of TCP"),
            (UnixListener::bind(directory.path().join("x")).unwrap().into(), "not one of TCP"),
            (connected.into(), "does not listen"),
            (std::fs::File::open("/dev/null").unwrap().into(), "no socket"),
        ] {
            let refusal = check(socket).unwrap_err().to_string();
            assert!(refusal.contains(why), "{refusal}");
        }
    }
}

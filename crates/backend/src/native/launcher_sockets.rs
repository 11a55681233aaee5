//! The sockets of launchers, through which the next server finds the sandboxes of one that died.
//!
//! The name of a socket is `[SCOPE_TAG-]RANDOM[@SUPERVISOR].sock`. Instances of one scope are never adopted by a server
//! of another. While the supervisor of a server lives, it starts the next server itself, so no other server adopts.

use std::borrow::Cow;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::config::Persistence;
use crate::supervisor_id::SupervisorId;

const EXTENSION: &str = "sock";

/// Follows the scope tag in a name.
const SCOPE_SEPARATOR: char = '-';

/// Precedes the supervisor in a name.
const SUPERVISOR_SEPARATOR: char = '@';

/// The sockets in one directory, from the view of a server with this scope and supervisor.
#[derive(Debug, Clone)]
pub(super) struct LauncherSockets {
    pub(super) directory: PathBuf,
    pub(super) scope_tag: Option<String>,
    pub(super) supervisor: Option<SupervisorId>,
}

impl From<&Persistence> for LauncherSockets {
    fn from(persistence: &Persistence) -> Self {
        let Persistence { directory, scope_tag, supervisor, lease: _ } = persistence.clone();
        Self { directory, scope_tag, supervisor }
    }
}

impl LauncherSockets {
    /// Returns a path for the socket of a new launcher.
    pub(super) fn new_path(&self) -> PathBuf {
        let mut random = [0; 8];
        // If two names were equal, the second launcher would fail to start, and nothing else.
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let scope = self.scope_tag.as_ref().map(|tag| format!("{tag}{SCOPE_SEPARATOR}")).unwrap_or_default();
        let supervisor = self.supervisor.map(|id| format!("{SUPERVISOR_SEPARATOR}{id}")).unwrap_or_default();
        self.directory.join(format!("{scope}{:016x}{supervisor}.{EXTENSION}", u64::from_ne_bytes(random)))
    }

    pub(super) fn all(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return Vec::new() };
        let is_socket = |path: &PathBuf| path.extension().is_some_and(|extension| extension == EXTENSION);
        entries.flatten().map(|entry| entry.path()).filter(is_socket).collect()
    }

    /// Whether this server may adopt the launcher of a socket.
    pub(super) fn is_ours(&self, socket: &Path) -> bool {
        let is_free = || supervisor_of(socket).is_none_or(|supervisor| !supervisor.is_alive());
        self.has_same_scope(socket) && (self.has_same_supervisor(socket) || is_free())
    }

    /// Whether the launcher was started by this server, or by an earlier one of the same supervisor.
    pub(super) fn is_of_same_server(&self, socket: &Path) -> bool {
        self.has_same_scope(socket) && self.has_same_supervisor(socket)
    }

    fn has_same_scope(&self, socket: &Path) -> bool {
        stem(socket).split_once(SCOPE_SEPARATOR).map(|(tag, _)| tag) == self.scope_tag.as_deref()
    }

    fn has_same_supervisor(&self, socket: &Path) -> bool {
        supervisor_of(socket) == self.supervisor
    }
}

fn stem(socket: &Path) -> Cow<'_, str> {
    socket.file_stem().unwrap_or_default().to_string_lossy()
}

fn supervisor_of(socket: &Path) -> Option<SupervisorId> {
    stem(socket).split_once(SUPERVISOR_SEPARATOR)?.1.parse().ok()
}

/// Whether no process listens on a socket any more. Does not connect, because a launcher has one client at a time and
/// would take this process for its next server: a datagram socket cannot connect to a stream socket, and the error is
/// `EPROTOTYPE` only if some process listens (unix(7)).
pub(super) fn is_abandoned(socket: &Path) -> bool {
    let refused = UnixDatagram::unbound().and_then(|datagram| datagram.connect(socket)).err();
    refused.and_then(|error| Errno::from_io_error(&error)) == Some(Errno::CONNREFUSED)
}

/// The address of a sandbox, as it is stored: the socket of its launcher and the pid of its init.
pub(super) fn address(socket: &Path, pid: Pid) -> String {
    format!("{}#{}", socket.display(), pid.as_raw_nonzero())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn sockets(scope_tag: Option<&str>) -> LauncherSockets {
        LauncherSockets { directory: "/d".into(), scope_tag: scope_tag.map(ToOwned::to_owned), supervisor: None }
    }

    #[test]
    fn servers_adopt_only_launchers_of_their_scope() {
        let (first, second, unscoped) = (sockets(Some("0a")), sockets(Some("0b")), sockets(None));
        for server in [&first, &second, &unscoped] {
            let ours: Vec<bool> = [&first, &second, &unscoped].map(|maker| server.is_ours(&maker.new_path())).into();
            assert_eq!(ours.iter().filter(|ours| **ours).count(), 1);
            assert!(server.is_ours(&server.new_path()));
        }
    }

    #[test]
    fn launchers_belong_to_their_supervisor_while_it_lives() {
        let dead: SupervisorId = format!("{}.1.0", std::process::id()).parse().unwrap();
        let supervisors = [None, Some(SupervisorId::unique()), Some(SupervisorId::unique()), Some(dead)];
        let all = supervisors.map(|supervisor| LauncherSockets { supervisor, ..sockets(Some("0a")) });
        let [unsupervised, first, second, of_dead] = &all;
        for (server, adopts) in [
            (unsupervised, [true, false, false, true]),
            (first, [true, true, false, true]),
            (second, [true, false, true, true]),
            (of_dead, [true, false, false, true]),
        ] {
            assert_eq!(all.each_ref().map(|maker| server.is_ours(&maker.new_path())), adopts, "{server:?}");
            let same: Vec<&LauncherSockets> =
                all.iter().filter(|maker| server.is_of_same_server(&maker.new_path())).collect();
            assert_eq!(same.iter().map(|maker| maker.supervisor).collect::<Vec<_>>(), [server.supervisor]);
        }
        let unscoped = LauncherSockets { scope_tag: None, ..first.clone() };
        assert!(!first.is_ours(&unscoped.new_path()), "the launcher has no scope");
    }

    #[test]
    fn socket_is_abandoned_once_no_process_listens() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("a.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(!is_abandoned(&socket));
        assert!(listener.accept().is_err(), "the check does not connect");
        drop(listener);
        assert!(is_abandoned(&socket));
        assert!(!is_abandoned(&directory.path().join("missing.sock")));
    }
}

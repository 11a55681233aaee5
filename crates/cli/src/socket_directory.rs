//! The directories of sockets in the state directory: each running server has a socket in `servers`, each supervisor one
//! in `supervisors`. The name of a socket is the process id of its owner.

use std::fs::{self, DirBuilder, File};
use std::io::ErrorKind;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::failure::Failure;

/// Maximum time to connect to a process whose backlog is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// The processes whose sockets a directory contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owners {
    Servers,
    Supervisors,
}

impl Owners {
    fn directory_name(self) -> &'static str {
        match self {
            Self::Servers => "servers",
            Self::Supervisors => "supervisors",
        }
    }
}

/// A directory of sockets that only its owner may enter. Sockets are addressed through an open descriptor of the
/// directory: a socket address has at most 107 bytes, and a path may be longer.
pub(crate) struct SocketDirectory {
    directory: File,
    path: PathBuf,
}

impl SocketDirectory {
    /// Opens the directory, and creates it if it does not exist.
    pub(crate) fn create(state: &Path, owners: Owners) -> Result<Self, Failure> {
        let failed = |error: &dyn std::error::Error| {
            Failure::new(format!("cannot use the state directory {}", state.display()))
                .caused_by(error)
                .hint("set RINGFENCE_STATE_DIR to a directory that you own")
        };
        let path = state.join(owners.directory_name());
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|error| failed(&error))?;
        let sockets = Self::open(state, owners).map_err(|error| failed(&error))?;
        let metadata = sockets.directory.metadata().map_err(|error| failed(&error))?;
        if metadata.uid() != rustix::process::geteuid().as_raw() {
            let error = std::io::Error::new(ErrorKind::PermissionDenied, "the directory belongs to another user");
            return Err(failed(&error));
        }
        sockets.directory.set_permissions(fs::Permissions::from_mode(0o700)).map_err(|error| failed(&error))?;
        Ok(sockets)
    }

    pub(crate) fn open(state: &Path, owners: Owners) -> std::io::Result<Self> {
        let path = state.join(owners.directory_name());
        Ok(Self { directory: File::open(&path)?, path })
    }

    /// Listens on the socket of this process. Sockets of processes that were killed are removed first, since a server
    /// that is killed repeatedly would otherwise leave more and more of them.
    pub(crate) fn listen(self) -> std::io::Result<(UnixListener, SocketFile)> {
        drop(self.connect_all());
        let name = format!("{}.sock", std::process::id());
        let temporary = format!("{}.new", std::process::id());
        let _ = fs::remove_file(self.path.join(&temporary));
        // The socket gets its final name once it listens. Before, it would look like that of a killed process.
        let listener = UnixListener::bind(self.short_path(&temporary))?;
        fs::set_permissions(self.path.join(&temporary), fs::Permissions::from_mode(0o600))?;
        fs::rename(self.path.join(&temporary), self.path.join(&name))?;
        Ok((listener, SocketFile(self.path.join(name))))
    }

    /// Connects to every process, and removes the sockets of those that have ended. Processes that do not accept the
    /// connection are left out.
    pub(crate) fn connect_all(&self) -> std::io::Result<Vec<(u32, UnixStream)>> {
        let attempts = self.try_connect_all()?.into_iter();
        Ok(attempts.filter_map(|(pid, connected)| Some((pid, connected.ok()?))).collect())
    }

    /// Does the same as [`Self::connect_all`], but also returns the processes that do not accept the connection.
    pub(crate) fn try_connect_all(&self) -> std::io::Result<Vec<(u32, std::io::Result<UnixStream>)>> {
        let mut attempts = Vec::new();
        for entry in fs::read_dir(&self.path)?.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.strip_suffix(".sock")?.parse().ok()) else { continue };
            match self.connect(pid) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => drop(fs::remove_file(entry.path())),
                // The process has just ended and removed its socket.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                connected => attempts.push((pid, connected)),
            }
        }
        attempts.sort_by_key(|(pid, _)| *pid);
        Ok(attempts)
    }

    /// Connects to one process. If its backlog is full (connect(2), `EAGAIN`), retries for a moment only: the process
    /// may hang.
    pub(crate) fn connect(&self, pid: u32) -> std::io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new(self.short_path(&format!("{pid}.sock")))?;
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        loop {
            match connect(&socket, &address) {
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY_INTERVAL),
                connected => break connected?,
            }
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    fn short_path(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.directory.as_raw_fd())
    }
}

/// The file of a socket. It is removed when this value is dropped.
pub(crate) struct SocketFile(PathBuf);

impl Drop for SocketFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_servers_are_found_and_sockets_of_killed_ones_removed() {
        let state = tempfile::tempdir().unwrap();
        // Longer than a socket address.
        let state = state.path().join("x".repeat(120));
        let (listener, file) = SocketDirectory::create(&state, Owners::Servers).unwrap().listen().unwrap();
        let servers = SocketDirectory::open(&state, Owners::Servers).unwrap();
        let found: Vec<u32> = servers.connect_all().unwrap().into_iter().map(|(pid, _)| pid).collect();
        assert_eq!(found, [std::process::id()]);
        // A server with a full backlog is reported, and does not block.
        let mut waiting = Vec::new();
        while let Ok(stream) = servers.connect(std::process::id()) {
            waiting.push(stream);
        }
        assert!(matches!(servers.try_connect_all().unwrap()[..], [(pid, Err(_))] if pid == std::process::id()));
        drop(listener);
        assert!(servers.connect_all().unwrap().is_empty());
        assert!(!file.0.exists());
        assert_eq!(fs::metadata(state.join("servers")).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

//! The state directory, and in it the sockets of the servers that run.

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

/// The directory of sockets, which only its owner may enter. Names in it are used through an open descriptor: a socket
/// address holds no more than 107 bytes, and a path may be longer.
pub(crate) struct Servers {
    directory: File,
    path: PathBuf,
}

/// How long a server that has much to do may take until it has room for one more.
const PATIENCE: Duration = Duration::from_secs(1);
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

const SERVERS: &str = "servers";
const SUPERVISORS: &str = "supervisors";

impl Servers {
    /// Opens it, and makes it where it is missing.
    pub(crate) fn make(state: &Path) -> Result<Self, Failure> {
        Self::make_named(state, SERVERS)
    }

    /// The same for those that supervise servers.
    pub(crate) fn make_for_supervisors(state: &Path) -> Result<Self, Failure> {
        Self::make_named(state, SUPERVISORS)
    }

    fn make_named(state: &Path, name: &str) -> Result<Self, Failure> {
        let path = state.join(name);
        let failed = |error: &dyn std::error::Error| {
            Failure::new(format!("the state directory {} cannot be used", state.display()))
                .because(error)
                .hint("set RINGFENCE_STATE_DIR to a directory of your own")
        };
        DirBuilder::new().recursive(true).mode(0o700).create(&path).map_err(|error| failed(&error))?;
        let servers = Self::open_named(state, name).map_err(|error| failed(&error))?;
        let found = servers.directory.metadata().map_err(|error| failed(&error))?;
        if found.uid() != rustix::process::geteuid().as_raw() {
            return Err(failed(&std::io::Error::new(ErrorKind::PermissionDenied, "it belongs to somebody else")));
        }
        servers.directory.set_permissions(fs::Permissions::from_mode(0o700)).map_err(|error| failed(&error))?;
        Ok(servers)
    }

    pub(crate) fn open(state: &Path) -> std::io::Result<Self> {
        Self::open_named(state, SERVERS)
    }

    pub(crate) fn open_for_supervisors(state: &Path) -> std::io::Result<Self> {
        Self::open_named(state, SUPERVISORS)
    }

    fn open_named(state: &Path, name: &str) -> std::io::Result<Self> {
        let path = state.join(name);
        Ok(Self { directory: File::open(&path)?, path })
    }

    /// Listens under this process's number. What those have left that were killed is removed: one that is killed again
    /// and again would leave more and more.
    pub(crate) fn listen(self) -> std::io::Result<(UnixListener, SocketFile)> {
        drop(self.connect_all());
        let name = format!("{}.sock", std::process::id());
        let unborn = format!("{}.new", std::process::id());
        let _ = fs::remove_file(self.path.join(&unborn));
        // Under its final name only once it listens: until then it would look as one that nobody serves.
        let listener = UnixListener::bind(self.short(&unborn))?;
        fs::set_permissions(self.path.join(&unborn), fs::Permissions::from_mode(0o600))?;
        fs::rename(self.path.join(&unborn), self.path.join(&name))?;
        Ok((listener, SocketFile(self.path.join(name))))
    }

    /// Connects with every server there is, and removes what those that are gone have left.
    pub(crate) fn connect_all(&self) -> std::io::Result<Vec<(u32, UnixStream)>> {
        let tried = self.try_all()?.into_iter();
        Ok(tried.filter_map(|(pid, connected)| Some((pid, connected.ok()?))).collect())
    }

    /// The same, with those that cannot be connected with.
    pub(crate) fn try_all(&self) -> std::io::Result<Vec<(u32, std::io::Result<UnixStream>)>> {
        let mut tried = Vec::new();
        for entry in fs::read_dir(&self.path)?.flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.strip_suffix(".sock")?.parse().ok()) else { continue };
            match self.connect(pid) {
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => drop(fs::remove_file(entry.path())),
                // It has ended just now.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                connected => tried.push((pid, connected)),
            }
        }
        tried.sort_by_key(|(pid, _)| *pid);
        Ok(tried)
    }

    /// Waits for a moment only: whoever lets so many wait that there is room for no more may not answer at all
    /// (connect(2), `EAGAIN`).
    pub(crate) fn connect(&self, pid: u32) -> std::io::Result<UnixStream> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new(self.short(&format!("{pid}.sock")))?;
        let deadline = Instant::now() + PATIENCE;
        loop {
            match connect(&socket, &address) {
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(BETWEEN_TRIES),
                connected => break connected?,
            }
        }
        let stream = UnixStream::from(socket);
        stream.set_nonblocking(false)?;
        Ok(stream)
    }

    fn short(&self, name: &str) -> String {
        format!("/proc/self/fd/{}/{name}", self.directory.as_raw_fd())
    }
}

/// A socket's name. Dropped, it is removed.
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
    fn a_server_is_found_while_it_lives_and_swept_when_it_was_killed() {
        let state = tempfile::tempdir().unwrap();
        // Longer than a socket address may be.
        let state = state.path().join("x".repeat(120));
        let (listener, file) = Servers::make(&state).unwrap().listen().unwrap();
        let servers = Servers::open(&state).unwrap();
        let found: Vec<u32> = servers.connect_all().unwrap().into_iter().map(|(pid, _)| pid).collect();
        assert_eq!(found, [std::process::id()]);
        // One that lets everybody wait is told of, and waited for by nobody.
        let mut waiting = Vec::new();
        while let Ok(stream) = servers.connect(std::process::id()) {
            waiting.push(stream);
        }
        assert!(matches!(servers.try_all().unwrap()[..], [(pid, Err(_))] if pid == std::process::id()));
        drop(listener);
        assert!(servers.connect_all().unwrap().is_empty());
        assert!(!file.0.exists());
        assert_eq!(fs::metadata(state.join("servers")).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

//! Adds inotify watches for guests, without the events that report access.
//!
//! An inode of a shared read-only tree is the same for all sandboxes and the host, so `IN_OPEN`, `IN_ACCESS`
//! and `IN_CLOSE_NOWRITE` would show a guest which programs others run. Common watchers request these events without
//! using them. The filter passes such calls to the init, which adds the watch with the other events only. For this the
//! init creates the inotify instances of the sandbox and keeps a descriptor of each. It resolves the path with the same
//! rights as the guest.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::inotify::{WatchFlags, add_watch};
use rustix::io::Errno;

use super::lower_half;
use crate::sys::{NotificationListener, NotifiedCall, create_inotify_instance};

const ACCESS_EVENTS: u32 = libc::IN_ACCESS | libc::IN_OPEN | libc::IN_CLOSE_NOWRITE;

/// `PATH_MAX` of Linux, the final zero included.
const MAX_PATH_BYTES: usize = 4096;

#[derive(Default)]
pub(super) struct InotifyInstances(Vec<Instance>);

/// An inotify instance of a guest.
struct Instance {
    /// The process that created it, and the descriptor there.
    process: u32,
    descriptor: i32,
    inotify: OwnedFd,
}

impl InotifyInstances {
    /// Responds to `inotify_init1` with a new instance.
    pub(super) fn create(&mut self, listener: &NotificationListener, call: &NotifiedCall, flags: u32) {
        // The init's descriptor keeps an instance alive, and the number of instances is limited.
        self.0.retain(Instance::is_in_use);
        let inotify = match create_inotify_instance(flags) {
            Ok(inotify) => inotify,
            Err(errno) => return listener.respond(call, Err(errno)),
        };
        let process = process_of(call.thread);
        let is_close_on_exec = flags & libc::IN_CLOEXEC.cast_unsigned() != 0;
        match (listener.respond_with_descriptor(call, inotify.as_fd(), is_close_on_exec), process) {
            (Ok(descriptor), Some(process)) => {
                self.0.retain(|known| (known.process, known.descriptor) != (process, descriptor));
                self.0.push(Instance { process, descriptor, inotify });
            }
            (Ok(_), None) => {}
            // Before Linux 5.14 this is not supported: the guest creates the instance, and the init cannot add watches.
            (Err(Errno::INVAL), _) => listener.allow(call),
            (Err(errno), _) => listener.respond(call, Err(errno)),
        }
    }

    /// Responds to `inotify_add_watch`.
    pub(super) fn add_watch(&self, listener: &NotificationListener, call: &NotifiedCall) {
        listener.respond(call, self.try_add_watch(listener, call));
    }

    fn try_add_watch(&self, listener: &NotificationListener, call: &NotifiedCall) -> Result<i32, Errno> {
        let [descriptor, path, mask, ..] = call.arguments;
        let mask = lower_half(mask) & !ACCESS_EVENTS;
        if mask & libc::IN_ALL_EVENTS == 0 {
            return Err(Errno::PERM);
        }
        let descriptor = lower_half(descriptor).cast_signed();
        let process = process_of(call.thread).ok_or(Errno::PERM)?;
        let is_same = |known: &&Instance| (known.process, known.descriptor) == (process, descriptor);
        let instance = self.0.iter().find(is_same).ok_or(Errno::PERM)?;
        let path = read_path(call.thread, path)?;
        if !listener.is_pending(call) {
            return Err(Errno::INTR);
        }
        add_watch(&instance.inotify, path_for_init(call.thread, &path), WatchFlags::from_bits_retain(mask))
    }
}

impl Instance {
    fn is_in_use(&self) -> bool {
        let link = fs::read_link(format!("/proc/{}/fd/{}", self.process, self.descriptor));
        link.is_ok_and(|target| target.as_os_str().as_bytes() == b"anon_inode:inotify")
    }
}

/// The process id of a thread.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read(format!("/proc/{thread}/status")).ok()?;
    // The first line is the name, which may contain anything except a line break.
    let line = status.split(|byte| *byte == b'\n').skip(1).find_map(|line| line.strip_prefix(b"Tgid:"))?;
    std::str::from_utf8(line).ok()?.trim().parse().ok()
}

/// Reads a path from the memory of a thread.
fn read_path(thread: u32, address: u64) -> Result<Vec<u8>, Errno> {
    let errno = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::FAULT);
    let memory = File::open(format!("/proc/{thread}/mem")).map_err(errno)?;
    let mut path = vec![0; MAX_PATH_BYTES];
    // A read stops at unmapped memory.
    let length = memory.read_at(&mut path, address).map_err(|_| Errno::FAULT)?;
    let end = path[..length].iter().position(|byte| *byte == 0);
    path.truncate(end.ok_or(if length == MAX_PATH_BYTES { Errno::NAMETOOLONG } else { Errno::FAULT })?);
    Ok(path)
}

/// Converts a path of a thread for this process: relative paths start at the thread's working directory, and `self` is
/// the thread.
fn path_for_init(thread: u32, path: &[u8]) -> PathBuf {
    let thread_directory = PathBuf::from(format!("/proc/{thread}"));
    let rest = path.strip_prefix(b"/proc/self/").or_else(|| path.strip_prefix(b"/proc/thread-self/"));
    match rest {
        Some(rest) => thread_directory.join(Path::new(&OsString::from_vec(rest.to_vec()))),
        None if path.is_empty() => PathBuf::new(),
        None => thread_directory.join("cwd").join(Path::new(&OsString::from_vec(path.to_vec()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_resolved_like_in_the_calling_thread() {
        let converted = |path: &str| path_for_init(7, path.as_bytes()).into_os_string().into_string().unwrap();
        assert_eq!(converted("/workspace/a"), "/workspace/a");
        assert_eq!(converted("a/../b"), "/proc/7/cwd/a/../b");
        assert_eq!(converted("/proc/self/cwd/x"), "/proc/7/cwd/x");
        assert_eq!(converted(""), "");
    }

    #[test]
    fn paths_are_read_from_memory_within_bounds() {
        let this = std::process::id();
        let text = b"some/path\0and more";
        assert_eq!(read_path(this, text.as_ptr() as u64), Ok(b"some/path".to_vec()));
        let long = vec![b'x'; 2 * MAX_PATH_BYTES];
        assert_eq!(read_path(this, long.as_ptr() as u64), Err(Errno::NAMETOOLONG));
        assert_eq!(read_path(this, 8), Err(Errno::FAULT));
        assert_eq!(process_of(this), Some(this));
    }
}

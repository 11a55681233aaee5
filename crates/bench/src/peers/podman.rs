//! podman without an image: its root file system consists of the host's own directories, so that nothing is downloaded.
//!
//! podman's defaults fail on some hosts. It raises resource limits, which root in a container may not do; it therefore
//! gets limits that the host allows. Its runtime refuses a host with cgroup v1 controllers and an empty cgroup v2 tree;
//! it therefore gets a mount namespace without that tree. That costs two more small programs, which is little beside
//! those that podman starts itself.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::Result;
use rustix::process::{Resource, getrlimit};
use tempfile::TempDir;

use super::programs::program;
use crate::sampling::Candidate;

const SYSTEM_DIRECTORIES: [&str; 5] = ["usr", "bin", "sbin", "lib", "lib64"];

/// Processes and descriptors that a container with one program needs.
const ENOUGH: u64 = 1024;

/// The cgroup v2 tree on hosts with both versions.
const CGROUP2_TREE: &str = "/sys/fs/cgroup/unified";

/// The root file system of the containers. Removed when it is dropped.
pub(crate) struct RootDirectory(TempDir);

impl RootDirectory {
    pub(crate) fn create() -> Result<Self> {
        let root = tempfile::tempdir()?;
        for name in SYSTEM_DIRECTORIES {
            let (host, inside) = (Path::new("/").join(name), root.path().join(name));
            match fs::read_link(&host) {
                Ok(target) => std::os::unix::fs::symlink(target, inside)?,
                Err(_) if host.is_dir() => fs::create_dir(inside)?,
                Err(_) => {}
            }
        }
        Ok(Self(root))
    }

    /// Returns a candidate that runs the command in a new container each time.
    pub(crate) fn candidate<'a>(&self, name: &str, command: &[OsString]) -> Candidate<'a> {
        let mut whole: Vec<OsString> = Vec::new();
        if Path::new(CGROUP2_TREE).join("cgroup.procs").exists() && rustix::process::geteuid().is_root() {
            let without_tree = format!("umount {CGROUP2_TREE} && exec \"$@\"");
            whole.extend(["unshare", "--mount", "sh", "-c", &without_tree, "sh"].map(Into::into));
        }
        whole.extend(["podman", "run", "--rm", "--network=none", "--log-driver=none"].map(Into::into));
        for (name, resource) in [("nofile", Resource::Nofile), ("nproc", Resource::Nproc)] {
            let limit = getrlimit(resource).maximum.map_or(ENOUGH, |maximum| maximum.min(ENOUGH));
            whole.extend(["--ulimit".into(), format!("{name}={limit}:{limit}").into()]);
        }
        for name in SYSTEM_DIRECTORIES {
            let host = Path::new("/").join(name);
            if !host.is_symlink() && host.is_dir() {
                whole.extend(["-v".into(), format!("/{name}:/{name}:ro").into()]);
            }
        }
        whole.extend(["--rootfs".into(), self.0.path().into()]);
        whole.extend(command.iter().cloned());
        program(format!("podman run, {name}"), whole)
    }
}

//! podman without an image: a root file system of the host's own directories, so that nothing is fetched.
//!
//! Its own defaults fail on some hosts: it raises limits of a process, which not every root may, and its runtime refuses
//! cgroup controllers of the first version with an empty tree of the second beside them. It is given limits that are
//! there, and a view without that tree; the view costs it two small programs, of the many that it starts itself.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::Result;
use rustix::process::{Resource, getrlimit};
use tempfile::TempDir;

use super::peers::program;
use super::turns::Contestant;

const SYSTEM: [&str; 5] = ["usr", "bin", "sbin", "lib", "lib64"];

/// Processes and descriptors for a container with one program.
const ENOUGH: u64 = 1024;

/// Where hosts with controllers of both versions have the tree of the second.
const SECOND_TREE: &str = "/sys/fs/cgroup/unified";

/// A root file system that goes with its owner.
pub(super) struct Root(TempDir);

impl Root {
    pub(super) fn make() -> Result<Self> {
        let root = tempfile::tempdir()?;
        for name in SYSTEM {
            let (host, own) = (Path::new("/").join(name), root.path().join(name));
            match fs::read_link(&host) {
                Ok(target) => std::os::unix::fs::symlink(target, own)?,
                Err(_) if host.is_dir() => fs::create_dir(own)?,
                Err(_) => {}
            }
        }
        Ok(Self(root))
    }

    /// Runs a command in a container of its own.
    pub(super) fn contestant<'a>(&self, name: &str, command: &[OsString]) -> Contestant<'a> {
        let mut whole: Vec<OsString> = Vec::new();
        if Path::new(SECOND_TREE).join("cgroup.procs").exists() && rustix::process::geteuid().is_root() {
            let without_it = format!("umount {SECOND_TREE} && exec \"$@\"");
            whole.extend(["unshare", "--mount", "sh", "-c", &without_it, "sh"].map(Into::into));
        }
        whole.extend(["podman", "run", "--rm", "--network=none", "--log-driver=none"].map(Into::into));
        for (name, resource) in [("nofile", Resource::Nofile), ("nproc", Resource::Nproc)] {
            let most = getrlimit(resource).maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
            whole.extend(["--ulimit".into(), format!("{name}={most}:{most}").into()]);
        }
        for name in SYSTEM {
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

//! podman without an image: a root file system of the host's own directories, so that nothing is fetched.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use anyhow::Result;
use tempfile::TempDir;

use super::peers::program;
use super::turns::Contestant;

const SYSTEM: [&str; 5] = ["usr", "bin", "sbin", "lib", "lib64"];

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
        let mut whole: Vec<OsString> =
            ["podman", "run", "--rm", "--network=none", "--log-driver=none"].map(Into::into).into();
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

//! Sizes of sandboxes, by name.

use std::str::FromStr;

use ringfence_sandbox::{Limits, Workspace};

/// A named size. The workspace is half of the memory: it lives there, and a full one must leave room
/// for the processes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Flavor {
    pub name: &'static str,
    pub limits: Limits,
    pub workspace: Workspace,
}

const GIB: u64 = 1 << 30;

const fn flavor(name: &'static str, cpus: f64, memory_bytes: u64, pids: u32, open_files: u32) -> Flavor {
    Flavor {
        name,
        limits: Limits { memory_bytes, pids, cpus, open_files },
        workspace: Workspace { bytes: memory_bytes / 2, inodes: memory_bytes >> 14 },
    }
}

impl Flavor {
    pub const ALL: [Self; 3] = [
        flavor("small", 1.0, GIB, 256, 1024),
        flavor("medium", 2.0, 2 * GIB, 512, 2048),
        flavor("large", 4.0, 4 * GIB, 1024, 4096),
    ];
}

/// A flavor that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown flavor `{0}`; there are small, medium and large")]
pub struct UnknownFlavor(String);

impl FromStr for Flavor {
    type Err = UnknownFlavor;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|flavor| flavor.name == name).ok_or_else(|| UnknownFlavor(name.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flavor_makes_a_valid_sandbox() {
        for flavor in Flavor::ALL {
            let spec = crate::template::Template::Bash.spec(flavor, vec!["true".into()]);
            spec.validate().unwrap();
        }
        assert!("huge".parse::<Flavor>().unwrap_err().to_string().contains("small, medium and large"));
    }
}

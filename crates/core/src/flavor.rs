//! Flavors: named sizes of sandboxes.

use std::str::FromStr;
use std::sync::Arc;

use crate::spec::{Limits, Workspace};
use crate::suggest::join;

/// A named set of limits for sandboxes.
#[derive(Debug, Clone, PartialEq)]
pub struct Flavor {
    pub name: Arc<str>,
    pub limits: Limits,
    pub workspace: Workspace,
}

const GIB: u64 = 1 << 30;

/// The built-in flavors: name, CPUs, memory in GiB, processes.
const BUILTIN: [(&str, f64, u64, u32); 3] = [("small", 1.0, 1, 256), ("medium", 2.0, 2, 512), ("large", 4.0, 4, 1024)];

impl Flavor {
    /// Creates a flavor whose workspace is half of its memory.
    ///
    /// The workspace is a tmpfs, so its content counts towards the memory limit. Processes need the other half. The
    /// workspace has one inode for each 16 KiB of the memory limit.
    pub fn new(name: &str, limits: Limits) -> Self {
        let workspace = Workspace { bytes: limits.memory_bytes / 2, inodes: limits.memory_bytes >> 14 };
        Self { name: name.into(), limits, workspace }
    }

    /// Returns the smallest built-in flavor.
    pub fn small() -> Self {
        Self::builtin(BUILTIN[0])
    }

    fn builtin((name, cpus, gib, pids): (&str, f64, u64, u32)) -> Self {
        Self::new(name, Limits { memory_bytes: gib * GIB, pids, cpus, open_files: 4 * pids })
    }
}

/// All available flavors, smallest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Flavors(Vec<Flavor>);

impl Flavors {
    pub fn new(mut flavors: Vec<Flavor>) -> Self {
        flavors.sort_by(|left, right| {
            (left.limits.memory_bytes, &left.name).cmp(&(right.limits.memory_bytes, &right.name))
        });
        Self(flavors)
    }

    /// Adds a flavor. It replaces one with the same name.
    #[must_use]
    pub fn with(self, flavor: Flavor) -> Self {
        let mut flavors = self.0;
        flavors.retain(|other| other.name != flavor.name);
        flavors.push(flavor);
        Self::new(flavors)
    }

    /// Finds a flavor by name. Surrounding white space and the case of letters do not matter.
    pub fn find(&self, name: &str) -> Result<&Flavor, UnknownFlavor> {
        let unknown = || UnknownFlavor { name: name.into(), known: join(self.iter().map(|flavor| &*flavor.name)) };
        let exact = self.iter().find(|flavor| &*flavor.name == name);
        let similar = || self.iter().find(|flavor| flavor.name.eq_ignore_ascii_case(name.trim()));
        exact.or_else(similar).ok_or_else(unknown)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Flavor> {
        self.0.iter()
    }
}

impl Default for Flavors {
    /// Returns the built-in flavors.
    fn default() -> Self {
        Self::new(BUILTIN.map(Flavor::builtin).into())
    }
}

/// The error for a flavor that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown flavor `{name}`; available flavors: {known}")]
pub struct UnknownFlavor {
    name: String,
    known: String,
}

impl FromStr for Flavor {
    type Err = UnknownFlavor;

    /// Finds a built-in flavor by name.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Flavors::default().find(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builtin_flavors_make_valid_specs() {
        for flavor in Flavors::default().iter() {
            let spec =
                crate::template::Template::builtin(crate::template::Language::Bash).spec(flavor, vec!["true".into()]);
            spec.validate().unwrap();
        }
        assert_eq!(Flavors::default().find(" Small ").unwrap().name.as_ref(), "small");
        assert!("huge".parse::<Flavor>().unwrap_err().to_string().contains("small, medium and large"));
    }
}

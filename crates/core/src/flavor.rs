//! Sizes of sandboxes, by name.

use std::str::FromStr;
use std::sync::Arc;

use crate::spec::{Limits, Workspace};

use crate::suggest::join;

/// A named size.
#[derive(Debug, Clone, PartialEq)]
pub struct Flavor {
    pub name: Arc<str>,
    pub limits: Limits,
    pub workspace: Workspace,
}

const GIB: u64 = 1 << 30;

impl Flavor {
    /// A size whose workspace is half of the memory: it lives there, and a full one must leave room for the
    /// processes.
    pub fn new(name: &str, limits: Limits) -> Self {
        let workspace = Workspace { bytes: limits.memory_bytes / 2, inodes: limits.memory_bytes >> 14 };
        Self { name: name.into(), limits, workspace }
    }
}

/// The flavors that there are, smallest first.
#[derive(Debug, Clone, PartialEq)]
pub struct Flavors(Vec<Flavor>);

impl Flavors {
    pub fn new(mut flavors: Vec<Flavor>) -> Self {
        flavors
            .sort_by(|one, other| (one.limits.memory_bytes, &one.name).cmp(&(other.limits.memory_bytes, &other.name)));
        Self(flavors)
    }

    /// The same and one more, which stands for any of its name.
    #[must_use]
    pub fn with(self, flavor: Flavor) -> Self {
        let mut flavors = self.0;
        flavors.retain(|other| other.name != flavor.name);
        flavors.push(flavor);
        Self::new(flavors)
    }

    pub fn find(&self, name: &str) -> Result<&Flavor, UnknownFlavor> {
        let unknown = || UnknownFlavor { name: name.into(), known: join(self.iter().map(|flavor| &*flavor.name)) };
        self.iter().find(|flavor| &*flavor.name == name).ok_or_else(unknown)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Flavor> {
        self.0.iter()
    }
}

/// The built-in ones: name, CPUs, GiB, processes.
const SIZES: [(&str, f64, u64, u32); 3] = [("small", 1.0, 1, 256), ("medium", 2.0, 2, 512), ("large", 4.0, 4, 1024)];

impl Flavor {
    /// The smallest of the built-in ones.
    pub fn small() -> Self {
        Self::builtin(SIZES[0])
    }

    fn builtin((name, cpus, gib, pids): (&str, f64, u64, u32)) -> Self {
        Self::new(name, Limits { memory_bytes: gib * GIB, pids, cpus, open_files: 4 * pids })
    }
}

impl Default for Flavors {
    /// The built-in ones.
    fn default() -> Self {
        Self::new(SIZES.map(Flavor::builtin).into())
    }
}

/// A flavor that does not exist.
#[derive(Debug, thiserror::Error)]
#[error("unknown flavor `{name}`; there are {known}")]
pub struct UnknownFlavor {
    name: String,
    known: String,
}

impl FromStr for Flavor {
    type Err = UnknownFlavor;

    /// Takes the name of a built-in one.
    fn from_str(name: &str) -> Result<Self, Self::Err> {
        Flavors::default().find(name).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flavor_makes_a_valid_sandbox() {
        for flavor in Flavors::default().iter() {
            let spec =
                crate::template::Template::builtin(crate::template::Language::Bash).spec(flavor, vec!["true".into()]);
            spec.validate().unwrap();
        }
        assert!("huge".parse::<Flavor>().unwrap_err().to_string().contains("small, medium and large"));
    }
}

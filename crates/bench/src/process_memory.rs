//! The process tree of the host and the memory of its processes, from /proc.

use std::collections::HashMap;
use std::fs;

use anyhow::{Context as _, Result};

/// All processes of the host at one moment, by parent.
pub(crate) struct ProcessTree(HashMap<u32, Vec<u32>>);

impl ProcessTree {
    pub(crate) fn read() -> Self {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // The process name, in parentheses, may contain any character.
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
            if let Some(parent) = parent {
                children.entry(parent).or_default().push(pid);
            }
        }
        Self(children)
    }

    pub(crate) fn children(&self, pid: u32) -> &[u32] {
        self.0.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// Returns a process and all its descendants.
    pub(crate) fn subtree(&self, pid: u32) -> Vec<u32> {
        let mut subtree = vec![pid];
        let mut next = 0;
        while let Some(&pid) = subtree.get(next) {
            subtree.extend(self.children(pid));
            next += 1;
        }
        subtree
    }

    /// Returns the sum of [`pss_mb`] over a process and all its descendants.
    pub(crate) fn subtree_pss_mb(&self, pid: u32) -> Result<f64> {
        self.subtree(pid).into_iter().map(pss_mb).sum()
    }
}

/// Returns whether the process is in another PID namespace, as only sandboxes are.
pub(crate) fn is_sandboxed(pid: u32) -> Result<bool> {
    let namespace = |path: &str| fs::read_link(path).with_context(|| format!("cannot read {path}"));
    Ok(namespace(&format!("/proc/{pid}/ns/pid"))? != namespace("/proc/self/ns/pid")?)
}

/// Returns the proportional set size: a page that n processes share counts as 1/n page for each.
pub(crate) fn pss_mb(pid: u32) -> Result<f64> {
    read_mb(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

pub(crate) fn resident_mb(pid: u32) -> Result<f64> {
    read_mb(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// Returns the peak resident memory since [`reset_peak`].
pub(crate) fn peak_mb(pid: u32) -> Result<f64> {
    read_mb(&format!("/proc/{pid}/status"), "VmHWM:")
}

pub(crate) fn reset_peak(pid: u32) -> Result<()> {
    // See proc_pid_clear_refs(5).
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("cannot reset the memory peak of the server")
}

fn read_mb(path: &str, key: &str) -> Result<f64> {
    let text = fs::read_to_string(path).with_context(|| format!("cannot read {path}"))?;
    let kib = text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<u32>().ok());
    Ok(f64::from(kib.with_context(|| format!("{path} has no {key}"))?) * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn child_is_in_the_subtree_of_its_parent_and_has_memory() {
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let own = std::process::id();
        assert!(ProcessTree::read().subtree(own).contains(&child.id()));
        assert!(!is_sandboxed(child.id()).unwrap());
        let _ = child.kill();
        let _ = child.wait();
        assert!(pss_mb(own).unwrap() > 0.5 && resident_mb(own).unwrap() >= pss_mb(own).unwrap() * 0.5);
        reset_peak(own).unwrap();
        assert!(peak_mb(own).unwrap() > 0.5);
    }
}

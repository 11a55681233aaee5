//! What processes hold, as the kernel counts it.

use std::collections::HashMap;
use std::fs;

use anyhow::{Context as _, Result};

/// All processes of the host at one time, by parent.
pub(super) struct Tree(HashMap<u32, Vec<u32>>);

impl Tree {
    pub(super) fn look() -> Self {
        let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
        for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            // The name, in parentheses, may hold anything.
            let stat = fs::read_to_string(entry.path().join("stat")).unwrap_or_default();
            let parent = stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().nth(1)?.parse().ok());
            if let Some(parent) = parent {
                children.entry(parent).or_default().push(pid);
            }
        }
        Self(children)
    }

    pub(super) fn children(&self, pid: u32) -> &[u32] {
        self.0.get(&pid).map_or(&[], Vec::as_slice)
    }

    /// A process and all below it.
    pub(super) fn family(&self, pid: u32) -> Vec<u32> {
        let mut family = vec![pid];
        let mut next = 0;
        while let Some(&pid) = family.get(next) {
            family.extend(self.children(pid));
            next += 1;
        }
        family
    }
}

/// Whether it has a process namespace of its own, as only sandboxes have.
pub(super) fn is_sandboxed(pid: u32) -> Result<bool> {
    let namespace = |path: &str| fs::read_link(path).with_context(|| format!("{path} cannot be read"));
    Ok(namespace(&format!("/proc/{pid}/ns/pid"))? != namespace("/proc/self/ns/pid")?)
}

/// The proportional set size: a page that is shared by n processes counts as the nth part of one.
pub(super) fn pss_mb(pid: u32) -> Result<f64> {
    read_mb(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

pub(super) fn resident_mb(pid: u32) -> Result<f64> {
    read_mb(&format!("/proc/{pid}/status"), "VmRSS:")
}

/// The most that was resident since [`forget_peak`].
pub(super) fn peak_mb(pid: u32) -> Result<f64> {
    read_mb(&format!("/proc/{pid}/status"), "VmHWM:")
}

pub(super) fn forget_peak(pid: u32) -> Result<()> {
    // See proc_pid_clear_refs(5).
    fs::write(format!("/proc/{pid}/clear_refs"), "5").context("the peak of memory cannot be reset")
}

fn read_mb(path: &str, key: &str) -> Result<f64> {
    let text = fs::read_to_string(path).with_context(|| format!("{path} cannot be read"))?;
    let kib = text.lines().find_map(|line| line.strip_prefix(key)?.split_whitespace().next()?.parse::<u32>().ok());
    Ok(f64::from(kib.with_context(|| format!("{path} has no {key}"))?) * 1024.0 / 1e6)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_found_below_its_parent_and_has_memory() {
        let mut child = std::process::Command::new("/bin/sleep").arg("60").spawn().unwrap();
        let own = std::process::id();
        assert!(Tree::look().family(own).contains(&child.id()));
        assert!(!is_sandboxed(child.id()).unwrap());
        let _ = child.kill();
        let _ = child.wait();
        assert!(pss_mb(own).unwrap() > 0.5 && resident_mb(own).unwrap() >= pss_mb(own).unwrap() * 0.5);
        forget_peak(own).unwrap();
        assert!(peak_mb(own).unwrap() > 0.5);
    }
}

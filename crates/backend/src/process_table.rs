//! Where a process of the host stands among others, as `proc_pid_stat(5)` tells.

/// Of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    pub pid: i32,
    pub session: i32,
    /// When it was started, in ticks since the boot: with its number, it is told from all others of this boot.
    pub started: u64,
    pub is_alive: bool,
}

pub fn see(pid: i32) -> Option<Seen> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name, which may hold anything, ends with the last bracket.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let is_alive = !["Z", "X"].contains(&fields.next()?);
    let session = fields.nth(2)?.parse().ok()?;
    let started = fields.nth(15)?.parse().ok()?;
    Some(Seen { pid, session, started, is_alive })
}

pub fn see_all() -> Vec<Seen> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| see(entry.file_name().to_str()?.parse().ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn this_process_is_seen_as_it_is() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let seen = see(own).unwrap();
        assert!(seen.is_alive);
        // It is younger than the first of all.
        assert!(see(1).is_some_and(|first| first.started < seen.started));
        assert!(see_all().contains(&seen));
        assert_eq!(see(i32::MAX), None);
    }

    #[test]
    fn who_leads_a_session_is_seen_with_it() {
        // One of its own: that of this process may have been made outside of its process namespace, and has no number then.
        let mut leader = Command::new("setsid")
            .args(["sh", "-c", "echo; read _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        leader.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let pid = leader.id().cast_signed();
        assert_eq!(see(pid).map(|seen| seen.session), Some(pid));
        drop(leader.stdin.take());
        leader.wait().unwrap();
    }
}

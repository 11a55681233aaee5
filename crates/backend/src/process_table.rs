//! Reads the processes of the host from /proc; see `proc_pid_stat(5)`.

/// A process at one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcessEntry {
    pub pid: i32,
    /// The pid of its session leader.
    pub session: i32,
    /// The start time in ticks since the boot. Together with the pid it identifies the process until the next boot.
    pub started: u64,
    pub is_alive: bool,
}

/// Reads one process. `None` if there is none with this pid.
pub fn read_process(pid: i32) -> Option<ProcessEntry> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name can contain anything; it ends at the last bracket.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let is_alive = !["Z", "X"].contains(&fields.next()?);
    let session = fields.nth(2)?.parse().ok()?;
    let started = fields.nth(15)?.parse().ok()?;
    Some(ProcessEntry { pid, session, started, is_alive })
}

/// Reads all processes.
pub fn read_processes() -> Vec<ProcessEntry> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| read_process(entry.file_name().to_str()?.parse().ok()?)).collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn own_process_is_read() {
        let own = rustix::process::getpid().as_raw_nonzero().get();
        let entry = read_process(own).unwrap();
        assert!(entry.is_alive);
        assert!(read_process(1).is_some_and(|init| init.started < entry.started));
        assert!(read_processes().contains(&entry));
        assert_eq!(read_process(i32::MAX), None);
    }

    #[test]
    fn session_leader_has_its_own_pid_as_session() {
        // A new session: that of this process may be outside of its pid namespace, and has no number then.
        let mut leader = Command::new("setsid")
            .args(["sh", "-c", "echo; read _"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        leader.stdout.take().unwrap().read_exact(&mut [0]).unwrap();
        let pid = leader.id().cast_signed();
        assert_eq!(read_process(pid).map(|entry| entry.session), Some(pid));
        drop(leader.stdin.take());
        leader.wait().unwrap();
    }
}

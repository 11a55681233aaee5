//! The sockets of launchers, by which a next server finds what one that died has left.
//!
//! Those of a scope carry its mark: what was made for one run is never taken over by a server for another. Those of a
//! supervised server carry who supervises it: while that one lives it starts a next server itself, and nobody else takes
//! what it will come for.

use std::borrow::Cow;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use rustix::process::Pid;

use crate::supervisor_identity::Identity;

const EXTENSION: &str = "sock";

/// Between the mark and the rest of a name.
const MARKED: char = '-';

/// Between that and who supervises.
const KEPT: char = '@';

#[derive(Debug, Clone)]
pub struct LauncherSockets {
    pub directory: PathBuf,
    /// Of the scope that this server has, if it has one.
    pub mark: Option<String>,
    /// Who starts a next server when this one dies, if somebody does.
    pub keeper: Option<Identity>,
}

impl LauncherSockets {
    /// A name that no other has.
    pub fn new_door(&self) -> PathBuf {
        let mut random = [0; 8];
        // Two of the same name would only make the second fail to start.
        let _ = rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty());
        let mark = self.mark.as_ref().map(|mark| format!("{mark}{MARKED}")).unwrap_or_default();
        let keeper = self.keeper.map(|keeper| format!("{KEPT}{keeper}")).unwrap_or_default();
        self.directory.join(format!("{mark}{:016x}{keeper}.{EXTENSION}", u64::from_ne_bytes(random)))
    }

    pub fn all(&self) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return Vec::new() };
        let is_socket = |path: &PathBuf| path.extension().is_some_and(|extension| extension == EXTENSION);
        entries.flatten().map(|entry| entry.path()).filter(is_socket).collect()
    }

    /// Whether what is behind a door is ours to take over.
    pub fn is_ours(&self, door: &Path) -> bool {
        let is_free = || keeper(door).is_none_or(|keeper| !keeper.is_alive());
        self.has_our_mark(door) && (self.has_our_keeper(door) || is_free())
    }

    /// Whether what is behind a door was made by this server, or by one before it of the same supervisor.
    pub fn was_made_by_us(&self, door: &Path) -> bool {
        self.has_our_mark(door) && self.has_our_keeper(door)
    }

    fn has_our_mark(&self, door: &Path) -> bool {
        name(door).split_once(MARKED).map(|(mark, _)| mark) == self.mark.as_deref()
    }

    fn has_our_keeper(&self, door: &Path) -> bool {
        keeper(door) == self.keeper
    }
}

fn name(door: &Path) -> Cow<'_, str> {
    door.file_stem().unwrap_or_default().to_string_lossy()
}

fn keeper(door: &Path) -> Option<Identity> {
    name(door).split_once(KEPT)?.1.parse().ok()
}

/// Whether nobody is behind a door any more. It is not knocked at: whoever does takes the place of the one for whom
/// it is kept. A datagram socket is no guest there, and is told so only if somebody listens (unix(7), `EPROTOTYPE`).
pub(crate) fn is_abandoned(door: &Path) -> bool {
    let refused = UnixDatagram::unbound().and_then(|socket| socket.connect(door)).err();
    refused.and_then(|error| Errno::from_io_error(&error)) == Some(Errno::CONNREFUSED)
}

/// How a session's launcher and init are written down.
pub(crate) fn address(door: &Path, pid: Pid) -> String {
    format!("{}#{}", door.display(), pid.as_raw_nonzero())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    fn doors(mark: Option<&str>) -> LauncherSockets {
        LauncherSockets { directory: "/d".into(), mark: mark.map(ToOwned::to_owned), keeper: None }
    }

    #[test]
    fn only_doors_of_the_same_scope_are_ours() {
        let (one, other, none) = (doors(Some("0a")), doors(Some("0b")), doors(None));
        for own in [&one, &other, &none] {
            let ours: Vec<bool> = [&one, &other, &none].map(|maker| own.is_ours(&maker.new_door())).into();
            assert_eq!(ours.iter().filter(|ours| **ours).count(), 1);
            assert!(own.is_ours(&own.new_door()));
        }
    }

    #[test]
    fn a_door_is_left_to_the_supervisor_of_its_maker_while_that_lives() {
        let dead: Identity = format!("{}.1.0", std::process::id()).parse().unwrap();
        let keepers = [None, Some(Identity::unique()), Some(Identity::unique()), Some(dead)];
        let all = keepers.map(|keeper| LauncherSockets { keeper, ..doors(Some("0a")) });
        let [alone, one, other, of_dead] = &all;
        for (own, takes) in [
            (alone, [true, false, false, true]),
            (one, [true, true, false, true]),
            (other, [true, false, true, true]),
            (of_dead, [true, false, false, true]),
        ] {
            assert_eq!(all.each_ref().map(|maker| own.is_ours(&maker.new_door())), takes, "{own:?}");
            let made: Vec<&LauncherSockets> =
                all.iter().filter(|maker| own.was_made_by_us(&maker.new_door())).collect();
            assert_eq!(made.iter().map(|made| made.keeper).collect::<Vec<_>>(), [own.keeper]);
        }
        assert!(!one.is_ours(&LauncherSockets { mark: None, ..one.clone() }.new_door()), "it is of no scope");
    }

    #[test]
    fn a_door_is_abandoned_once_nobody_listens() {
        let directory = tempfile::tempdir().unwrap();
        let door = directory.path().join("a.sock");
        let listener = UnixListener::bind(&door).unwrap();
        listener.set_nonblocking(true).unwrap();
        assert!(!is_abandoned(&door));
        assert!(listener.accept().is_err(), "nobody has knocked");
        drop(listener);
        assert!(is_abandoned(&door));
        assert!(!is_abandoned(&directory.path().join("missing.sock")));
    }
}

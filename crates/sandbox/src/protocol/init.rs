//! Requests to the init of a sandbox, and its reports.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::FileAction;
use ringfence_core::Command;

/// A frame from the host to the init. The host chooses the numbers of processes.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum InitRequest {
    /// Join cgroups of version 1. Carries the file of each to which a process writes `0` to join.
    #[serde(rename = "entrances")]
    JoinCgroups,
    /// The next volume of the plan, opened by the host. Carries its mount.
    Volume,
    /// The ids are mapped and all volumes are sent: isolate yourself.
    #[serde(rename = "go")]
    Isolate { may_drop_groups: bool },
    /// Start a process. Carries its descriptors, from 0 on.
    Start { process: u32, command: Command, environment: BTreeMap<String, String> },
    /// Fork a process that continues as the zygote's interpreter; only for an init that was forked from a zygote.
    /// Carries its descriptors, from 0 on; the last is its control channel.
    Fork { process: u32, workdir: PathBuf, environment: BTreeMap<String, String> },
    /// Send a signal to a process, and to those that `target` adds.
    Signal { process: u32, number: i32, target: SignalTarget },
    /// Serve another owner from now on. Carries the channel to that owner. All processes of the previous owner are
    /// killed, except `keep`.
    #[serde(rename = "renew")]
    ReplaceOwner { keep: Option<u32> },
    /// Open a listener for transparent connections to a port. Carries the socket for the reply.
    Listen { port: u16 },
    /// Open, list or measure something beneath the workspace. Carries the socket for the reply.
    File {
        #[serde(with = "ringfence_core::os_strings")]
        path: Vec<OsString>,
        action: FileAction,
    },
}

/// The number of the command in the spec. The sandbox ends with it.
pub(crate) const MAIN_PROCESS: u32 = 0;

/// The processes that receive a signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SignalTarget {
    #[serde(rename = "command")]
    Process,
    /// The process group of the process, as if a terminal sent the signal.
    #[serde(rename = "group")]
    ProcessGroup,
    /// The process group, and all descendants of the process in other groups.
    #[serde(rename = "family")]
    ProcessTree,
}

/// A frame from the init to the host.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(crate) enum InitReport {
    /// The sockets for egress are open. Carries them. Sent before any program of the guest runs, and only if the spec has
    /// egress.
    Egress,
    /// The init is isolated.
    Ready,
    /// A process runs. Carries the controlling side of its terminal, if it has one.
    Started {
        process: u32,
    },
    /// The init could not isolate itself and exits.
    Failed {
        step: String,
        errno: i32,
    },
    CommandFailed {
        process: u32,
        errno: i32,
    },
    Exited {
        process: u32,
        code: i32,
    },
    Killed {
        process: u32,
        signal: i32,
    },
}

/// Converts an error number that a sandbox sent. `EPROTO` if no errno has this number.
pub(crate) fn errno_from_wire(number: i32) -> Errno {
    if (1..4096).contains(&number) { Errno::from_raw_os_error(number) } else { Errno::PROTO }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    fn assert_wire<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(frame: &T, json: &str) {
        assert_eq!(serde_json::to_string(frame).unwrap(), json);
        assert_eq!(&serde_json::from_str::<T>(json).unwrap(), frame);
    }

    #[test]
    fn requests_keep_their_wire_format() {
        let command = Command { argv: vec!["a".into()], workdir: "/w".into() };
        let environment = BTreeMap::from([("A".to_owned(), "b".to_owned())]);
        assert_wire(&InitRequest::JoinCgroups, r#""entrances""#);
        assert_wire(&InitRequest::Volume, r#""volume""#);
        assert_wire(&InitRequest::Isolate { may_drop_groups: true }, r#"{"go":{"may_drop_groups":true}}"#);
        assert_wire(
            &InitRequest::Fork { process: 1, workdir: "/w".into(), environment: environment.clone() },
            r#"{"fork":{"process":1,"workdir":"/w","environment":{"A":"b"}}}"#,
        );
        let start = serde_json::to_value(InitRequest::Start { process: 1, command, environment }).unwrap();
        assert_eq!(start["start"]["command"]["workdir"], "/w");
        assert_wire(&InitRequest::ReplaceOwner { keep: Some(1) }, r#"{"renew":{"keep":1}}"#);
        assert_wire(&InitRequest::Listen { port: 22 }, r#"{"listen":{"port":22}}"#);
        let file = serde_json::to_value(InitRequest::File { path: Vec::new(), action: FileAction::Measure }).unwrap();
        assert_eq!(file["file"]["action"], "measure");
        for (target, name) in [
            (SignalTarget::Process, "command"),
            (SignalTarget::ProcessGroup, "group"),
            (SignalTarget::ProcessTree, "family"),
        ] {
            let json = format!(r#"{{"signal":{{"process":1,"number":9,"target":"{name}"}}}}"#);
            assert_wire(&InitRequest::Signal { process: 1, number: 9, target }, &json);
        }
    }

    #[test]
    fn reports_keep_their_wire_format() {
        assert_wire(&InitReport::Egress, r#""egress""#);
        assert_wire(&InitReport::Ready, r#""ready""#);
        assert_wire(&InitReport::Started { process: 1 }, r#"{"started":{"process":1}}"#);
        assert_wire(&InitReport::Failed { step: "x".into(), errno: 1 }, r#"{"failed":{"step":"x","errno":1}}"#);
        assert_wire(
            &InitReport::CommandFailed { process: 1, errno: 2 },
            r#"{"command_failed":{"process":1,"errno":2}}"#,
        );
        assert_wire(&InitReport::Exited { process: 1, code: 0 }, r#"{"exited":{"process":1,"code":0}}"#);
        assert_wire(&InitReport::Killed { process: 1, signal: 9 }, r#"{"killed":{"process":1,"signal":9}}"#);
    }

    #[test]
    fn numbers_that_are_no_errno_become_a_protocol_error() {
        assert_eq!(errno_from_wire(2), Errno::NOENT);
        for number in [0, -1, 4096] {
            assert_eq!(errno_from_wire(number), Errno::PROTO, "{number}");
        }
    }
}

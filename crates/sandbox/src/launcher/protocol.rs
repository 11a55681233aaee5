//! Frames between a launcher and its client.
//!
//! Field and variant names on the wire never change; renamed Rust items keep their wire name with `serde(rename)`.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::enforcement::Enforcement;
use crate::launch::InitialProcess;
use crate::zygote::ZygoteConfig;
use ringfence_core::Spec;

/// The version of the frames of launchers and of inits. Increase it with every change of a frame. A client does not
/// adopt a launcher of another version, which then ends with its lease.
pub(super) const PROTOCOL: u32 = 6;

/// The configuration of a launcher.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LauncherConfig {
    /// The socket through which another client can adopt the launcher. Without one the launcher ends with its client.
    pub listen: Option<PathBuf>,
    /// The time that the launcher waits for another client.
    pub lease: Duration,
    /// The zygote from which sandboxes are forked, if any.
    #[serde(rename = "warmth")]
    pub zygote: Option<ZygoteConfig>,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum Request {
    /// The first request of the client that started the launcher.
    #[serde(rename = "begin")]
    Configure(LauncherConfig),
    /// The first request of a client that adopts the launcher.
    Adopt { lease: Duration, protocol: u32 },
    /// Start a zygote if there is none.
    WarmUp,
    /// Start a sandbox without a command, and an initial process in it. Carries the descriptors of that process, and
    /// then its streams to retain for a next client.
    Launch {
        spec: Box<Spec>,
        warm: bool,
        #[serde(rename = "first")]
        initial: Option<InitialProcess>,
    },
    /// Retain the streams of a process for a next client. Carries them.
    #[serde(rename = "keep")]
    StoreStreams { pid: i32, process: u32 },
    /// Retain the [`super::BackgroundStreams`] of a command for a next client. Carries them.
    #[serde(rename = "keep_leftover")]
    StoreBackgroundStreams { pid: i32 },
    /// Retain a listener for transparent connections for a next client. Carries it.
    StoreEgressListener { pid: i32 },
    /// Retain the record of a sandbox's credentials for a next client. Carries it, as a file in memory.
    StoreCredentials { pid: i32 },
    /// Return the record of a sandbox's credentials. The reply carries it, if there is one.
    Credentials { pid: i32 },
    /// Transfer a sandbox to this client.
    #[serde(rename = "take")]
    TakeOver { pid: i32 },
    /// Report whether the sandbox whose init is `pid` was killed because it exceeded its memory limit without a cgroup.
    #[serde(rename = "examine")]
    HasExceededMemory { pid: i32 },
    /// End a sandbox that the client could not receive. Has no reply.
    Discard { pid: i32 },
    /// End every sandbox and the launcher.
    End,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum Reply {
    Done,
    #[serde(rename = "warmth")]
    Zygote(ZygoteStatus),
    Adopted {
        sandboxes: Vec<i32>,
    },
    #[serde(rename = "handed")]
    Handover(Handover),
    Refused {
        message: String,
        hints: Vec<String>,
    },
    #[serde(rename = "examined")]
    HasExceededMemory {
        #[serde(rename = "is_breached")]
        has_exceeded: bool,
    },
}

/// Whether sandboxes can be forked from a zygote.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ZygoteStatus {
    Warm,
    WarmingUp,
    /// The zygote could not be started, or none is configured.
    #[serde(rename = "cold")]
    Unavailable,
}

/// A sandbox that is passed to a client. Carries, in this order, the control channel, the pidfd, the sockets for
/// egress, the two files of the memory counters, the retained streams, and the background streams, as far as the
/// sandbox has them.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Handover {
    pub(super) pid: i32,
    pub(super) enforcement: Enforcement,
    pub(super) is_warm: bool,
    /// The number of sockets for egress.
    pub(super) egress_sockets: usize,
    #[serde(rename = "has_gauge")]
    pub(super) has_memory_counters: bool,
    /// The number of commands with background streams.
    #[serde(rename = "leftovers")]
    pub(super) background_streams: usize,
    /// The process whose streams were retained, and their number.
    #[serde(rename = "kept")]
    pub(super) streams: Option<(u32, usize)>,
    #[serde(rename = "generation")]
    pub(super) previous_owners: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn json(frame: &impl Serialize) -> String {
        serde_json::to_string(frame).unwrap()
    }

    #[test]
    fn requests_keep_their_wire_format() {
        let zygote = ZygoteConfig { command: Vec::new(), environment: Vec::new(), input: String::new() };
        let config = LauncherConfig { listen: None, lease: Duration::from_secs(1), zygote: Some(zygote) };
        assert_eq!(
            json(&Request::Configure(config)),
            r#"{"begin":{"listen":null,"lease":{"secs":1,"nanos":0},"warmth":{"command":[],"environment":[],"input":""}}}"#
        );
        assert_eq!(
            json(&Request::Adopt { lease: Duration::ZERO, protocol: PROTOCOL }),
            r#"{"adopt":{"lease":{"secs":0,"nanos":0},"protocol":6}}"#
        );
        assert_eq!(json(&Request::WarmUp), r#""warm_up""#);
        assert_eq!(json(&Request::StoreStreams { pid: 1, process: 2 }), r#"{"keep":{"pid":1,"process":2}}"#);
        assert_eq!(json(&Request::StoreBackgroundStreams { pid: 1 }), r#"{"keep_leftover":{"pid":1}}"#);
        assert_eq!(json(&Request::StoreEgressListener { pid: 1 }), r#"{"store_egress_listener":{"pid":1}}"#);
        assert_eq!(json(&Request::StoreCredentials { pid: 1 }), r#"{"store_credentials":{"pid":1}}"#);
        assert_eq!(json(&Request::Credentials { pid: 1 }), r#"{"credentials":{"pid":1}}"#);
        assert_eq!(json(&Request::TakeOver { pid: 1 }), r#"{"take":{"pid":1}}"#);
        assert_eq!(json(&Request::HasExceededMemory { pid: 1 }), r#"{"examine":{"pid":1}}"#);
        assert_eq!(json(&Request::Discard { pid: 1 }), r#"{"discard":{"pid":1}}"#);
        assert_eq!(json(&Request::End), r#""end""#);
    }

    #[test]
    fn replies_keep_their_wire_format() {
        assert_eq!(json(&Reply::Done), r#""done""#);
        assert_eq!(json(&Reply::Zygote(ZygoteStatus::Warm)), r#"{"warmth":"warm"}"#);
        assert_eq!(json(&Reply::Zygote(ZygoteStatus::WarmingUp)), r#"{"warmth":"warming_up"}"#);
        assert_eq!(json(&Reply::Zygote(ZygoteStatus::Unavailable)), r#"{"warmth":"cold"}"#);
        assert_eq!(json(&Reply::Adopted { sandboxes: vec![1] }), r#"{"adopted":{"sandboxes":[1]}}"#);
        assert_eq!(
            json(&Reply::Refused { message: "a".into(), hints: Vec::new() }),
            r#"{"refused":{"message":"a","hints":[]}}"#
        );
        assert_eq!(json(&Reply::HasExceededMemory { has_exceeded: true }), r#"{"examined":{"is_breached":true}}"#);
        let handover = Handover {
            pid: 1,
            enforcement: Enforcement { memory_by_cgroup: true, pids_by_cgroup: true, cpu_by_cgroup: true },
            is_warm: true,
            egress_sockets: 6,
            has_memory_counters: true,
            background_streams: 2,
            streams: Some((3, 4)),
            previous_owners: 5,
        };
        assert_eq!(
            json(&Reply::Handover(handover)),
            r#"{"handed":{"pid":1,"enforcement":{"memory_by_cgroup":true,"pids_by_cgroup":true,"cpu_by_cgroup":true},"is_warm":true,"egress_sockets":6,"has_gauge":true,"leftovers":2,"kept":[3,4],"generation":5}}"#
        );
    }
}

//! Frames between a zygote and its parent.

use std::os::fd::{AsFd, BorrowedFd};

use serde::{Deserialize, Serialize};

use crate::init::Plan;
use crate::protocol::Channel;
use crate::volumes::{CheckedVolume, VolumeDescription};

/// Requests an init. Carries its two channels, its v2 cgroup if it has one, and its volumes.
#[derive(Serialize)]
pub(super) struct ForkRequest<'a> {
    plan: &'a Plan,
    volumes: Vec<&'a VolumeDescription>,
    #[serde(rename = "is_born_in_cgroup")]
    has_cgroup: bool,
}

/// A [`ForkRequest`] as the zygote receives it.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ReceivedForkRequest {
    pub(super) plan: Plan,
    pub(super) volumes: Vec<VolumeDescription>,
    #[serde(rename = "is_born_in_cgroup")]
    pub(super) has_cgroup: bool,
}

/// A frame from the zygote.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub(super) enum ZygoteReply {
    /// The zygote is warm. Sent once, without a request.
    Ready,
    /// Carries the pidfd of the init.
    #[serde(rename = "born")]
    Forked {
        pid: i32,
    },
    Failed {
        errno: i32,
    },
}

impl<'a> ForkRequest<'a> {
    /// Returns the request and the descriptors that it carries.
    pub(super) fn new(
        plan: &'a Plan,
        [owner, creator]: [&'a Channel; 2],
        cgroup: Option<BorrowedFd<'a>>,
    ) -> (Self, Vec<BorrowedFd<'a>>) {
        let mut passed = vec![owner.as_fd(), creator.as_fd()];
        passed.extend(cgroup);
        passed.extend(plan.volumes.iter().map(CheckedVolume::descriptor));
        let volumes = plan.volumes.iter().map(CheckedVolume::description).collect();
        (Self { plan, volumes, has_cgroup: cgroup.is_some() }, passed)
    }
}

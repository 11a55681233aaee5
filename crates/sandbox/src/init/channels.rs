//! The channels of an init: to its owner, and to its creator.

use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::SetupError;
use crate::protocol::{Channel, InitReport, InitRequest};

pub(crate) struct InitChannels {
    /// Requests and reports; `None` after an owner has ended and before there is a new one.
    owner: Option<Channel>,
    /// From the process that started the sandbox. The sandbox ends when this channel closes.
    creator: Channel,
}

/// The result of [`InitChannels::receive`].
pub(super) enum Received {
    Request(InitRequest, Vec<OwnedFd>),
    Nothing,
    /// The creator has ended.
    End,
}

impl InitChannels {
    pub(crate) fn new(owner: Channel, creator: Channel) -> Self {
        Self { owner: Some(owner), creator }
    }

    pub(super) fn owner(&self) -> Result<&Channel, SetupError> {
        self.owner
            .as_ref()
            .ok_or_else(|| SetupError { step: "receive requests from the host".into(), errno: Errno::PIPE })
    }

    /// The open channels: the creator's first, then the owner's.
    pub(super) fn open(&self) -> impl Iterator<Item = &Channel> {
        std::iter::once(&self.creator).chain(&self.owner)
    }

    /// Sends a report to the owner, if there is one.
    pub(super) fn report(&mut self, report: &InitReport, passed: &[OwnedFd]) {
        let passed: Vec<_> = passed.iter().map(AsFd::as_fd).collect();
        if self.owner.as_ref().is_some_and(|owner| owner.send(report, &passed).is_err()) {
            self.owner = None;
        }
    }

    /// Receives one request. `ready` says which of the channels of [`Self::open`] are readable.
    pub(super) fn receive(&mut self, ready: &[bool]) -> Received {
        if ready.first() == Some(&true) {
            return match self.creator.receive::<InitRequest>() {
                Ok(Some((request, passed))) => Received::Request(request, passed),
                Ok(None) | Err(_) => Received::End,
            };
        }
        if ready.get(1) == Some(&true)
            && let Some(owner) = &self.owner
        {
            match owner.receive::<InitRequest>() {
                // Only the creator may replace the owner.
                Ok(Some((InitRequest::ReplaceOwner { .. }, _))) => return Received::Nothing,
                Ok(Some((request, passed))) => return Received::Request(request, passed),
                Ok(None) | Err(_) => self.owner = None,
            }
        }
        Received::Nothing
    }

    /// Returns a request that has already arrived. Before the init is ready, only the creator can have sent one: the
    /// request to start the initial process.
    pub(super) fn pending_request(&self) -> Option<(InitRequest, Vec<OwnedFd>)> {
        let owner = self.owner.as_ref()?;
        let has_arrived = poll(&mut [PollFd::new(owner, PollFlags::IN)], Some(&Timespec::default())) == Ok(1);
        if has_arrived { owner.receive().ok()? } else { None }
    }

    pub(super) fn replace_owner(&mut self, owner: OwnedFd) {
        self.owner = Some(owner.into());
    }
}

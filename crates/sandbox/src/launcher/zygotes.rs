//! The zygote of a launcher, and its replacement while that warms up.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::InitialProcess;
use super::protocol::ZygoteStatus;
use crate::error::Error;
use crate::launch::{InitSource, StartingSandbox, Stdio, begin};
use crate::zygote::{Zygote, ZygoteConfig};
use ringfence_core::Spec;

/// Maximum exponent of the back-off between attempts to start a zygote: 256 seconds.
const MAX_BACKOFF_EXPONENT: u32 = 8;

pub(super) struct Zygotes {
    config: Option<ZygoteConfig>,
    /// This crate as a shared library, which zygotes load.
    library: &'static [u8],
    current: Option<Zygote>,
    next: Option<Zygote>,
    failures: u32,
    retry_at: Option<Instant>,
}

/// A launch that has begun.
pub(super) struct Launch {
    pub(super) spec: Box<Spec>,
    pub(super) sandbox: Result<StartingSandbox, Error>,
    pub(super) is_warm: bool,
    /// The number of the initial process, and its streams to retain.
    pub(super) initial: Option<(u32, Vec<OwnedFd>)>,
}

impl Zygotes {
    pub(super) fn new(library: &'static [u8]) -> Self {
        Self { config: None, library, current: None, next: None, failures: 0, retry_at: None }
    }

    pub(super) fn configure(&mut self, config: Option<ZygoteConfig>) {
        self.config = config;
    }

    /// Starts a zygote if one is needed, and returns the status of the current one.
    pub(super) fn warm_up(&mut self) -> ZygoteStatus {
        if self.next.as_mut().is_some_and(Zygote::is_warm) {
            self.current = self.next.take();
            self.failures = 0;
        }
        if self.next.as_ref().is_some_and(Zygote::is_lost) {
            self.next = None;
            self.failures += 1;
            // No delay after the first failure: that zygote may have been killed. Repeated failures are likely to
            // persist.
            let delay = if self.failures == 1 { 0 } else { 1 << self.failures.min(MAX_BACKOFF_EXPONENT) };
            self.retry_at = Some(Instant::now() + Duration::from_secs(delay));
        }
        let has_usable = self.current.as_ref().is_some_and(|zygote| !zygote.needs_replacement());
        if !has_usable && self.next.is_none() && self.retry_at.is_none_or(|at| Instant::now() >= at) {
            self.next = self.config.as_ref().and_then(|config| Zygote::start(config, self.library).ok());
        }
        match (self.current.as_mut().is_some_and(Zygote::is_warm), &self.next) {
            (true, _) => ZygoteStatus::Warm,
            (false, Some(_)) => ZygoteStatus::WarmingUp,
            (false, None) => ZygoteStatus::Unavailable,
        }
    }

    /// Begins the start of a sandbox: from the zygote if `warm` is set and there is one, and otherwise from this
    /// process. `passed` are the descriptors of the initial process, followed by its streams to retain.
    pub(super) fn begin_launch(
        &mut self,
        spec: Box<Spec>,
        warm: bool,
        initial: Option<InitialProcess>,
        mut passed: Vec<OwnedFd>,
    ) -> Launch {
        let streams = passed.split_off(InitialProcess::DESCRIPTORS.min(passed.len()));
        let mut is_warm = warm && self.warm_up() == ZygoteStatus::Warm;
        let start = |source: &mut InitSource<'_>| {
            begin(&spec, Stdio::Pipes, source, initial.as_ref().map(|initial| (initial, &*passed)))
        };
        let mut sandbox = match self.current.as_mut().filter(|_| is_warm) {
            Some(zygote) => start(&mut InitSource::Zygote(zygote)),
            None => Err(Error::ZygoteLost),
        };
        if matches!(sandbox, Err(Error::ZygoteLost)) {
            is_warm = false;
            sandbox = start(&mut InitSource::Clone);
        }
        // `passed` is dropped here: if the launcher kept the process's descriptors, readers would never see their end.
        Launch { spec, sandbox, is_warm, initial: initial.map(|initial| (initial.process, streams)) }
    }
}

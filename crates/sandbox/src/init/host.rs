//! Whom the init obeys, and on whom its life hangs.

use std::os::fd::OwnedFd;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::error::StepError;
use crate::frame::{Channel, Order, Report};

/// The two channels of an init.
pub(crate) struct Host {
    /// From and to its owner; none while the last one is gone and there is no next.
    orders: Option<Channel>,
    /// From the process that made the sandbox. Its end is the sandbox's.
    life: Channel,
}

/// What there was to hear.
pub(super) enum Heard {
    Order(Order, Vec<OwnedFd>),
    Nothing,
    End,
}

impl Host {
    pub(crate) fn new(orders: Channel, life: Channel) -> Self {
        Self { orders: Some(orders), life }
    }

    pub(super) fn orders(&self) -> Result<&Channel, StepError> {
        self.orders.as_ref().ok_or_else(|| StepError { step: "hear from the host".into(), errno: Errno::PIPE })
    }

    /// The channels that are open, life first.
    pub(super) fn channels(&self) -> impl Iterator<Item = &Channel> {
        std::iter::once(&self.life).chain(&self.orders)
    }

    /// Says something to the owner; where there is none, to nobody.
    pub(super) fn report(&mut self, report: &Report, passed: Option<&OwnedFd>) {
        let passed: Vec<_> = passed.map(std::os::fd::AsFd::as_fd).into_iter().collect();
        if self.orders.as_ref().is_some_and(|orders| orders.send(report, &passed).is_err()) {
            self.orders = None;
        }
    }

    /// Takes one frame, from those of [`Self::channels`] that are ready.
    pub(super) fn hear(&mut self, ready: &[bool]) -> Heard {
        if ready.first() == Some(&true) {
            return match self.life.receive::<Order>() {
                Ok(Some((order, passed))) => Heard::Order(order, passed),
                Ok(None) | Err(_) => Heard::End,
            };
        }
        if ready.get(1) == Some(&true)
            && let Some(orders) = &self.orders
        {
            match orders.receive::<Order>() {
                // A new host is given by the maker alone.
                Ok(Some((Order::Renew { .. }, _))) => return Heard::Nothing,
                Ok(Some((order, passed))) => return Heard::Order(order, passed),
                Ok(None) | Err(_) => self.orders = None,
            }
        }
        Heard::Nothing
    }

    /// An order that waits already. Only its maker can have sent one so early: what the sandbox shall start with.
    pub(super) fn heard_already(&self) -> Option<(Order, Vec<OwnedFd>)> {
        let orders = self.orders.as_ref()?;
        let waits = poll(&mut [PollFd::new(orders, PollFlags::IN)], Some(&Timespec::default())) == Ok(1);
        if waits { orders.receive().ok()? } else { None }
    }

    pub(super) fn renew(&mut self, orders: OwnedFd) {
        self.orders = Some(orders.into());
    }
}

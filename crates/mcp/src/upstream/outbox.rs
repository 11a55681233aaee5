//! What goes out on a stream: written at once where the stream takes it, else kept within a bound.
//!
//! A message is never torn, not even when the call that sent it is dropped half-way: what the stream did
//! not take at once is written by a task. A peer that does not read is given up after a while.

use ringfence_core::sync::Mutex;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::MutexGuard;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::io::AsyncWrite;
use tokio::sync::Notify;

/// No more is taken while this much waits.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;
const MAX_QUEUED: usize = 1024;
/// How long a sender waits for room, and how long the peer may take nothing at all.
pub(super) const STALL: Duration = Duration::from_secs(30);

pub(super) struct Outbox {
    state: Mutex<State>,
    filled: Notify,
    emptied: Notify,
}

struct State {
    /// None once it is closed.
    stream: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    /// How much of the first message is written.
    written: usize,
    unflushed: bool,
}

/// The message was not taken; it has certainly not arrived.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unsent {
    Closed,
    Stalled,
}

enum Offer {
    Taken,
    Full(Vec<u8>),
    Closed,
}

impl Outbox {
    pub(super) fn new(stream: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        let state =
            State { stream: Some(stream), queue: VecDeque::new(), queued_bytes: 0, written: 0, unflushed: false };
        Self { state: Mutex::new(state), filled: Notify::new(), emptied: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sends a line. It is on its way when this returns, and dropping the future before that sends nothing.
    pub(super) async fn send(&self, message: Vec<u8>) -> Result<(), Unsent> {
        let mut message = match self.offer(message) {
            Offer::Taken => return Ok(()),
            Offer::Closed => return Err(Unsent::Closed),
            Offer::Full(message) => message,
        };
        let wait = async {
            loop {
                let mut room = std::pin::pin!(self.emptied.notified());
                room.as_mut().enable();
                message = match self.offer(message) {
                    Offer::Taken => return Ok(()),
                    Offer::Closed => return Err(Unsent::Closed),
                    Offer::Full(message) => message,
                };
                room.await;
            }
        };
        tokio::time::timeout(STALL, wait).await.unwrap_or(Err(Unsent::Stalled))
    }

    /// Sends a line if there is room for it.
    pub(super) fn try_send(&self, message: Vec<u8>) -> bool {
        matches!(self.offer(message), Offer::Taken)
    }

    fn offer(&self, mut message: Vec<u8>) -> Offer {
        let mut state = self.lock();
        if state.stream.is_none() {
            return Offer::Closed;
        }
        if state.queued_bytes > MAX_QUEUED_BYTES || state.queue.len() >= MAX_QUEUED {
            return Offer::Full(message);
        }
        message.push(b'\n');
        let was_idle = state.queue.is_empty() && !state.unflushed;
        state.queued_bytes += message.len();
        state.queue.push_back(message);
        if was_idle {
            // The task of the stream asks again with a waker, if there is something left.
            let mut context = Context::from_waker(Waker::noop());
            while let Poll::Ready(written) = state.poll_write(&mut context) {
                match written {
                    Ok(true) => {}
                    Ok(false) => return Offer::Taken,
                    Err(_) => {
                        state.close();
                        return Offer::Closed;
                    }
                }
            }
        }
        drop(state);
        self.filled.notify_one();
        Offer::Taken
    }

    /// Writes what could not be written at once, until the stream is closed, fails, or takes nothing for long.
    pub(super) async fn drain(&self) -> Unsent {
        loop {
            self.filled.notified().await;
            loop {
                let step = poll_fn(|context| self.lock().poll_write(context));
                match tokio::time::timeout(STALL, step).await {
                    Ok(Ok(true)) => self.emptied.notify_waiters(),
                    Ok(Ok(false)) => break,
                    Ok(Err(_)) => {
                        self.close();
                        return Unsent::Closed;
                    }
                    Err(_) => {
                        self.close();
                        return Unsent::Stalled;
                    }
                }
            }
        }
    }

    /// Closes the stream: the peer sees the end of its input.
    pub(super) fn close(&self) {
        self.lock().close();
        self.filled.notify_one();
        self.emptied.notify_waiters();
    }
}

impl State {
    fn close(&mut self) {
        self.stream = None;
        self.queue.clear();
        self.queued_bytes = 0;
    }

    /// One step; false when nothing is left to do.
    fn poll_write(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let Some(stream) = &mut self.stream else { return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())) };
        let Some(first) = self.queue.front() else {
            if !self.unflushed {
                return Poll::Ready(Ok(false));
            }
            let flushed = Pin::new(stream).poll_flush(context);
            if let Poll::Ready(Ok(())) = flushed {
                self.unflushed = false;
            }
            return flushed.map_ok(|()| true);
        };
        let taken = match Pin::new(stream).poll_write(context, &first[self.written..]) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(taken)) => taken,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        self.unflushed = true;
        self.written += taken;
        self.queued_bytes -= taken;
        if self.written == first.len() {
            self.queue.pop_front();
            self.written = 0;
        }
        Poll::Ready(Ok(true))
    }
}

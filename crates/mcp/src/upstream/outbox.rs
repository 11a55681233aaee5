//! The queue of messages to a stream. The sender writes directly if the stream accepts the bytes at once.
//!
//! A message is always written completely, even if the call that sent it is dropped: a task writes the bytes that the
//! stream did not accept at once. A peer that does not read is given up after a timeout.

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

/// Limits of the queue; senders wait while one is reached.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;
const MAX_QUEUED_MESSAGES: usize = 1024;
/// Maximum time that a sender waits for the queue, and that the peer may read nothing.
pub(super) const STALL_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct Outbox {
    state: Mutex<State>,
    has_data: Notify,
    has_capacity: Notify,
}

struct State {
    /// None once the outbox is closed.
    stream: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    queue: VecDeque<Vec<u8>>,
    queued_bytes: usize,
    /// Number of bytes of the first message that are written.
    written: usize,
    unflushed: bool,
}

/// The reason why a message was not queued. The peer has certainly not received it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SendError {
    Closed,
    Stalled,
}

enum Enqueue {
    Accepted,
    Full(Vec<u8>),
    Closed,
}

impl Outbox {
    pub(super) fn new(stream: Box<dyn AsyncWrite + Send + Unpin>) -> Self {
        let state =
            State { stream: Some(stream), queue: VecDeque::new(), queued_bytes: 0, written: 0, unflushed: false };
        Self { state: Mutex::new(state), has_data: Notify::new(), has_capacity: Notify::new() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Sends a line. The line is queued when this returns; if the future is dropped before, nothing is sent.
    pub(super) async fn send(&self, message: Vec<u8>) -> Result<(), SendError> {
        let mut message = match self.try_enqueue(message) {
            Enqueue::Accepted => return Ok(()),
            Enqueue::Closed => return Err(SendError::Closed),
            Enqueue::Full(message) => message,
        };
        let wait = async {
            loop {
                let mut capacity = std::pin::pin!(self.has_capacity.notified());
                capacity.as_mut().enable();
                message = match self.try_enqueue(message) {
                    Enqueue::Accepted => return Ok(()),
                    Enqueue::Closed => return Err(SendError::Closed),
                    Enqueue::Full(message) => message,
                };
                capacity.await;
            }
        };
        tokio::time::timeout(STALL_TIMEOUT, wait).await.unwrap_or(Err(SendError::Stalled))
    }

    /// Sends a line unless the queue is full.
    pub(super) fn try_send(&self, message: Vec<u8>) -> bool {
        matches!(self.try_enqueue(message), Enqueue::Accepted)
    }

    fn try_enqueue(&self, mut message: Vec<u8>) -> Enqueue {
        let mut state = self.lock();
        if state.stream.is_none() {
            return Enqueue::Closed;
        }
        if state.queued_bytes > MAX_QUEUED_BYTES || state.queue.len() >= MAX_QUEUED_MESSAGES {
            return Enqueue::Full(message);
        }
        message.push(b'\n');
        let was_idle = state.queue.is_empty() && !state.unflushed;
        state.queued_bytes += message.len();
        state.queue.push_back(message);
        if was_idle {
            // If bytes remain, the task in `drain` polls again with a real waker.
            let mut context = Context::from_waker(Waker::noop());
            while let Poll::Ready(written) = state.poll_write(&mut context) {
                match written {
                    Ok(true) => {}
                    Ok(false) => return Enqueue::Accepted,
                    Err(_) => {
                        state.close();
                        return Enqueue::Closed;
                    }
                }
            }
        }
        drop(state);
        self.has_data.notify_one();
        Enqueue::Accepted
    }

    /// Writes queued bytes until the stream is closed, fails, or accepts nothing for [`STALL_TIMEOUT`].
    pub(super) async fn drain(&self) -> SendError {
        loop {
            self.has_data.notified().await;
            loop {
                let step = poll_fn(|context| self.lock().poll_write(context));
                match tokio::time::timeout(STALL_TIMEOUT, step).await {
                    Ok(Ok(true)) => self.has_capacity.notify_waiters(),
                    Ok(Ok(false)) => break,
                    Ok(Err(_)) => {
                        self.close();
                        return SendError::Closed;
                    }
                    Err(_) => {
                        self.close();
                        return SendError::Stalled;
                    }
                }
            }
        }
    }

    /// Closes the stream: the peer sees the end of its input.
    pub(super) fn close(&self) {
        self.lock().close();
        self.has_data.notify_one();
        self.has_capacity.notify_waiters();
    }
}

impl State {
    fn close(&mut self) {
        self.stream = None;
        self.queue.clear();
        self.queued_bytes = 0;
    }

    /// Performs one write or flush. Returns false if nothing is left to do.
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
        let count = match Pin::new(stream).poll_write(context, &first[self.written..]) {
            Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
            Poll::Pending => return Poll::Pending,
        };
        self.unflushed = true;
        self.written += count;
        self.queued_bytes -= count;
        if self.written == first.len() {
            self.queue.pop_front();
            self.written = 0;
        }
        Poll::Ready(Ok(true))
    }
}

//! Counts the bytes read from a stream, and blocks the reader when an allowance is used up.
//!
//! This limits the memory of the WebSocket library, which collects a whole message before it returns it.

use ringfence_core::sync::Mutex;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, MutexGuard};
use std::task::{Context, Poll, Waker};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;

pub(super) struct Metered<S> {
    stream: S,
    meter: Arc<Meter>,
}

pub(super) struct Meter {
    state: Mutex<State>,
    full: Notify,
}

struct State {
    received: usize,
    allowed: usize,
    blocked_reader: Option<Waker>,
}

impl Meter {
    /// Creates a meter that allows this many bytes.
    pub(super) fn new(allowed: usize) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { received: 0, allowed, blocked_reader: None }), full: Notify::new() })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn received(&self) -> usize {
        self.state().received
    }

    /// Waits until the allowance is used up.
    pub(super) async fn wait_until_full(&self) {
        self.full.notified().await;
    }

    /// Subtracts bytes from the count of received ones.
    pub(super) fn subtract(&self, bytes: usize) {
        let mut state = self.state();
        state.received = state.received.saturating_sub(bytes);
    }

    /// Sets the allowance and wakes a blocked reader.
    pub(super) fn allow(&self, allowed: usize) {
        let blocked_reader = {
            let mut state = self.state();
            state.allowed = allowed;
            state.blocked_reader.take()
        };
        if let Some(blocked_reader) = blocked_reader {
            blocked_reader.wake();
        }
    }
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, meter: Arc<Meter>) -> Self {
        Self { stream, meter }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        {
            let mut state = this.meter.state();
            if state.received >= state.allowed {
                state.blocked_reader = Some(context.waker().clone());
                this.meter.full.notify_one();
                return Poll::Pending;
            }
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut this.stream).poll_read(context, buffer);
        this.meter.state().received += buffer.filled().len() - before;
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn reader_is_blocked_after_at_most_one_buffer_over_the_allowance() {
        let meter = Meter::new(100);
        let mut stream = Metered::new(tokio::io::repeat(b'x'), Arc::clone(&meter));
        let mut buffer = [0; 60];
        for _ in 0..2 {
            assert_eq!(stream.read(&mut buffer).await.unwrap(), 60);
        }
        tokio::select! {
            biased;
            _ = stream.read(&mut buffer) => panic!("the allowance is used up"),
            () = meter.wait_until_full() => {}
        }
        assert_eq!(meter.received(), 120);
        let (read, ()) = tokio::join!(stream.read(&mut buffer), async { meter.allow(200) });
        assert_eq!((read.unwrap(), meter.received()), (60, 180));
        meter.subtract(100);
        assert_eq!(meter.received(), 80);
    }
}

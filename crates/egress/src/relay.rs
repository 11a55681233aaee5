//! Copying bytes between client and server, with an idle timeout for both directions together.

mod read_buffer;

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};

pub(crate) use read_buffer::ReadBuffer;

/// A timeout that expires when no bytes have moved in either direction.
#[derive(Debug)]
pub(crate) struct IdleTimer {
    started: Instant,
    last_activity_ms: AtomicU64,
    timeout: Duration,
}

impl IdleTimer {
    pub(crate) fn new(timeout: Duration) -> Self {
        Self { started: Instant::now(), last_activity_ms: AtomicU64::new(0), timeout }
    }

    /// Restarts the timeout, because bytes have moved.
    pub(crate) fn touch(&self) {
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_activity_ms.store(ms, Ordering::Relaxed);
    }

    /// Runs `work` to its end; returns `None` if the idle timeout expires first.
    pub(crate) async fn run<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let expired = async {
            loop {
                let last = Duration::from_millis(self.last_activity_ms.load(Ordering::Relaxed));
                let deadline = self.started + last + self.timeout;
                if deadline <= Instant::now() {
                    return;
                }
                sleep_until(deadline).await;
            }
        };
        tokio::select! {
            output = work => Some(output),
            () = expired => None,
        }
    }
}

/// Copies until `from` ends, then shuts `to` down.
pub(crate) async fn copy<R, W>(from: &mut R, to: &mut W, idle: &IdleTimer) -> io::Result<()>
where
    R: AsyncBufRead + Unpin,
    W: AsyncWrite + Unpin,
{
    loop {
        let ready = from.fill_buf().await?;
        let count = ready.len();
        if count == 0 {
            return to.shutdown().await;
        }
        to.write_all(ready).await?;
        from.consume(count);
        idle.touch();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn timeout_expires_only_without_activity() {
        let idle = IdleTimer::new(Duration::from_secs(300));
        let busy = async {
            for _ in 0..10 {
                sleep(Duration::from_secs(299)).await;
                idle.touch();
            }
        };
        assert_eq!(idle.run(busy).await, Some(()));
        assert_eq!(idle.run(sleep(Duration::from_secs(301))).await, None);
    }
}

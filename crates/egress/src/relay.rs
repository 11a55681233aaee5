//! Moving bytes from one side to the other, and noticing when nothing moves.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, sleep_until};

/// A limit on the time in which no bytes move, in whichever direction.
#[derive(Debug)]
pub(super) struct Idle {
    started: Instant,
    last_ms: AtomicU64,
    limit: Duration,
}

impl Idle {
    pub(super) fn new(limit: Duration) -> Self {
        Self { started: Instant::now(), last_ms: AtomicU64::new(0), limit }
    }

    /// Notes that bytes have moved.
    pub(super) fn touch(&self) {
        let ms = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last_ms.store(ms, Ordering::Relaxed);
    }

    /// Runs `work` until it ends or has been idle for too long.
    pub(super) async fn guard<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let expired = async {
            loop {
                let last = Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
                let deadline = self.started + last + self.limit;
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

/// Copies until the end of `from`, then ends `to` as well.
pub(super) async fn copy<R, W>(from: &mut R, to: &mut W, idle: &Idle) -> io::Result<()>
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
    async fn only_silence_ends_work() {
        let idle = Idle::new(Duration::from_secs(300));
        let busy = async {
            for _ in 0..10 {
                sleep(Duration::from_secs(299)).await;
                idle.touch();
            }
        };
        assert_eq!(idle.guard(busy).await, Some(()));
        assert_eq!(idle.guard(sleep(Duration::from_secs(301))).await, None);
    }
}

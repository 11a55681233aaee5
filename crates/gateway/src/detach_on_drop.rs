//! A future that continues in a task if it is dropped before its end.

use std::pin::Pin;
use std::task::{Context, Poll};

use ringfence_core::Failure;
use tokio::runtime::Handle;

type Work<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Runs in the task that polls it, and in a new task from the moment it is dropped. Spawning a task for every call would
/// cost a switch between tasks, which nearly no call needs.
pub(crate) struct DetachOnDrop<T: Send + 'static> {
    work: Option<Work<T>>,
    runtime: Handle,
}

impl<T: Send + 'static> DetachOnDrop<T> {
    /// Must be called within a runtime.
    pub(crate) fn new(work: impl Future<Output = Result<T, Failure>> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime: Handle::current() }
    }
}

impl<T: Send + 'static> Future for DetachOnDrop<T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out, so that a future which panics is not polled again.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        if let Some(work) = self.work.take() {
            self.runtime.spawn(async move { drop(work.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::sync::oneshot;
    use tokio::time::{sleep, timeout};

    use super::*;

    const DURATION: Duration = Duration::from_secs(1);

    fn work(done: oneshot::Sender<()>) -> DetachOnDrop<u8> {
        DetachOnDrop::new(async move {
            sleep(DURATION).await;
            let _ = done.send(());
            Ok(7)
        })
    }

    #[tokio::test(start_paused = true)]
    async fn completes_in_the_polling_task() {
        let (done, completed) = oneshot::channel();
        assert_eq!(work(done).await.unwrap(), 7);
        completed.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn completes_after_it_is_dropped() {
        let (done, completed) = oneshot::channel();
        assert!(timeout(DURATION / 2, work(done)).await.is_err());
        completed.await.unwrap();
        // Also if it was never polled.
        let (done, completed) = oneshot::channel();
        drop(work(done));
        completed.await.unwrap();
    }
}

//! Work that comes to its own orderly end even if whoever waits for it goes away.

use std::pin::Pin;
use std::task::{Context, Poll};

use ringfence_core::Failure;
use tokio::runtime::Handle;

type Work<T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// Done by whoever waits for it. Dropped before its end, it goes on in a task of its own; nearly no call needs one, and
/// to be handed from task to task takes time.
pub(crate) struct ToItsEnd<T: Send + 'static> {
    work: Option<Work<T>>,
    runtime: Handle,
}

impl<T: Send + 'static> ToItsEnd<T> {
    /// In a runtime.
    pub(crate) fn new(work: impl Future<Output = Result<T, Failure>> + Send + 'static) -> Self {
        Self { work: Some(Box::pin(work)), runtime: Handle::current() }
    }
}

impl<T: Send + 'static> Future for ToItsEnd<T> {
    type Output = Result<T, Failure>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Taken out: what panics is not to be begun again.
        let Some(mut work) = self.work.take() else { return Poll::Pending };
        let polled = work.as_mut().poll(context);
        if polled.is_pending() {
            self.work = Some(work);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for ToItsEnd<T> {
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

    const A_WHILE: Duration = Duration::from_secs(1);

    fn work(said: oneshot::Sender<()>) -> ToItsEnd<u8> {
        ToItsEnd::new(async move {
            sleep(A_WHILE).await;
            let _ = said.send(());
            Ok(7)
        })
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_done_by_whoever_waits() {
        let (said, heard) = oneshot::channel();
        assert_eq!(work(said).await.unwrap(), 7);
        heard.await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_done_without_him_too() {
        let (said, heard) = oneshot::channel();
        assert!(timeout(A_WHILE / 2, work(said)).await.is_err());
        heard.await.unwrap();
        // Also if it was never begun.
        let (said, heard) = oneshot::channel();
        drop(work(said));
        heard.await.unwrap();
    }
}

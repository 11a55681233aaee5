//! The deadline of a call, and its effect on the circuit breaker of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use crate::connection::{Connector, ServerLink};
use crate::fleet::{CallEnd, Fleet, NoResponse};

/// Minimum time without a response that counts as a failure of the server.
pub(super) const MIN_RESPONSE_TIME: Duration = Duration::from_secs(30);

/// Maximum duration of any call, whatever its deadline and however long its client needs for input.
const MAX_DURATION: Duration = Duration::from_hours(1);

/// The time by which a call must have its result.
#[derive(Clone, Copy)]
pub(crate) struct Deadline {
    duration: Duration,
    at: Instant,
}

impl Deadline {
    pub(crate) fn after(duration: Duration) -> Self {
        Self { duration, at: Instant::now() + duration.min(MAX_DURATION) }
    }

    /// The whole duration of the call.
    pub(crate) fn duration(self) -> Duration {
        self.duration
    }

    pub(crate) fn remaining(self) -> Duration {
        self.at.saturating_duration_since(Instant::now())
    }

    pub(super) fn is_over(self) -> bool {
        self.remaining().is_zero()
    }
}

/// The messages of a call before its result.
#[derive(Default)]
pub(super) struct CallProgress {
    has_messages: AtomicBool,
    /// The number of requests to the client that have no response yet.
    open_requests: watch::Sender<usize>,
}

impl CallProgress {
    /// Notes that the server has sent a message.
    pub(super) fn message_received(&self) {
        self.has_messages.store(true, Ordering::Relaxed);
    }

    /// Notes a request to the client, until the guard is dropped.
    pub(super) fn request_to_client(self: &Arc<Self>) -> ClientRequest {
        self.open_requests.send_modify(|open| *open += 1);
        ClientRequest(Arc::clone(self))
    }

    /// Ends at the deadline. While the client has a request to respond to, the deadline does not run; it starts again
    /// with the response.
    pub(super) async fn expired(&self, deadline: Deadline) {
        let mut open_requests = self.open_requests.subscribe();
        let expired = async {
            let mut at = deadline.at;
            while timeout_at(at, open_requests.changed()).await.is_ok() {
                let _ = open_requests.wait_for(|open| *open == 0).await;
                at = Instant::now() + deadline.duration;
            }
        };
        let _ = timeout(MAX_DURATION, expired).await;
    }
}

pub(super) struct ClientRequest(Arc<CallProgress>);

impl Drop for ClientRequest {
    fn drop(&mut self) {
        self.0.open_requests.send_modify(|open| *open -= 1);
    }
}

/// A call that was sent. When it is dropped, the fleet learns how it ended. A caller may give up at any time: that counts
/// against a server which had time to respond and sent nothing.
pub(super) struct TrackedCall {
    fleet: Fleet<Connector>,
    server: String,
    link: Arc<ServerLink>,
    progress: Arc<CallProgress>,
    start: Instant,
    end: Option<CallEnd>,
}

impl TrackedCall {
    pub(super) fn new(fleet: &Fleet<Connector>, server: &str, link: Arc<ServerLink>) -> Self {
        let (fleet, server) = (fleet.clone(), server.to_owned());
        Self { fleet, server, link, progress: Arc::default(), start: Instant::now(), end: None }
    }

    pub(super) fn progress(&self) -> &Arc<CallProgress> {
        &self.progress
    }

    /// Notes that the same call is sent once more.
    pub(super) fn retry(&mut self, link: Arc<ServerLink>) -> &mut Self {
        (self.link, self.end) = (link, None);
        self
    }

    pub(super) fn set_end(&mut self, end: Option<CallEnd>) {
        self.end = end;
    }
}

impl Drop for TrackedCall {
    fn drop(&mut self) {
        let has_messages = self.progress.has_messages.load(Ordering::Relaxed);
        if let Some(end) = verdict(self.end, self.start.elapsed(), has_messages) {
            self.fleet.call_ended(&self.server, &self.link, end);
        }
    }
}

/// What a call shows about its server.
fn verdict(end: Option<CallEnd>, duration: Duration, has_messages: bool) -> Option<CallEnd> {
    const LATE: CallEnd = CallEnd::NoResponse(NoResponse::TimedOut);
    // A server that has sent messages is slow, not silent.
    end.or_else(|| (duration >= MIN_RESPONSE_TIME).then_some(LATE)).filter(|end| *end != LATE || !has_messages)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_response_counts_only_after_the_minimum_time() {
        let late = Some(CallEnd::NoResponse(NoResponse::TimedOut));
        let (short, long) = (MIN_RESPONSE_TIME / 2, MIN_RESPONSE_TIME * 2);
        assert_eq!((verdict(None, short, false), verdict(None, long, false)), (None, late));
        assert_eq!(verdict(None, long, true), None, "the server was working");
        assert_eq!((verdict(late, short, false), verdict(late, long, true)), (late, None));
        let lost = Some(CallEnd::NoResponse(NoResponse::ConnectionLost));
        assert_eq!(
            (verdict(lost, short, true), verdict(Some(CallEnd::Responded), long, true)),
            (lost, Some(CallEnd::Responded))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn deadline_does_not_run_while_the_client_has_a_request() {
        let seconds = Duration::from_secs;
        let (start, progress) = (Instant::now(), Arc::new(CallProgress::default()));
        progress.expired(Deadline::after(seconds(10))).await;
        assert_eq!(start.elapsed(), seconds(10));

        let (start, deadline) = (Instant::now(), Deadline::after(seconds(10)));
        tokio::join!(progress.expired(deadline), async {
            tokio::time::sleep(seconds(5)).await;
            let (first, second) = (progress.request_to_client(), progress.request_to_client());
            tokio::time::sleep(seconds(100)).await;
            drop(first);
            tokio::time::sleep(seconds(100)).await;
            drop(second);
        });
        assert_eq!(start.elapsed(), seconds(5 + 100 + 100 + 10));

        let (start, deadline) = (Instant::now(), Deadline::after(seconds(10)));
        let _without_response = progress.request_to_client();
        tokio::join!(progress.expired(deadline), async { drop(progress.request_to_client()) });
        assert_eq!(start.elapsed(), MAX_DURATION);
    }
}

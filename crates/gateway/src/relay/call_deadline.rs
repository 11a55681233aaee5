//! The deadline of a call, and its effect on the circuit breaker of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use crate::fleet::{CallEnd, Connect, Fleet, NoResponse};

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
pub(super) struct TrackedCall<C: Connect> {
    fleet: Fleet<C>,
    server: String,
    link: Arc<C::Link>,
    progress: Arc<CallProgress>,
    start: Instant,
    end: Option<CallEnd>,
}

impl<C: Connect> TrackedCall<C> {
    pub(super) fn new(fleet: &Fleet<C>, server: &str, link: Arc<C::Link>) -> Self {
        let (fleet, server) = (fleet.clone(), server.to_owned());
        Self { fleet, server, link, progress: Arc::default(), start: Instant::now(), end: None }
    }

    pub(super) fn progress(&self) -> &Arc<CallProgress> {
        &self.progress
    }

    /// Notes that the same call is sent once more.
    pub(super) fn retry(&mut self, link: Arc<C::Link>) -> &mut Self {
        (self.link, self.end) = (link, None);
        self
    }

    pub(super) fn set_end(&mut self, end: Option<CallEnd>) {
        self.end = end;
    }
}

impl<C: Connect> Drop for TrackedCall<C> {
    fn drop(&mut self) {
        let has_messages = self.progress.has_messages.load(Ordering::Relaxed);
        if let Some(end) = verdict(self.end, self.start.elapsed(), has_messages) {
            self.fleet.call_ended(&self.server, &self.link, end);
        }
    }
}

/// Derives from the end of a call whether its server works.
fn verdict(end: Option<CallEnd>, duration: Duration, has_messages: bool) -> Option<CallEnd> {
    const LATE: CallEnd = CallEnd::NoResponse(NoResponse::TimedOut);
    // A server that has sent messages is slow, not silent.
    end.or_else(|| (duration >= MIN_RESPONSE_TIME).then_some(LATE)).filter(|end| *end != LATE || !has_messages)
}

#[cfg(test)]
mod tests {
    use ringfence_store::Audit;

    use super::*;
    use crate::fleet::fake::{FakeServers, entries};
    use crate::relay::CallFailure;

    const SERVER: &str = "silent";

    /// Starts five calls at once and drops them after a time; returns whether the next call is refused.
    async fn circuit_opens(time: Duration, prepare: fn(&mut TrackedCall<FakeServers>)) -> bool {
        let fleet = FakeServers::new().fleet(&Audit::disabled());
        fleet.apply(entries(&[SERVER]));
        let mut calls = Vec::new();
        for _ in 0..5 {
            let link = fleet.admit(SERVER, MIN_RESPONSE_TIME).await.unwrap();
            calls.push(TrackedCall::new(&fleet, SERVER, link));
        }
        let caller = tokio::spawn(async move {
            calls.iter_mut().for_each(prepare);
            std::future::pending::<()>().await;
        });
        tokio::time::sleep(time).await;
        assert!(fleet.admit(SERVER, MIN_RESPONSE_TIME).await.is_ok(), "the calls have not ended");
        caller.abort();
        assert!(caller.await.unwrap_err().is_cancelled());
        match fleet.admit(SERVER, MIN_RESPONSE_TIME).await {
            Ok(_) => false,
            Err(missing) => {
                assert_eq!(missing.message, "the last 5 calls failed; the next call is allowed in 15 s");
                true
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn calls_given_up_after_the_minimum_time_open_the_circuit() {
        let (short, long) = (MIN_RESPONSE_TIME * 9 / 10, MIN_RESPONSE_TIME * 11 / 10);
        assert!(circuit_opens(long, |_| {}).await);
        assert!(!circuit_opens(short, |_| {}).await, "the server had too little time to respond");
        let cancelled = |call: &mut TrackedCall<_>| {
            call.set_end(CallFailure::Cancelled { may_have_run: true }.call_end());
        };
        assert!(circuit_opens(long, cancelled).await);
        assert!(!circuit_opens(short, cancelled).await, "the server had too little time to respond");
        assert!(!circuit_opens(long, |call| call.progress().message_received()).await, "the server was working");
        assert!(!circuit_opens(long, |call| call.set_end(Some(CallEnd::Responded))).await);
    }

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

//! One call to a server while somebody waits for it: how long that may be, and what it says of the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, timeout, timeout_at};

use super::{Hosting, ServerLink};
use crate::fleet::{CallEnd, NoAnswer};

/// Who gives a server less time than this has not found out that it does not answer.
pub(super) const FAIR_WAIT: Duration = Duration::from_secs(30);

/// No call is waited for longer, whatever its deadline and whatever its client is asked meanwhile.
pub(super) const LONGEST: Duration = Duration::from_secs(3600);

/// How long a call may take, and so until when.
#[derive(Clone, Copy)]
pub(crate) struct Within {
    pub(crate) deadline: Duration,
    pub(crate) until: Instant,
}

impl Within {
    pub(crate) fn from_now(deadline: Duration) -> Self {
        Self { deadline, until: Instant::now() + deadline.min(LONGEST) }
    }

    /// What is left of it.
    pub(super) fn left(self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }
}

/// What was heard of a call before its answer.
#[derive(Default)]
pub(super) struct Heard {
    anything: AtomicBool,
    /// Those that the client has not answered yet.
    questions: watch::Sender<usize>,
}

impl Heard {
    /// The server has said something.
    pub(super) fn note(&self) {
        self.anything.store(true, Ordering::Relaxed);
    }

    /// The client is asked something, until this is dropped.
    pub(super) fn asking(self: &Arc<Self>) -> Asking {
        self.questions.send_modify(|open| *open += 1);
        Asking(Arc::clone(self))
    }

    /// Ends when the time is over. It stands still while the client is asked something, for it is not the client who
    /// waits then, and begins anew with the answer.
    pub(super) async fn run_out(&self, within: Within) {
        let mut questions = self.questions.subscribe();
        let running_out = async {
            let mut until = within.until;
            while timeout_at(until, questions.changed()).await.is_ok() {
                let _ = questions.wait_for(|open| *open == 0).await;
                until = Instant::now() + within.deadline;
            }
        };
        let _ = timeout(LONGEST, running_out).await;
    }
}

pub(super) struct Asking(Arc<Heard>);

impl Drop for Asking {
    fn drop(&mut self) {
        self.0.questions.send_modify(|open| *open -= 1);
    }
}

/// A call that was sent, until it is over; then the fleet is told what it says of the server. Its caller may give it
/// up at any time: that speaks against a server which had the time to answer and said nothing.
pub(super) struct Sent {
    hosting: Hosting,
    server: String,
    link: Arc<ServerLink>,
    heard: Arc<Heard>,
    since: Instant,
    end: Option<CallEnd>,
}

impl Sent {
    pub(super) fn new(hosting: &Hosting, server: &str, link: Arc<ServerLink>) -> Self {
        let (hosting, server) = (hosting.clone(), server.to_owned());
        Self { hosting, server, link, heard: Arc::default(), since: Instant::now(), end: None }
    }

    pub(super) fn link(&self) -> &Arc<ServerLink> {
        &self.link
    }

    pub(super) fn heard(&self) -> &Arc<Heard> {
        &self.heard
    }

    /// The same call, sent once more.
    pub(super) fn again(&mut self, link: Arc<ServerLink>) {
        (self.link, self.end) = (link, None);
    }

    pub(super) fn ended(&mut self, end: Option<CallEnd>) {
        self.end = end;
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        let heard = self.heard.anything.load(Ordering::Relaxed);
        if let Some(end) = verdict(self.end, self.since.elapsed(), heard) {
            self.hosting.fleet().call_ended(&self.server, &self.link, end);
        }
    }
}

/// What a call says of its server.
fn verdict(end: Option<CallEnd>, lasted: Duration, heard: bool) -> Option<CallEnd> {
    const LATE: CallEnd = CallEnd::Unanswered(NoAnswer::Late);
    // One that was heard of is slow, not silent.
    end.or_else(|| (lasted >= FAIR_WAIT).then_some(LATE)).filter(|end| *end != LATE || !heard)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gives_up_after_a_fair_wait_has_found_out_something() {
        let late = Some(CallEnd::Unanswered(NoAnswer::Late));
        let (short, long) = (FAIR_WAIT / 2, FAIR_WAIT * 2);
        assert_eq!((verdict(None, short, false), verdict(None, long, false)), (None, late));
        assert_eq!(verdict(None, long, true), None, "it was at work");
        assert_eq!((verdict(late, short, false), verdict(late, long, true)), (late, None));
        let lost = Some(CallEnd::Unanswered(NoAnswer::Lost));
        assert_eq!(
            (verdict(lost, short, true), verdict(Some(CallEnd::Answered), long, true)),
            (lost, Some(CallEnd::Answered))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn time_stands_still_while_the_client_is_asked() {
        let seconds = Duration::from_secs;
        let (begun, heard) = (Instant::now(), Arc::new(Heard::default()));
        let within = Within::from_now(seconds(10));
        heard.run_out(within).await;
        assert_eq!(begun.elapsed(), seconds(10));

        let (begun, within) = (Instant::now(), Within::from_now(seconds(10)));
        tokio::join!(heard.run_out(within), async {
            tokio::time::sleep(seconds(5)).await;
            let (first, second) = (heard.asking(), heard.asking());
            tokio::time::sleep(seconds(100)).await;
            drop(first);
            tokio::time::sleep(seconds(100)).await;
            drop(second);
        });
        assert_eq!(begun.elapsed(), seconds(5 + 100 + 100 + 10));

        let (begun, within) = (Instant::now(), Within::from_now(seconds(10)));
        let _asked_for_ever = heard.asking();
        tokio::join!(heard.run_out(within), async { drop(heard.asking()) });
        assert_eq!(begun.elapsed(), LONGEST);
    }
}

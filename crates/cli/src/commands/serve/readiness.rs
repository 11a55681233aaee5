//! Delays the ready notification until the server has started one sandbox.

use std::time::Duration;

use ringfence_core::Failure;
use ringfence_session::Sessions;
use tokio::task::JoinHandle;

const FIRST_RETRY: Duration = Duration::from_secs(1);
const MAX_RETRY: Duration = Duration::from_secs(30);

pub(super) struct Readiness {
    pub(super) sessions: Sessions,
    /// The first attempt, which runs while the rest of the server starts.
    pub(super) proof: JoinHandle<Result<(), Failure>>,
}

impl Readiness {
    /// Returns once a sandbox has been started. Until then it logs the reason and retries with a growing pause;
    /// `served` is the part of the log message that says where hosted servers are served meanwhile.
    pub(super) async fn wait(self, served: String) {
        let Self { sessions, proof } = self;
        let mut proved = proof.await.unwrap_or(Ok(()));
        let (mut pause, mut reported) = (FIRST_RETRY, None);
        while let Err(failure) = proved {
            if reported.as_ref() != Some(&failure.message) {
                tracing::error!("not ready: {}; hint: {}", failure.message, failure.hints.join("; hint: "));
                tracing::warn!(
                    "/health responds with 503 until a sandbox can be started; hosted servers are served {served}"
                );
            }
            reported = Some(failure.message);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(MAX_RETRY);
            proved = sessions.test_sandbox().await;
        }
    }
}

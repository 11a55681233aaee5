//! What the server asks of the client, until it is answered.

use ringfence_core::sync::Mutex;
use std::collections::HashMap;
use std::sync::MutexGuard;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::upstream::error::RpcError;

/// So many requests of a server's wait at once, and so many bytes.
const MAX_ASKED: usize = 64;
const MAX_ASKED_BYTES: usize = 32 * 1024 * 1024;
/// A person may take a while, but not for ever.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

#[derive(Default)]
pub(super) struct Asked(Mutex<State>);

#[derive(Default)]
struct State {
    by_id: HashMap<String, (CancellationToken, usize)>,
    bytes: usize,
}

impl Asked {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Takes a request in, and gives what tells that the server has withdrawn it. None if there are too
    /// many, or there is one of that id.
    pub(super) fn add(&self, id: &Value, size: usize) -> Option<CancellationToken> {
        let mut state = self.lock();
        let key = id.to_string();
        if state.by_id.len() >= MAX_ASKED || state.bytes + size > MAX_ASKED_BYTES || state.by_id.contains_key(&key) {
            return None;
        }
        let withdrawn = CancellationToken::new();
        state.bytes += size;
        state.by_id.insert(key, (withdrawn.clone(), size));
        Some(withdrawn)
    }

    pub(super) fn remove(&self, id: &Value) {
        let mut state = self.lock();
        if let Some((_, size)) = state.by_id.remove(&id.to_string()) {
            state.bytes -= size;
        }
    }

    pub(super) fn withdrawn(&self, id: &Value) {
        if let Some((withdrawn, _)) = self.lock().by_id.get(&id.to_string()) {
            withdrawn.cancel();
        }
    }
}

/// What to answer; nothing to a request that was withdrawn. Whoever holds the other end sees it closed then.
pub(super) async fn outcome(
    answered: oneshot::Receiver<Result<Value, RpcError>>,
    withdrawn: &CancellationToken,
) -> Option<Result<Value, RpcError>> {
    let answered = tokio::time::timeout(PATIENCE, answered);
    let outcome = withdrawn.run_until_cancelled(answered).await?;
    Some(match outcome {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(RpcError::new(RpcError::INTERNAL_ERROR, "no client took the request")),
        Err(_) => Err(RpcError::new(RpcError::INTERNAL_ERROR, "the client did not answer in time")),
    })
}

//! The requests of the server to the client that have no response yet.

use ringfence_core::sync::Mutex;
use std::collections::HashMap;
use std::sync::MutexGuard;
use std::time::Duration;

use serde_json::Value;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::upstream::error::RpcError;

/// Maximum number and total size of the pending requests of one server.
const MAX_REQUESTS: usize = 64;
const MAX_REQUEST_BYTES: usize = 32 * 1024 * 1024;
/// Maximum time for the response of the client, which may have to ask its user.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30 * 60);

#[derive(Default)]
pub(super) struct ServerRequests(Mutex<State>);

#[derive(Default)]
struct State {
    by_id: HashMap<String, (CancellationToken, usize)>,
    bytes: usize,
}

impl ServerRequests {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Adds a request. Returns a token that is cancelled if the server cancels the request; None if a limit is reached
    /// or the id is in use.
    pub(super) fn add(&self, id: &Value, size: usize) -> Option<CancellationToken> {
        let mut state = self.lock();
        let key = id.to_string();
        if state.by_id.len() >= MAX_REQUESTS || state.bytes + size > MAX_REQUEST_BYTES || state.by_id.contains_key(&key)
        {
            return None;
        }
        let cancelled = CancellationToken::new();
        state.bytes += size;
        state.by_id.insert(key, (cancelled.clone(), size));
        Some(cancelled)
    }

    pub(super) fn remove(&self, id: &Value) {
        let mut state = self.lock();
        if let Some((_, size)) = state.by_id.remove(&id.to_string()) {
            state.bytes -= size;
        }
    }

    pub(super) fn cancel(&self, id: &Value) {
        if let Some((cancelled, _)) = self.lock().by_id.get(&id.to_string()) {
            cancelled.cancel();
        }
    }
}

/// Waits for the response of the client. Returns None if the server cancels the request; the sender of the response sees
/// a closed channel then.
pub(super) async fn outcome(
    response: oneshot::Receiver<Result<Value, RpcError>>,
    cancelled: &CancellationToken,
) -> Option<Result<Value, RpcError>> {
    let response = tokio::time::timeout(RESPONSE_TIMEOUT, response);
    let outcome = cancelled.run_until_cancelled(response).await?;
    Some(match outcome {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => Err(RpcError::new(RpcError::INTERNAL_ERROR, "no client accepted the request")),
        Err(_) => Err(RpcError::new(RpcError::INTERNAL_ERROR, "the client did not respond in time")),
    })
}

//! Results that request input from the client (SEP-2322). The client then repeats the call with the responses.

use std::collections::HashMap;

use ringfence_core::sync::Mutex;
use rmcp::ErrorData;
use rmcp::model::{ClientCapabilities, InputRequests, InputRequiredResult, InputResponses};
use serde_json::Value;
use uuid::Uuid;

use super::script::Script;
use super::template::fill;

/// Maximum number of stored request states. The conformance suite needs far fewer.
const MAX_STATES: usize = 10_000;

/// The next step of a call.
pub(super) enum Next {
    RequestInput(InputRequiredResult),
    Complete,
}

/// The fields of a call that depend on earlier rounds, and the capabilities of its client.
pub(super) struct RepeatedCall<'a> {
    pub(super) responses: Option<&'a InputResponses>,
    pub(super) state: Option<&'a str>,
    pub(super) capabilities: ClientCapabilities,
}

/// The issued request states, each with its round. A state that is not in this map is rejected, since it may be forged.
#[derive(Default)]
pub(super) struct InputRounds(Mutex<HashMap<String, usize>>);

impl InputRounds {
    pub(super) fn next(&self, script: &Script, values: &Value, call: &RepeatedCall<'_>) -> Result<Next, ErrorData> {
        let last_round = match call.state {
            Some(state) => Some(self.round_of(state)?),
            None if script.uses_request_state => None,
            None => Some(0),
        };
        let is_selected = |request: &Value| !script.only_supported_requests || supports(&call.capabilities, request);
        let has_all_responses = |round: usize| {
            script.input_rounds[round].iter().filter(|(_, request)| is_selected(request)).all(|(key, _)| {
                // Every valid response is an object.
                call.responses.and_then(|responses| responses.get(key)).is_some_and(Value::is_object)
            })
        };
        let round = match last_round {
            None => 0,
            Some(round) if script.input_rounds.get(round).is_some() && has_all_responses(round) => round + 1,
            Some(round) => round,
        };
        let Some(requests) = script.input_rounds.get(round) else { return Ok(Next::Complete) };
        let requests = requests.iter().filter(|(_, request)| is_selected(request));
        let requests = requests.map(|(key, request)| {
            let request = serde_json::from_value(fill(request, values));
            Ok((key.clone(), request.map_err(|error| ErrorData::internal_error(error.to_string(), None))?))
        });
        let requests = requests.collect::<Result<InputRequests, ErrorData>>()?;
        let state = script.uses_request_state.then(|| self.issue_state(round));
        Ok(Next::RequestInput(InputRequiredResult::new(Some(requests), state)))
    }

    fn issue_state(&self, round: usize) -> String {
        let mut states = self.0.lock();
        if states.len() >= MAX_STATES {
            states.clear();
        }
        let state = Uuid::new_v4().to_string();
        states.insert(state.clone(), round);
        state
    }

    fn round_of(&self, state: &str) -> Result<usize, ErrorData> {
        let round = self.0.lock().get(state).copied();
        round.ok_or_else(|| ErrorData::invalid_params("unknown requestState", None))
    }
}

fn supports(capabilities: &ClientCapabilities, request: &Value) -> bool {
    match request["method"].as_str() {
        Some("elicitation/create") => capabilities.elicitation.is_some(),
        Some("sampling/createMessage") => capabilities.sampling.is_some(),
        Some("roots/list") => capabilities.roots.is_some(),
        _ => false,
    }
}

//! Prompts, each with its script.

use rmcp::model::{GetPromptRequestParams, GetPromptResponse};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::json;

use super::calls::{State, complete};
use super::input_rounds::{Next, RepeatedCall};
use super::script::PROMPTS;

impl State {
    pub(super) fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: &RequestContext<RoleServer>,
    ) -> Result<GetPromptResponse, ErrorData> {
        let found = PROMPTS.iter().find(|found| found.prompt.name == request.name);
        let found = found.ok_or_else(|| ErrorData::invalid_params(format!("no prompt {}", request.name), None))?;
        let responses = request.input_responses.unwrap_or_default();
        let values = json!({"arguments": request.arguments.unwrap_or_default(), "responses": responses});
        if !found.script.input_rounds.is_empty() {
            let capabilities = context.client_capabilities().unwrap_or_default();
            let state = request.request_state.as_deref();
            let call = RepeatedCall { responses: Some(&responses), state, capabilities };
            if let Next::RequestInput(result) = self.input_rounds.next(&found.script, &values, &call)? {
                return Ok(result.into());
            }
        }
        complete(&found.script.result, &values).map(GetPromptResponse::Complete)
    }
}

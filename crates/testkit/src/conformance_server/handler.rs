//! The handler of requests for rmcp.

use std::sync::Arc;

use rmcp::model::{
    CacheScope, CallToolRequestParams, CallToolResponse, CancelTaskParams, CompleteRequestParams, CompleteResult,
    CompletionInfo, GetPromptRequestParams, GetPromptResponse, GetTaskParams, GetTaskResult, Implementation,
    ListPromptsResult, ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ReadResourceRequestParams, ReadResourceResponse, ServerCapabilities, ServerConfig, SetLevelRequestParams,
    SubscribeRequestParams, SubscriptionFilter, Tool, UnsubscribeRequestParams, UpdateTaskParams,
};
use rmcp::service::{RequestContext, SubscriptionContext};
use rmcp::{ErrorData, RoleServer, ServerHandler};

use super::calls::State;
use super::resources::RESOURCES;
use super::script::{PROMPTS, TOOLS};

/// Lists and contents never change, and are the same for all clients.
const TTL_MS: u64 = 60_000;

type Context = RequestContext<RoleServer>;
type Page = Option<PaginatedRequestParams>;

/// The server. Clones have the same state.
#[derive(Clone, Default)]
pub(super) struct ConformanceServer(Arc<State>);

impl ServerHandler for ConformanceServer {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder()
            .enable_tools()
            .enable_tool_list_changed()
            .enable_prompts()
            .enable_prompts_list_changed()
            .enable_resources()
            .enable_resources_subscribe()
            .enable_resources_list_changed()
            .enable_completions()
            .enable_logging()
            .enable_tasks()
            .build();
        ServerConfig::new(capabilities)
            .with_server_info(Implementation::new("ringfence-fixture", env!("CARGO_PKG_VERSION")))
            .with_instructions("Everything that the conformance suite needs.")
    }

    fn get_tool(&self, name: &str) -> Option<Tool> {
        TOOLS.iter().find(|found| found.tool.name == name).map(|found| found.tool.clone())
    }

    async fn list_tools(&self, _page: Page, _context: Context) -> Result<ListToolsResult, ErrorData> {
        let tools = TOOLS.iter().map(|found| found.tool.clone()).collect();
        Ok(ListToolsResult::with_all_items(tools).with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn call_tool(&self, request: CallToolRequestParams, context: Context) -> Result<CallToolResponse, ErrorData> {
        self.0.call(request, &context).await
    }

    async fn list_prompts(&self, _page: Page, _context: Context) -> Result<ListPromptsResult, ErrorData> {
        let prompts = PROMPTS.iter().map(|found| found.prompt.clone()).collect();
        Ok(ListPromptsResult::with_all_items(prompts).with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn get_prompt(
        &self,
        request: GetPromptRequestParams,
        context: Context,
    ) -> Result<GetPromptResponse, ErrorData> {
        self.0.get_prompt(request, &context)
    }

    async fn list_resources(&self, _page: Page, _context: Context) -> Result<ListResourcesResult, ErrorData> {
        let list = ListResourcesResult::with_all_items(RESOURCES.fixed.clone());
        Ok(list.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn list_resource_templates(
        &self,
        _page: Page,
        _context: Context,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        let list = ListResourceTemplatesResult::with_all_items(RESOURCES.templates.clone());
        Ok(list.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        _context: Context,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let result = RESOURCES.read(&request.uri)?;
        Ok(result.with_ttl_ms(TTL_MS).with_cache_scope(CacheScope::Public).into())
    }

    async fn subscribe(&self, request: SubscribeRequestParams, _context: Context) -> Result<(), ErrorData> {
        RESOURCES.read(&request.uri).map(drop)
    }

    async fn unsubscribe(&self, request: UnsubscribeRequestParams, _context: Context) -> Result<(), ErrorData> {
        RESOURCES.read(&request.uri).map(drop)
    }

    async fn complete(&self, request: CompleteRequestParams, _context: Context) -> Result<CompleteResult, ErrorData> {
        let prefix = &request.argument.value;
        let values = ["test", "testValue1", "testValue2"].iter().filter(|value| value.starts_with(prefix.as_str()));
        let values = CompletionInfo::new(values.map(ToString::to_string).collect());
        Ok(CompleteResult::new(values.map_err(|error| ErrorData::internal_error(error, None))?))
    }

    async fn set_level(&self, _request: SetLevelRequestParams, _context: Context) -> Result<(), ErrorData> {
        Ok(())
    }

    fn accepted_subscription_filter(&self, requested: &SubscriptionFilter) -> Option<SubscriptionFilter> {
        Some(requested.supported_by(&self.get_info().capabilities))
    }

    async fn listen(&self, context: SubscriptionContext) -> Result<(), ErrorData> {
        self.0.subscribers.listen(context).await;
        Ok(())
    }

    async fn get_task(&self, request: GetTaskParams, _context: Context) -> Result<GetTaskResult, ErrorData> {
        self.0.tasks.get_task(&request.task_id).map(GetTaskResult::new)
    }

    async fn update_task(&self, request: UpdateTaskParams, _context: Context) -> Result<(), ErrorData> {
        self.0.tasks.update_task(&request.task_id, request.input_responses)
    }

    async fn cancel_task(&self, request: CancelTaskParams, _context: Context) -> Result<(), ErrorData> {
        self.0.tasks.cancel_task(&request.task_id)
    }
}

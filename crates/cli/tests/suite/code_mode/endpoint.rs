//! A ringfence server with two upstream MCP servers, `tools` and `more`, that code may call.

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringfence_store::Store;
use ringfence_testkit::{Server, fixture_path};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(super) struct Endpoint {
    pub(super) server: Server,
    config: Arc<TempDir>,
    variables: Vec<(String, String)>,
}

/// Response to a call of `run_python`.
#[derive(Debug)]
pub(super) struct RunResult(pub(super) Value);

impl RunResult {
    pub(super) fn is_error(&self) -> bool {
        self.0["result"]["isError"] == true
    }

    /// The text of all content blocks, which a model reads.
    pub(super) fn text(&self) -> String {
        let content = self.0["result"]["content"].as_array().unwrap_or_else(|| panic!("{self:?}"));
        content.iter().filter_map(|block| block["text"].as_str()).collect::<Vec<_>>().join("\n")
    }

    pub(super) fn field(&self, name: &str) -> &Value {
        &self.0["result"]["structuredContent"][name]
    }

    pub(super) fn status(&self) -> &str {
        self.field("status").as_str().unwrap_or_default()
    }

    pub(super) fn stdout(&self) -> String {
        self.field("stdout").as_str().unwrap_or_default().trim_end().to_owned()
    }
}

impl Endpoint {
    pub(super) fn start() -> Self {
        Self::with("", &[])
    }

    /// Starts a server with additional configuration and environment variables.
    pub(super) fn with(more: &str, variables: &[(&str, &str)]) -> Self {
        let config = tempfile::tempdir().expect("temporary directory");
        let program = fixture_path("code_server.py").display().to_string();
        let entry = |name: &str| {
            format!("[servers.{name}]\ncommand = \"python3\"\nargs = [{program:?}]\ndescription = \"for tests\"\n")
        };
        let text = entry("tools") + &entry("more") + more;
        fs::write(config.path().join("ringfence.toml"), text).expect("file is written");
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let state = Arc::new(tempfile::tempdir().expect("temporary directory"));
        let config = Arc::new(config);
        let endpoint = Self::serve(config, variables, state);
        // Creates the default session, so that later results do not mention a new one.
        endpoint.run("0");
        endpoint
    }

    fn serve(config: Arc<TempDir>, variables: Vec<(String, String)>, state: Arc<TempDir>) -> Self {
        let path = config.path().join("ringfence.toml");
        let borrowed: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let options = ["--config", path.to_str().expect("path is UTF-8")];
        let server = Server::start_again(state, &options, &borrowed);
        // Lists wait for servers that have just been started.
        server.request("tools/list", &json!({}));
        Self { server, config, variables }
    }

    /// Kills the server with SIGKILL and starts another with the same state directory.
    pub(super) fn kill_and_restart(self) -> Self {
        let Self { server, config, variables } = self;
        Self::serve(config, variables, server.kill())
    }

    pub(super) fn run(&self, code: &str) -> RunResult {
        self.run_with(code, &[])
    }

    pub(super) fn run_with(&self, code: &str, servers: &[&str]) -> RunResult {
        self.run_for(&json!({"code": code, "servers": servers}))
    }

    /// Runs code in the default session of the name `test`.
    pub(super) fn run_for(&self, arguments: &Value) -> RunResult {
        let params = json!({"name": "run_python", "arguments": arguments});
        RunResult(self.request("/mcp?session=test", "tools/call", &params))
    }

    /// Sends a request to the endpoint of a profile.
    pub(super) fn at(&self, profile: &str, method: &str, params: &Value) -> Value {
        self.request(&format!("/mcp/{profile}"), method, params)
    }

    fn request(&self, path: &str, method: &str, params: &Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", self.server.address);
        let (_, body) = self.server.http(&format!("POST {path}"), &headers, &call.to_string());
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// Runs a closure with the store of the server.
    pub(super) fn store<T>(&self, work: impl AsyncFnOnce(&Store) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("tokio runtime");
        runtime.block_on(async {
            let store = Store::open(self.server.state.path()).expect("store opens");
            let value = work(&store).await;
            store.close().await;
            value
        })
    }

    /// Asserts that the audit contains refusals with all these texts. Polls, since events are written in batches.
    pub(super) fn assert_refused(&self, texts: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let events = self.store(async |store| store.recent_audit(None, 1000).await.expect("audit is read"));
            let refused = events.into_iter().filter(|event| event.kind == "refused");
            let refusals: String =
                refused.map(|event| format!("{} {}", event.outcome, event.detail)).collect::<Vec<_>>().join("\n");
            if texts.iter().all(|text| refusals.contains(text)) {
                return;
            }
            assert!(Instant::now() < deadline, "{texts:?}: {refusals}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

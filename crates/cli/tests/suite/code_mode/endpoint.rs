//! A server with two others behind it that code may call.

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

/// What `run_python` answered.
#[derive(Debug)]
pub(super) struct Ran(pub(super) Value);

impl Ran {
    pub(super) fn is_error(&self) -> bool {
        self.0["result"]["isError"] == true
    }

    /// All that a model reads.
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

    /// With more lines of configuration, and variables.
    pub(super) fn with(more: &str, variables: &[(&str, &str)]) -> Self {
        let config = tempfile::tempdir().expect("a directory");
        let program = fixture_path("code_server.py").display().to_string();
        let entry = |name: &str| {
            format!("[servers.{name}]\ncommand = \"python3\"\nargs = [{program:?}]\ndescription = \"for tests\"\n")
        };
        let text = entry("tools") + &entry("more") + more;
        fs::write(config.path().join("ringfence.toml"), text).expect("it is written");
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let state = Arc::new(tempfile::tempdir().expect("a directory"));
        let config = Arc::new(config);
        let endpoint = Self::serve(config, variables, state);
        // From then on the caller has a session, and is told of none.
        endpoint.run("0");
        endpoint
    }

    fn serve(config: Arc<TempDir>, variables: Vec<(String, String)>, state: Arc<TempDir>) -> Self {
        let path = config.path().join("ringfence.toml");
        let given: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let options = ["--config", path.to_str().expect("it is text")];
        let server = Server::start_again(state, &options, &given);
        // Lists wait for servers that have just been started.
        server.request("tools/list", &json!({}));
        Self { server, config, variables }
    }

    /// The server killed, and another started in its place.
    pub(super) fn killed_and_started_again(self) -> Self {
        let Self { server, config, variables } = self;
        Self::serve(config, variables, server.kill())
    }

    pub(super) fn run(&self, code: &str) -> Ran {
        self.run_with(code, &[])
    }

    pub(super) fn run_with(&self, code: &str, servers: &[&str]) -> Ran {
        self.run_for(&json!({"code": code, "servers": servers}))
    }

    pub(super) fn run_for(&self, arguments: &Value) -> Ran {
        Ran(self.server.call("run_python", arguments))
    }

    /// A request to a profile.
    pub(super) fn at(&self, profile: &str, method: &str, params: &Value) -> Value {
        let call = json!({"jsonrpc": "2.0", "id": 1, "method": method, "params": params});
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", self.server.address);
        let (_, body) = self.server.http(&format!("POST /mcp/{profile}"), &headers, &call.to_string());
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }

    /// Does something with the server's store.
    pub(super) fn store<T>(&self, work: impl AsyncFnOnce(&Store) -> T) -> T {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let store = Store::open(self.server.state.path()).expect("it opens");
            let done = work(&store).await;
            store.close().await;
            done
        })
    }

    /// Asserts that the audit tells of refusals with these words. It is written together, a moment later.
    pub(super) fn assert_refused(&self, words: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let events = self.store(async |store| store.recent_audit(None, 1000).await.expect("it is read"));
            let refused = events.into_iter().filter(|event| event.kind == "refused");
            let told: String =
                refused.map(|event| format!("{} {}", event.outcome, event.detail)).collect::<Vec<_>>().join("\n");
            if words.iter().all(|words| told.contains(words)) {
                return;
            }
            assert!(Instant::now() < deadline, "{words:?}: {told}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

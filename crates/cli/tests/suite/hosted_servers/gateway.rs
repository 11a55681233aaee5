//! A gateway with one server, called as an agent would.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use ringfence_testkit::Server;
use serde_json::{Value, json};
use tempfile::TempDir;

/// In the gateway's environment, and in no server's.
pub(super) const SECRET: &str = "a-secret-of-the-gateway";

pub(super) struct Gateway {
    server: Server,
    name: &'static str,
    _directory: TempDir,
}

impl Gateway {
    /// With a server's entry as clients' files have it.
    pub(super) fn hosting(name: &'static str, entry: &Value) -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let config = directory.path().join("ringfence.toml");
        let servers = BTreeMap::from([("servers", BTreeMap::from([(name, entry)]))]);
        fs::write(&config, toml::to_string(&servers).expect("JSON can be TOML")).expect("it is written");
        let options = ["--config", config.to_str().expect("it is text")];
        let gateway = Self { server: Server::start(&options, &[("HOST_SECRET", SECRET)]), name, _directory: directory };
        gateway.await_start();
        gateway
    }

    /// What a server needs may have to be installed first, on a machine that is busy with other tests.
    fn await_start(&self) {
        let deadline = Instant::now() + Duration::from_secs(600);
        let headers = format!("Host: {}\r\n", self.server.address);
        loop {
            let (_, info) = self.server.http(&format!("GET /v1/servers/{}", self.name), &headers, "");
            let info: Value = serde_json::from_str(&info).expect("it is JSON");
            if info["status"] == "connected" {
                return;
            }
            assert!(info["status"] == "connecting" && Instant::now() < deadline, "{info}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The whole answer.
    pub(super) fn answer(&self, tool: &str, arguments: &Value) -> Value {
        self.server.call(&format!("{}__{tool}", self.name), arguments)
    }

    /// The result of a call that succeeds.
    pub(super) fn call(&self, tool: &str, arguments: &Value) -> Value {
        let mut answer = self.answer(tool, arguments);
        assert!(answer["error"].is_null() && answer["result"]["isError"] != json!(true), "{tool}: {answer}");
        answer["result"].take()
    }

    pub(super) fn text(&self, tool: &str, arguments: &Value) -> String {
        let result = self.call(tool, arguments);
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}")).to_owned()
    }

    /// The whole answer to a call by a client of the modern era that can be asked by forms.
    pub(super) fn modern_answer(&self, tool: &str, mut params: Value) -> Value {
        let name = format!("{}__{tool}", self.name);
        params["name"] = json!(name);
        params["_meta"] = json!({
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
            "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
            "io.modelcontextprotocol/clientCapabilities": {"elicitation": {"form": {}}},
        });
        let headers = format!(
            "Host: {}\r\nContent-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: {name}\r\n",
            self.server.address
        );
        let request = json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string();
        let (_, body) = self.server.http("POST /mcp", &headers, &request);
        serde_json::from_str(&body).unwrap_or_else(|error| panic!("{error}: {body}"))
    }
}

//! A gateway that hosts one server, with the calls of an agent.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use ringfence_testkit::Server;
use serde_json::{Value, json};
use tempfile::TempDir;

/// A value in the environment of the gateway, which no server may see.
pub(super) const SECRET: &str = "a-secret-of-the-gateway";

pub(super) struct Gateway {
    server: Server,
    name: &'static str,
    _directory: TempDir,
}

impl Gateway {
    /// Starts a gateway with an entry in the format of client files, and waits until its server is connected.
    pub(super) fn hosting(name: &'static str, entry: &Value) -> Self {
        let directory = tempfile::tempdir().expect("create a directory");
        let config = directory.path().join("ringfence.toml");
        let servers = BTreeMap::from([("servers", BTreeMap::from([(name, entry)]))]);
        fs::write(&config, toml::to_string(&servers).expect("encode as TOML")).expect("write the file");
        let options = ["--config", config.to_str().expect("valid UTF-8")];
        let gateway = Self { server: Server::start(&options, &[("HOST_SECRET", SECRET)]), name, _directory: directory };
        gateway.await_start();
        gateway
    }

    /// The timeout allows for the installation of packages on a machine that is busy with other tests.
    fn await_start(&self) {
        let deadline = Instant::now() + Duration::from_secs(600);
        let headers = format!("Host: {}\r\n", self.server.address);
        loop {
            let (_, info) = self.server.http(&format!("GET /v1/servers/{}", self.name), &headers, "");
            let info: Value = serde_json::from_str(&info).expect("valid JSON");
            if info["status"] == "connected" {
                return;
            }
            assert!(info["status"] == "connecting" && Instant::now() < deadline, "{info}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Calls a tool; returns the JSON-RPC response.
    pub(super) fn response(&self, tool: &str, arguments: &Value) -> Value {
        self.server.call(&format!("{}__{tool}", self.name), arguments)
    }

    /// Calls a tool that must succeed; returns the result.
    pub(super) fn call(&self, tool: &str, arguments: &Value) -> Value {
        let mut response = self.response(tool, arguments);
        assert!(response["error"].is_null() && response["result"]["isError"] != json!(true), "{tool}: {response}");
        response["result"].take()
    }

    pub(super) fn text(&self, tool: &str, arguments: &Value) -> String {
        let result = self.call(tool, arguments);
        result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("no text: {result}")).to_owned()
    }

    /// Calls a tool as a client of protocol version 2026-07-28 with form elicitation; returns the JSON-RPC response.
    pub(super) fn modern_response(&self, tool: &str, mut params: Value) -> Value {
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

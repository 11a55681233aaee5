//! A gateway with one server, called as an agent would.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::server::Server;

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
        Self { server: Server::start(&options, &[("HOST_SECRET", SECRET)]), name, _directory: directory }
    }

    /// The whole answer. The first call waits until the server has started.
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
}

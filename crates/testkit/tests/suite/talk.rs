//! A server on standard streams, spoken to line by line. Dropped, it is killed.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use serde_json::{Value, json};

pub(crate) struct Talk {
    pub(crate) server: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Talk {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("it starts");
        let output = BufReader::new(server.stdout.take().expect("its output is piped"));
        Self { input: server.stdin.take(), server, output }
    }

    /// The same, after the greetings of the older era.
    pub(crate) fn greet(command: &mut Command) -> Self {
        let mut talk = Self::start(command);
        let client = json!({"name": "test", "version": "1"});
        let hello = json!({"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": client});
        talk.say(1, "initialize", &hello);
        while talk.line().is_some_and(|line| !line.contains("serverInfo")) {}
        let input = talk.input.as_mut().expect("its input is open");
        writeln!(input, "{}", json!({"jsonrpc": "2.0", "method": "notifications/initialized"})).expect("it reads");
        talk
    }

    pub(crate) fn say(&mut self, id: u64, method: &str, params: &Value) {
        let input = self.input.as_mut().expect("its input is open");
        let message = json!({"jsonrpc": "2.0", "id": id, "method": method, "params": params});
        writeln!(input, "{message}").expect("it reads");
    }

    pub(crate) fn line(&mut self) -> Option<String> {
        let mut line = Vec::new();
        let length = self.output.read_until(b'\n', &mut line).expect("it is readable");
        (length > 0).then(|| String::from_utf8_lossy(&line).into_owned())
    }

    pub(crate) fn hear(&mut self) -> Value {
        let line = self.line().expect("it answers");
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"))
    }

    pub(crate) fn ask(&mut self, id: u64, method: &str, params: &Value) -> Value {
        self.say(id, method, params);
        self.hear()
    }

    /// Calls a tool; gives the text of its answer.
    pub(crate) fn call(&mut self, id: u64, tool: &str, arguments: &Value) -> String {
        let answer = self.ask(id, "tools/call", &json!({"name": tool, "arguments": arguments}));
        assert_eq!(answer["id"], id, "{answer}");
        answer["result"]["content"][0]["text"].as_str().expect("a text").to_owned()
    }

    pub(crate) fn tools(&mut self, id: u64) -> Vec<Value> {
        let answer = self.ask(id, "tools/list", &json!({}));
        answer["result"]["tools"].as_array().expect("a list").clone()
    }

    pub(crate) fn end_input(&mut self) {
        self.input = None;
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.server.wait().expect("it is ours")
    }
}

impl Drop for Talk {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

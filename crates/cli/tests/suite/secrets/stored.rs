//! Secrets that were added with `ringfence secret` work like those of the configuration, also in a running server.

use std::fs;
use std::sync::Arc;

use ringfence_testkit::{Server, User, wait_until};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::api::{ALLOW, Api, variable};
use super::hosted::assert_value_is_not_in_the_sandbox;
use crate::network::hosted::{await_connection, evaluate, evaluator_entry};
use crate::secret_commands::{add_secret, files_with, run_with};

const HOST: &str = "api.github.com+private";
const FETCH: &str = "import os, urllib.request, urllib.error
def fetch():
    fields = {'Authorization': 'Bearer ' + os.environ['GITHUB_TOKEN']}
    try:
        request = urllib.request.Request('https://api.github.com/user', headers=fields)
        print(urllib.request.urlopen(request, timeout=20).read().decode())
    except urllib.error.HTTPError as error:
        print(error.code)
";

/// Starts a server that trusts the API, without the value in its environment.
fn start(api: &Api, user: User, state: &Arc<TempDir>, configuration: &str) -> Server {
    let [_, (name, path)] = api.variables();
    api.network.server_in(user, Arc::clone(state), configuration, &[(name, path.as_str())])
}

fn fetch(server: &Server, session: &str) -> String {
    let result = server.execute(session, &format!("{FETCH}fetch()"));
    result["stdout"].as_str().unwrap_or_else(|| panic!("{result}")).trim().to_owned()
}

#[test]
fn sessions_use_stored_secrets_and_new_ones_use_changes() {
    const TEST: &str = "secrets::stored::sessions_use_stored_secrets_and_new_ones_use_changes";
    let Some(api) = Api::enter(TEST) else { return };
    for user in [User::Root, User::Plain] {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let state = Arc::new(user.directory());
        add_secret(user, &state, &api.token, &["github", "--host", HOST, "--variable", "GITHUB_TOKEN"]);
        let configuration =
            format!("[sessions]\nask = false\nallow = {ALLOW}\nsecrets = [\"github\"]\npool = {{ python = 2 }}\n");
        let server = start(&api, user, &state, &configuration);
        let old = server.create_session("python", "1");
        assert!(fetch(&server, &old).contains("octocat"), "{user:?}");
        assert_ne!(variable(&server, &old, "GITHUB_TOKEN"), api.token);
        let process = server.process.id();
        for file in ["environ", "cmdline"] {
            let text = fs::read(format!("/proc/{process}/{file}")).expect("read the file of the process");
            assert!(!String::from_utf8_lossy(&text).contains(&api.token), "{user:?}: {file}");
        }

        // Sandboxes that wait in the pool have the old value, and no new session may get one of them.
        let wrong = format!("ghp_{}", "0".repeat(36));
        let options = ["github", "--host", HOST, "--variable", "GITHUB_TOKEN", "--replace"];
        add_secret(user, &state, &wrong, &options);
        let new = server.create_session("python", "1");
        assert_eq!(fetch(&server, &new), "401", "{user:?}");
        assert!(fetch(&server, &old).contains("octocat"), "{user:?}: a running session has its value until it ends");

        let removed = run_with(user, &state, &["secret", "remove", "github"], None);
        assert!(removed.status.success(), "{removed:?}");
        let refused = server.call("execute_code", &json!({"code": "1", "template": "python"})).to_string();
        assert!(refused.contains("the secret `github` does not exist"), "{user:?}: {refused}");
        add_secret(user, &state, &api.token, &["github", "--host", HOST, "--variable", "GITHUB_TOKEN"]);
        let again = server.create_session("python", "1");
        assert!(fetch(&server, &again).contains("octocat"), "{user:?}");
        assert_eq!(files_with(state.path(), &api.token), ["secrets.json"], "{user:?}");
    }
}

#[test]
fn server_that_is_added_with_a_secret_uses_it() {
    const TEST: &str = "secrets::stored::server_that_is_added_with_a_secret_uses_it";
    let Some(api) = Api::enter(TEST) else { return };
    for user in [User::Root, User::Plain] {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let state = Arc::new(user.directory());
        let server = start(&api, user, &state, "");
        let options = ["github", "--host", HOST, "--variable", "GITHUB_PERSONAL_ACCESS_TOKEN"];
        add_secret(user, &state, &api.token, &options);
        let entry = evaluator_entry(&api.network);
        let program = entry["args"][0].as_str().expect("a path");
        let added = ["server", "add", "github", "--secret", "github", "--", "python3", program];
        let added = run_with(user, &state, &added, None);
        assert!(added.status.success(), "{added:?}");
        wait_until("the server does not start", || {
            server.request("tools/list", &json!({})).to_string().contains("github__run")
        });
        await_connection(&server, "github");
        let code = format!("{}fetch()", FETCH.replace("GITHUB_TOKEN", "GITHUB_PERSONAL_ACCESS_TOKEN"));
        let text = evaluate(&server, "github", &code);
        assert!(text.contains("octocat") && !text.contains(&api.token), "{user:?}: {text}");
        assert_value_is_not_in_the_sandbox(&api, "evaluator.py");
        let requests: Vec<Value> = api.take_requests();
        assert_eq!(requests[0]["headers"]["authorization"], format!("Bearer {}", api.token), "{user:?}");
        assert_eq!(files_with(state.path(), &api.token), ["secrets.json"], "{user:?}");
        drop(server);
    }
}

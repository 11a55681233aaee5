//! Sessions that survive the death of their server can use their secrets, with the values of the next server.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use ringfence_testkit::{Server, User, process, wait_until};
use serde_json::{Value, json};

use super::api::{ALLOW, Api, variable};
use super::search::{search, search_memory_of};
use crate::network::sessions::network_lines;

const SEND: &str = r#"
import http.client, os, ssl, urllib.request
def send(url, fields={}):
    for handler in (urllib.request.ProxyHandler(), urllib.request.ProxyHandler({})):
        try:
            request = urllib.request.Request(url, headers=fields)
            print(urllib.request.build_opener(handler).open(request, timeout=20).status)
        except urllib.request.HTTPError as error:
            print(error.code, error.headers["X-Ringfence-Reason"])
        except (OSError, http.client.HTTPException):
            print("failed")
token, key = (os.environ.get(name, "none") for name in ("GITHUB_TOKEN", "SERVICE_KEY"))
github, service = {"Authorization": f"Bearer {token}"}, {"X-Api-Key": key}
"#;

/// The file in memory in which a launcher has the credentials of a sandbox, as a link in `/proc/PID/fd` names it.
const RECORD: &str = "/memfd:ringfence-credentials";

/// Runs code, and returns its standard output with the lines about refusals.
fn run(server: &Server, session: &str, code: &str) -> (String, Vec<String>) {
    let result = server.execute(session, code);
    (result["stdout"].as_str().unwrap_or_else(|| panic!("{code}: {result}")).to_owned(), network_lines(&result))
}

/// Checks that code prints two times 200.
fn assert_reaches(server: &Server, session: &str, code: &str) {
    assert_eq!(run(server, session, code), ("200\n200\n".to_owned(), Vec::new()), "{code}");
}

/// Checks that TLS to a host is refused because the sandbox has no authority, or no longer the secret of the host.
fn assert_is_lost(server: &Server, session: &str, host: &str) {
    let (stdout, lines) = run(server, session, &format!("send('https://{host}/open')"));
    let [line] = lines.as_slice() else { panic!("{host}: {stdout} {lines:?}") };
    assert!(
        stdout == "failed\nfailed\n"
            && line.starts_with(&format!("network: blocked {host}:443, "))
            && line.ends_with("start a new session or restart the server"),
        "{host}: {stdout} {line}"
    );
}

/// Checks that each request that has arrived contains this value in a field.
fn assert_received(api: &Api, count: usize, field: &str, value: &str) {
    let received = api.take_requests();
    let has_value = |request: &Value| request["headers"][field] == value;
    assert!(received.len() == count && received.iter().all(has_value), "{field}: {received:?}");
}

/// Finds the launcher that has the record with a placeholder. Returns its pid and the record.
fn find_record(placeholder: &str) -> Option<(u32, String)> {
    process::all().into_iter().find_map(|pid| {
        let descriptors = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        let paths = descriptors.map(|entry| entry.path());
        let is_record = |path: &Path| fs::read_link(path).is_ok_and(|link| link.to_string_lossy().starts_with(RECORD));
        let mut records = paths.filter(|path| is_record(path)).filter_map(|path| fs::read_to_string(path).ok());
        records.find(|record| record.contains(placeholder)).map(|record| (pid, record))
    })
}

/// Checks that only the file in the launcher has the key of the authority, that the file has no value, and that no value
/// and no key is in the memory of the launcher or in a sandbox.
fn assert_credentials_are_hidden(api: &Api, server: &Server, sessions: [&str; 2], placeholder: &str) {
    let (launcher, record) = find_record(placeholder).expect("a launcher has the record");
    assert!(!record.contains(&api.token) && !record.contains(&api.key));
    let record: Value = serde_json::from_str(&record).expect("valid JSON");
    let key = record["key"].as_str().and_then(|key| key.lines().nth(2)).expect("a key of several lines");
    assert!(key.len() > 40, "a line of the key itself");
    let secrets: [(&str, &str); 3] = [("token", &api.token), ("service-key", &api.key), ("authority-key", key)];

    let in_launcher = search_memory_of(launcher, &[&secrets[..], &[("name", "ringfence-credentials")]].concat());
    // The search finds what is there: the name is in the program, but the launcher does not use it.
    assert_eq!(in_launcher, ["name"]);

    let [python, bash] = sessions;
    for (session, code) in [(python, "print(os.readlink('/proc/self/ns/pid'))"), (bash, "readlink /proc/self/ns/pid")] {
        let namespace = run(server, session, code).0;
        let texts = [&secrets[..], &[("record", RECORD), ("placeholder", placeholder)]].concat();
        let found = search(namespace.trim(), &texts);
        assert!(found.processes >= 2, "{found:?}");
        assert_eq!(found.parts("placeholder").contains(&"environ"), session == python, "{found:?}");
        assert!(!found.parts("record").contains(&"descriptor"), "{found:?}");
        for (name, _) in secrets {
            assert_eq!(found.parts(name), Vec::<&str>::new(), "{found:?}");
        }
    }
}

fn check_adopted_session(test: &str, user: User) {
    let Some(api) = Api::enter(test) else { return };
    if user.skip_if_unavailable(test) {
        return;
    }
    let server = api.server(user);
    let session = server.create_session("probe", SEND);
    // Its init is a clone of the launcher, which has the record of the first session already.
    let other = server.create_session("bash", "unset GITHUB_TOKEN SERVICE_KEY");
    let placeholder = variable(&server, &session, "GITHUB_TOKEN");
    // Adopted twice: the second server finds the same record.
    let mut state = server.kill();
    for _ in 0..2 {
        api.take_requests();
        let server = api.server_in(user, Arc::clone(&state), &api.configuration());
        assert_reaches(&server, &session, "send('https://api.github.com/user', github)");
        assert_received(&api, 2, "authorization", &format!("Bearer {}", api.token));
        assert_reaches(&server, &session, "send('https://service.test/user', service)");
        assert_received(&api, 2, "x-api-key", &api.key);
        assert_reaches(&server, &session, "send('https://checked.test/open')");
        assert_reaches(&server, &session, "send('https://other.test/open')");
        api.take_requests();
        for url in ["https://service.test/open", "https://checked.test/open", "http://other.test/open"] {
            let (stdout, lines) = run(&server, &session, &format!("send('{url}', github)"));
            assert_eq!(
                (&*stdout, lines.len()),
                ("403 secret-elsewhere\n403 secret-elsewhere\n", 1),
                "{url}: {lines:?}"
            );
        }
        assert_eq!(api.take_requests(), Vec::<Value>::new());
        assert_eq!(run(&server, &session, "send('https://unknown.test/')").0, "failed\nfailed\n");
        // Commands are new processes, whose variables come from this server.
        let command = json!({"session_id": session, "command": "echo $GITHUB_TOKEN $SSL_CERT_FILE"});
        let command = server.call("execute_command", &command)["result"]["structuredContent"]["stdout"].clone();
        assert_eq!(command, format!("{placeholder} /run/ringfence/tls/ca-certificates.crt\n"));
        assert_credentials_are_hidden(&api, &server, [&session, &other], &placeholder);
        state = server.kill();
    }
    let server = api.server_in(user, state, &api.configuration());
    let stopped = server.call("stop_session", &json!({"session_id": session}));
    assert!(stopped["result"]["isError"] != true, "{stopped}");
    wait_until("the launcher still has the record", || find_record(&placeholder).is_none());
}

#[test]
fn adopted_session_of_root_uses_its_secrets() {
    check_adopted_session("secrets::adoption::adopted_session_of_root_uses_its_secrets", User::Root);
}

#[test]
fn adopted_session_of_an_ordinary_user_uses_its_secrets() {
    check_adopted_session("secrets::adoption::adopted_session_of_an_ordinary_user_uses_its_secrets", User::Plain);
}

#[test]
fn adopted_session_has_the_values_of_its_new_server() {
    const TEST: &str = "secrets::adoption::adopted_session_has_the_values_of_its_new_server";
    let Some(mut api) = Api::enter(TEST) else { return };
    for user in [User::Root, User::Plain] {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = api.server(user);
        let session = server.create_session("probe", SEND);
        assert_reaches(&server, &session, "send('https://service.test/user', service)");
        let state = server.kill();

        api.take_requests();
        let token = std::mem::replace(&mut api.token, "another-value-of-the-token".into());
        let changed = api.configuration().replace(r#"["github", "service"]"#, r#"["github"]"#);
        let server = api.server_in(user, state, &changed);
        assert_reaches(&server, &session, "send('https://api.github.com/open', github)");
        assert_received(&api, 2, "authorization", "Bearer another-value-of-the-token");
        assert_is_lost(&server, &session, "service.test");
        assert_eq!(api.take_requests(), Vec::<Value>::new(), "{user:?}");
        api.token = token;
    }
}

#[test]
fn rules_for_requests_apply_to_adopted_session_without_secrets() {
    const TEST: &str = "secrets::adoption::rules_for_requests_apply_to_adopted_session_without_secrets";
    let Some(api) = Api::enter(TEST) else { return };
    for user in [User::Root, User::Plain] {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let allow = r#"[{ host = "checked.test+private", methods = ["GET"], paths = ["/open/*"] }]"#;
        let configuration =
            format!("[sessions]\nask = false\nallow = {allow}\n[templates.probe]\nlanguage = \"python\"");
        let server = api.server_in(user, Arc::new(user.directory()), &configuration);
        let session = server.create_session("probe", SEND);
        let server = api.server_in(user, server.kill(), &configuration);
        assert_reaches(&server, &session, "send('https://checked.test/open/a')");
        let (refused, lines) = run(&server, &session, "send('https://checked.test/user')");
        assert_eq!((&*refused, lines.len()), ("403 wrong-path\n403 wrong-path\n", 1), "{user:?}: {lines:?}");
    }
}

/// A session that was started without a certificate authority has no record.
#[test]
fn adopted_session_without_a_record_does_not_reach_hosts_of_secrets() {
    const TEST: &str = "secrets::adoption::adopted_session_without_a_record_does_not_reach_hosts_of_secrets";
    let Some(api) = Api::enter(TEST) else { return };
    for user in [User::Root, User::Plain] {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let with_secrets = api.configuration();
        let checked = r#"    { host = "checked.test+private", paths = ["/*"] },"#;
        let without = ALLOW.replace(checked, r#""checked.test+private","#);
        let without = with_secrets.replace(ALLOW, &without).replace(r#"secrets = ["github", "service"]"#, "");
        let server = api.server_in(user, Arc::new(user.directory()), &without);
        let session = server.create_session("probe", SEND);
        let server = api.server_in(user, server.kill(), &with_secrets);
        api.take_requests();
        for host in ["api.github.com", "service.test", "checked.test"] {
            assert_is_lost(&server, &session, host);
        }
        assert_eq!(api.take_requests(), Vec::<Value>::new(), "{user:?}");
        // Hosts without a secret are not affected.
        assert_reaches(&server, &session, "send('http://other.test/open')");

        let new = server.create_session("probe", SEND);
        assert_reaches(&server, &new, "send('https://api.github.com/user', github)");
    }
}

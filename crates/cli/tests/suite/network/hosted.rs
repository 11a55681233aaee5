//! Hosted servers reach the hosts of their entries and no other, and the operator can allow more.

use std::fs;
use std::process::Output;
use std::time::{Duration, Instant};

use ringfence_testkit::{Server, User, wait_until};
use serde_json::{Value, json};

use super::attempts::{ATTEMPTS, CASES};
use super::sessions::{allow, network_events};
use super::test_network::TestNetwork;

/// Returns an entry of a server that runs code, in the format of client files.
pub(crate) fn evaluator_entry(network: &TestNetwork) -> Value {
    let directory = network.path().join("evaluator");
    let _ = fs::create_dir(&directory);
    let program = directory.join("evaluator.py");
    fs::write(&program, include_str!("evaluator.py")).expect("write the program");
    json!({"command": "python3", "args": [program], "env": {}})
}

/// Waits until a server is connected. The timeout allows for the installation of packages on a busy machine.
pub(crate) fn await_connection(server: &Server, name: &str) {
    let deadline = Instant::now() + Duration::from_secs(600);
    loop {
        let info = info(server, name);
        if info["status"] == "connected" {
            return;
        }
        assert!(info["status"] == "connecting" && Instant::now() < deadline, "{info}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn info(server: &Server, name: &str) -> Value {
    let headers = format!("Host: {}\r\n", server.address);
    let (_, info) = server.http(&format!("GET /v1/servers/{name}"), &headers, "");
    serde_json::from_str(&info).expect("valid JSON")
}

/// Runs code in a server with [`evaluator_entry`]; returns what it prints.
pub(crate) fn evaluate(server: &Server, name: &str, code: &str) -> String {
    let response = server.call(&format!("{name}__run"), &json!({"code": code}));
    let text = response["result"]["content"][0]["text"].as_str();
    text.unwrap_or_else(|| panic!("{response}")).to_owned()
}

fn command(user: User, server: &Server, arguments: &[&str]) -> Output {
    let mut command = user.ringfence();
    command.env("RINGFENCE_STATE_DIR", server.state.path()).args(arguments).output().expect("run the command")
}

/// Returns the output of `server show`.
fn show(network: &TestNetwork, user: User, server: &Server, options: &[&str]) -> String {
    let configuration = network.path().join("ringfence.toml");
    let arguments = ["server", "--config", configuration.to_str().expect("valid UTF-8"), "show", "web"];
    stdout(&command(user, server, &[&arguments, options].concat()))
}

/// Returns the lines about refused hosts. Only the operator sees them.
fn blocked(network: &TestNetwork, user: User, server: &Server) -> Vec<String> {
    let shown: Value = serde_json::from_str(&show(network, user, server, &["--json"])).expect("valid JSON");
    let lines = shown["blocked"].as_array().into_iter().flatten().filter_map(Value::as_str);
    lines.map(str::to_owned).collect()
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(super) fn start(network: &TestNetwork, user: User, allow: &[&str]) -> Server {
    let mut entry = evaluator_entry(network);
    entry["box"] = json!({"allow": allow});
    let text = toml::to_string(&json!({"servers": {"web": entry}})).expect("encode as TOML");
    let server = network.server_with(user, &text, &[]);
    await_connection(&server, "web");
    server
}

#[test]
fn hosted_server_reaches_nothing_but_the_rule() {
    const TEST: &str = "network::hosted::hosted_server_reaches_nothing_but_the_rule";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = start(&network, user, &["example.test+private", "example.test:7000+private", "public.test"]);
        evaluate(&server, "web", ATTEMPTS);
        for control in ["http('example.test', 80, 'example.test')", "https('example.test', 443, 'example.test')"] {
            let text = evaluate(&server, "web", control);
            assert!(text.contains("allowed content"), "{user:?}: {control}: {text}");
        }
        assert_eq!(blocked(&network, user, &server), Vec::<String>::new(), "{user:?}");
        network.take_log();
        for (code, _) in CASES {
            let text = evaluate(&server, "web", code);
            assert!(!text.is_empty() && !text.contains("allowed content"), "{user:?}: {code}: {text}");
            let log = network.take_log();
            assert!(log.iter().all(|line| !line.starts_with("request")), "{user:?}: {code}: {log:?}");
        }
        // Each host once, also if it was refused in several ways.
        let lines = blocked(&network, user, &server);
        for host in ["other.test", "sub.example.test", "no-such-name.test", "example.test:8080", "10.20.30.1"] {
            let of_host = lines.iter().filter(|line| {
                let rest = line.strip_prefix(&format!("network: blocked {host}")).unwrap_or("x");
                rest.starts_with([',', ':'])
            });
            assert_eq!(of_host.count(), 1, "{user:?}: {host}: {lines:#?}");
        }
        assert_eq!(lines.last().map(String::as_str), Some("network: and 1 more"), "{user:?}: {lines:#?}");
        let logs = stdout(&command(user, &server, &["server", "logs", "web"]));
        assert_eq!(logs.matches("network: blocked other.test").count(), 1, "{user:?}: {logs}");
    }
}

#[test]
fn refused_host_is_shown_once_and_can_be_allowed_while_the_server_runs() {
    const TEST: &str = "network::hosted::refused_host_is_shown_once_and_can_be_allowed_while_the_server_runs";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = start(&network, user, &[]);
        evaluate(
            &server,
            "web",
            "import os; started = os.getpid()\ndef fetch(url):
    import urllib.request
    try:
        print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=20).read())
    except OSError as error:
        print('failed')",
        );
        let fetch = "fetch('http://public.test/')";
        assert_eq!(evaluate(&server, "web", &format!("{fetch}\n{fetch}")), "failed\nfailed\n", "{user:?}");
        let line =
            "network: blocked public.test, not on the allow list; to permit it: ringfence allow server web public.test";
        wait_until("the refusal is not shown", || blocked(&network, user, &server) == [line]);
        let shown = show(&network, user, &server, &[]);
        assert_eq!(shown.matches(line).count(), 1, "{user:?}: {shown}");
        let logs = stdout(&command(user, &server, &["server", "logs", "web"]));
        assert_eq!(logs.matches(line).count(), 1, "{user:?}: {logs}");
        let events = network_events(user, &server, "network_refused");
        assert_eq!(events.len(), 1, "{user:?}: {events:?}");
        assert_eq!([&events[0]["detail"]["server"], &events[0]["detail"]["host"]], ["web", "public.test"], "{user:?}");

        let (_, arguments) = line.split_once("ringfence allow ").expect("a command");
        stdout(&allow(user, &server, &arguments.split(' ').collect::<Vec<_>>()));
        let code = format!("{fetch}\nprint(os.getpid() == started)");
        assert_eq!(evaluate(&server, "web", &code), "b'allowed content\\n'\nTrue\n", "{user:?}: the same process");
        assert_eq!(blocked(&network, user, &server), Vec::<String>::new(), "{user:?}");
        // A port besides those of the web.
        stdout(&allow(user, &server, &["server", "web", "public.test:8080"]));
        let text = evaluate(&server, "web", "fetch('http://public.test:8080/')");
        assert_eq!(text, "b'allowed content\\n'\n", "{user:?}");
        let refused = allow(user, &server, &["server", "web", "example.test", "--always"]);
        assert!(!refused.status.success(), "an entry of the configuration file is not changed: {refused:?}");
    }
}

#[test]
fn always_allowed_host_is_in_the_entry() {
    const TEST: &str = "network::hosted::always_allowed_host_is_in_the_entry";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    let server = network.server(User::Root, &[]);
    let program = evaluator_entry(&network)["args"][0].as_str().expect("a path").to_owned();
    let run = |arguments: &[&str]| stdout(&command(User::Root, &server, arguments));
    run(&["server", "add", "web", "--", "python3", &program]);
    let is_listed = || server.request("tools/list", &json!({})).to_string().contains("web__run");
    wait_until("the server does not start", is_listed);
    let fetch = "import urllib.request
try:
    print(urllib.request.urlopen('http://public.test/', timeout=20).read())
except OSError as error:
    print('failed')";
    assert_eq!(evaluate(&server, "web", fetch), "failed\n");
    let allowed = run(&["allow", "server", "web", "public.test", "--always"]);
    assert!(allowed.contains("public.test"), "{allowed}");
    wait_until("the server does not restart", || {
        server.call("web__run", &json!({"code": fetch})).to_string().contains("allowed content")
    });
    let shown: Value = serde_json::from_str(&run(&["server", "show", "web", "--json"])).expect("valid JSON");
    assert_eq!(shown["entry"]["box"]["allow"], json!(["public.test"]), "{shown}");
    // A new server of the same state has the rule too.
    let state = server.stop();
    let server = network.server_in(User::Root, state, "", &[]);
    await_connection(&server, "web");
    assert_eq!(evaluate(&server, "web", fetch), "b'allowed content\\n'\n");
    let events = network_events(User::Root, &server, "network_allowed");
    assert!(events.len() == 1 && events[0]["detail"]["always"] == true, "{events:?}");
}

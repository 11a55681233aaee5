//! Requests that a rule for one host does not allow. The services record what arrives, so
//! that a refusal is more than an error.

use ringfence_testkit::{Server, User, process};
use serde_json::Value;

use super::attempts::{ATTEMPTS, CASES};
use super::hosted;
use super::reach::run;
use super::sessions::{allow, network_lines};
use super::test_network::{HOSTS, TestNetwork};

const ALLOW: [&str; 3] = ["example.test+private", "example.test:7000+private", "public.test"];

/// Addresses that a name may not have without `+private`, and in part not even with it.
const FORBIDDEN_ADDRESSES: [&str; 5] = ["10.20.30.1", "127.0.0.1", "169.254.169.254", "::1", "::ffff:10.20.30.1"];

fn probe(server: &Server) -> String {
    let session = server.create_session("probe-python", ATTEMPTS);
    let control = server.execute(&session, "http('example.test', 80, 'example.test')");
    assert!(control.to_string().contains("allowed content"), "the control fails: {control}");
    let control = server.execute(&session, "https('example.test', 443, 'example.test')");
    assert!(control.to_string().contains("allowed content"), "the control fails: {control}");
    session
}

fn assert_refused(network: &TestNetwork, user: User, code: &str, result: &Value, lines: usize) {
    let stdout = result["stdout"].as_str().unwrap_or_default();
    assert!(!stdout.contains("allowed content") && !stdout.is_empty(), "{user:?} {code}: {result}");
    assert_eq!(network_lines(result).len(), lines, "{user:?} {code}: {result}");
    assert_eq!(network.take_log(), Vec::<String>::new(), "{user:?} {code}: {result}");
}

#[test]
fn nothing_but_the_rule_is_reached() {
    const TEST: &str = "network::refusals::nothing_but_the_rule_is_reached";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = network.server(user, &ALLOW);
        let session = probe(&server);
        network.take_log();
        let mut failures = Vec::new();
        for (code, lines) in CASES {
            let result = server.execute(&session, code);
            let stdout = result["stdout"].as_str().unwrap_or_default();
            let (log, notices) = (network.take_log(), network_lines(&result));
            let requests: Vec<_> = log.iter().filter(|line| line.starts_with("request")).collect();
            if stdout.contains("allowed content") || stdout.is_empty() || !requests.is_empty() || notices.len() != lines
            {
                failures.push(format!("{code}: {log:?} {result}"));
            }
        }
        assert!(failures.is_empty(), "{user:?}: {failures:#?}");
    }
}

#[test]
fn second_request_of_a_connection_must_name_the_host_too() {
    const TEST: &str = "network::refusals::second_request_of_a_connection_must_name_the_host_too";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    let server = network.server(User::Root, &ALLOW);
    let session = probe(&server);
    network.take_log();
    let result = server.execute(&session, "http('example.test', 80, 'example.test', 'example.test', 'other.test')");
    assert_eq!(network_lines(&result).len(), 1, "{result}");
    let log = network.take_log();
    assert!(!log.is_empty() && log.iter().all(|line| !line.contains("other.test")), "{log:?}");
}

#[test]
fn name_with_a_private_address_needs_private() {
    const TEST: &str = "network::refusals::name_with_a_private_address_needs_private";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        network.set_hosts(HOSTS);
        let server = network.server(user, &["public.test", "other.test", "example.test+private"]);
        let session = probe(&server);
        network.take_log();
        let code = "http('other.test', 80, 'other.test')";
        assert_refused(&network, user, code, &server.execute(&session, code), 1);
        // The name has a public address at first, and is then bound to a private one.
        let code = "http('public.test', 80, 'public.test')";
        let result = server.execute(&session, code);
        assert!(result.to_string().contains("allowed content"), "{user:?}: {result}");
        network.take_log();
        for address in FORBIDDEN_ADDRESSES {
            network.set_hosts(&HOSTS.replace("93.184.216.1", address));
            assert_refused(&network, user, &format!("{address}: {code}"), &server.execute(&session, code), 1);
        }
    }
}

#[test]
fn command_of_the_refusal_makes_the_same_code_work() {
    const TEST: &str = "network::refusals::command_of_the_refusal_makes_the_same_code_work";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let server = network.server(user, &[]);
        let session = server.create_session("probe-python", "1");
        let code = "import os, urllib.request
print(urllib.request.build_opener(urllib.request.ProxyHandler({})).open('https://public.test/', timeout=20).read())";
        let refused = server.execute(&session, code);
        assert!(!refused["error"].is_null(), "{user:?}: {refused}");
        let lines = network_lines(&refused);
        let expected = format!(
            "network: blocked public.test, not on the allow list; to permit it: ringfence allow session {session} public.test"
        );
        assert_eq!(lines, [expected.as_str()], "{user:?}: {refused}");
        let (_, command) = lines[0].split_once("ringfence allow ").expect("a command");
        let allowed = allow(user, &server, &command.split(' ').collect::<Vec<_>>());
        assert!(allowed.status.success(), "{user:?}: {allowed:?}");
        let result = server.execute(&session, code);
        assert_eq!(result["stdout"], "b'allowed content\\n'\n", "{user:?}: {result}");
        assert_eq!(network_lines(&result), Vec::<String>::new(), "{user:?}: {result}");
        // A command in the same session, and a port besides the usual ones.
        let fetch = "curl -sS --noproxy '*' --max-time 20 http://public.test:8080/";
        assert_ne!(run(&server, &session, fetch)["exit_code"], 0, "{user:?}");
        assert!(allow(user, &server, &["session", &session, "public.test:8080"]).status.success(), "{user:?}");
        let result = run(&server, &session, fetch);
        assert_eq!(result["stdout"], "allowed content\n", "{user:?}: {result}");
    }
}

#[test]
fn nothing_but_the_rule_is_reached_by_run() {
    const TEST: &str = "network::refusals::nothing_but_the_rule_is_reached_by_run";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    for user in User::ALL {
        if user.skip_if_unavailable(TEST) {
            continue;
        }
        let run = |code: &str| {
            let program = format!("{ATTEMPTS}\n{code}");
            process::run(network.run(user, &ALLOW).args(["--", "python3", "-c", &program]))
        };
        for control in ["http('example.test', 80, 'example.test')", "https('example.test', 443, 'example.test')"] {
            let outcome = run(control);
            assert!(outcome.text().contains("allowed content"), "{user:?}: {control}: {outcome:?}");
        }
        network.take_log();
        for (code, lines) in CASES {
            let outcome = run(code);
            let text = outcome.text();
            assert!(!text.is_empty() && !text.contains("allowed content"), "{user:?}: {code}: {outcome:?}");
            let refusals = outcome.stderr.lines().filter(|line| line.starts_with("ringfence: network: blocked "));
            assert_eq!(refusals.count(), lines, "{user:?}: {code}: {}", outcome.stderr);
            let log = network.take_log();
            assert!(log.iter().all(|line| !line.starts_with("request")), "{user:?}: {code}: {log:?}");
        }
    }
}

#[test]
fn name_that_is_bound_to_another_address_is_refused_by_run_and_hosted_servers() {
    const TEST: &str = "network::refusals::name_that_is_bound_to_another_address_is_refused_by_run_and_hosted_servers";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    let code = "http('public.test', 80, 'public.test')";
    let run =
        || process::run(network.run(User::Root, &ALLOW).args(["--", "python3", "-c", &format!("{ATTEMPTS}\n{code}")]));
    let server = hosted::start(&network, User::Root, &ALLOW);
    let evaluate = |code: &str| hosted::evaluate(&server, "web", code);
    evaluate(ATTEMPTS);
    for control in [run().text(), evaluate(code)] {
        assert!(control.contains("allowed content"), "{control}");
    }
    network.take_log();
    for address in FORBIDDEN_ADDRESSES {
        network.set_hosts(&HOSTS.replace("93.184.216.1", address));
        for text in [run().text(), evaluate(code)] {
            assert!(!text.is_empty() && !text.contains("allowed content"), "{address}: {text}");
        }
        assert_eq!(network.take_log(), Vec::<String>::new(), "{address}");
    }
}

#[test]
fn refusals_of_run_name_the_option_once() {
    const TEST: &str = "network::refusals::refusals_of_run_name_the_option_once";
    let Some(network) = TestNetwork::enter(TEST) else { return };
    let run = |allow: &[&str], code: &str| process::run(network.run(User::Root, allow).args(["--", "sh", "-c", code]));
    let code = "curl -sS --noproxy '*' https://public.test/ || curl -sS --noproxy '*' http://public.test/";
    let refused = run(&["example.test"], code);
    let line =
        "ringfence: network: blocked public.test, not on the allow list; to permit it: --network allow=public.test";
    assert_eq!(refused.stderr.matches(line).count(), 1, "{}", refused.stderr);
    let (_, rule) = line.split_once("allow=").expect("an option");
    let allowed = run(&[rule], code);
    assert_eq!((allowed.text().as_str(), allowed.stderr.as_str()), ("allowed content\n", ""));
    let flood = "for number in $(seq 20); do curl -sS http://h$number.test/ >/dev/null; done";
    let flooded = run(&["example.test"], flood);
    let lines: Vec<&str> = flooded.stderr.lines().filter(|line| line.contains("network: ")).collect();
    assert_eq!((lines.len(), lines[8]), (9, "ringfence: network: and 12 more"), "{}", flooded.stderr);
}

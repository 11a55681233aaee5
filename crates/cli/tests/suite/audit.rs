//! The audit: every operation, successful or refused, records one event.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ringfence_backend::ProcessRequest;
use ringfence_config::SessionSettings;
use ringfence_core::AuditEvent;
use ringfence_core::{Principal, SessionId};
use ringfence_session::{CodeRequest, FileRange, Sessions};
use ringfence_store::Audit;
use ringfence_store::Store;
use ringfence_testkit::Server;
use tokio_util::sync::CancellationToken;

use crate::BINARY;

fn code(code: &str, template: &str, session_id: Option<&SessionId>) -> CodeRequest {
    let (code, template, session_id) = (code.into(), Some(template.into()), session_id.cloned());
    CodeRequest {
        code,
        template,
        flavor: None,
        session_id,
        timeout: None,
        host: None,
        questions: None,
        rich_html: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_lifecycle_is_audited() {
    let audit = Audit::in_memory();
    let settings = SessionSettings { max_sessions: 1, evict_idle: true, ..SessionSettings::default() };
    let sessions = Sessions::audited(settings, PathBuf::from(BINARY), audit.clone());
    let (first_principal, second_principal) = (Principal::named("one"), Principal::named("other"));
    let run =
        async |principal: &Principal, request| sessions.execute(principal, request, CancellationToken::new()).await;
    let first = run(&first_principal, code("echo secret", "bash", None)).await.expect("session is created").session_id;
    run(&first_principal, code("exit 3", "bash", Some(&first))).await.expect("session exists");
    run(&second_principal, code("echo", "bash", Some(&first))).await.expect_err("session of another principal");
    run(&second_principal, code("echo", "ruby", None)).await.expect_err("unknown template");
    let second = run(&second_principal, code("echo", "bash", None)).await.expect("first session is evicted").session_id;
    sessions.stop(&second_principal, &second).await.expect("session exists");
    sessions.shut_down().await;
    let describe = |event: &AuditEvent| {
        let principal = event.principal.as_ref().map_or("none", Principal::name);
        let session = match &event.session {
            Some(id) if *id == first => "first",
            Some(id) if *id == second => "second",
            Some(_) => "unknown",
            None => "none",
        };
        format!("{principal} {} {} {session}", event.kind.name(), event.outcome)
    };
    let events = audit.collected();
    let described: Vec<String> = events.iter().map(describe).collect();
    insta::assert_snapshot!(described.join("\n"));
    assert!(!format!("{events:?}").contains("echo"), "the audit contains code");
    let finished = events.iter().find(|event| event.kind.name() == "call_finished").expect("call_finished event");
    assert_eq!(finished.detail["bytes_out"], "secret\n".len());
    assert!(finished.duration.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn file_and_process_operations_are_audited() {
    let audit = Audit::in_memory();
    let sessions = Sessions::audited(SessionSettings::default(), PathBuf::from(BINARY), audit.clone());
    let (owner, other) = (Principal::named("owner"), Principal::named("other"));
    let id = sessions.create_session(&owner, Some("bash".into()), None).await.expect("session is created").session_id;
    let path = std::ffi::OsStr::new("secret-name");
    sessions.write_file(&owner, &id, path, b"secret".to_vec()).await.expect("file is written");
    sessions.read_file(&owner, &id, path, FileRange::default()).await.expect("file is read");
    sessions.list_files(&owner, &id, std::ffi::OsStr::new(".")).await.expect("directory is listed");
    let argv = vec!["sleep".into(), "100".into()];
    let request = ProcessRequest { argv, environment: BTreeMap::new(), workdir: None };
    let pid = sessions.start_process(&owner, &id, request.clone()).await.expect("process starts").pid;
    drop(sessions.attach(&owner, &id, pid).expect("process is not attached yet"));
    sessions.stop_process(&owner, &id, pid).await.expect("process ends");
    // Refused requests are audited too.
    assert!(sessions.read_file(&other, &id, path, FileRange::default()).await.is_err());
    assert!(sessions.start_process(&other, &id, request).await.is_err());
    assert!(sessions.attach(&owner, &id, 99).is_err() && sessions.log(&other, &id).is_err());
    assert!(sessions.read_output(&owner, &id, 7).await.is_err());
    sessions.shut_down().await;
    let events = audit.collected();
    let principal = |event: &AuditEvent| event.principal.as_ref().map_or("none", Principal::name).to_owned();
    let described: Vec<String> =
        events.iter().map(|event| format!("{} {} {}", principal(event), event.kind.name(), event.outcome)).collect();
    insta::assert_snapshot!(described.join("\n"), @r"
    owner session_created ok
    owner file_written ok
    owner file_read ok
    owner file_read ok
    owner process_started ok
    owner process_attached ok
    owner process_stopped ok
    other refused session_not_found
    other refused session_not_found
    owner refused not_found
    other refused session_not_found
    owner refused not_found
    owner session_ended shut_down
    ");
    assert!(!format!("{events:?}").contains("secret"), "the audit contains names or contents of files");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_writes_audit_to_state_directory() {
    let server = Server::start(&[], &[("RINGFENCE_AUTH_TOKEN", "a-long-secret")]);
    let host = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let call = |name: &str, arguments: &str| {
        format!(
            r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{name}","arguments":{arguments}}}}}"#
        )
    };
    let line = call("execute_command", r#"{"command": "echo hello"}"#);
    assert_eq!(server.http("POST /mcp", &host, &line).0, 401);
    let token = format!("{host}Authorization: Bearer a-long-secret\r\n");
    for line in [line, call("execute_command", r#"{"command": ""}"#)] {
        assert_eq!(server.http("POST /mcp", &token, &line).0, 200);
    }
    let state = server.stop();
    let store = Store::open(state.path()).expect("store opens");
    let mut rows = store.recent_audit(None, 100).await.expect("audit is read");
    rows.reverse();
    let described: Vec<String> = rows
        .iter()
        .map(|row| format!("{} {} {}", row.principal.as_deref().unwrap_or("none"), row.kind, row.outcome))
        .collect();
    insta::assert_snapshot!(described.join("\n"));
    store.close().await;
}

#[test]
fn audit_is_exported_while_the_server_runs() {
    let server = Server::start(&[], &[]);
    let host = format!("Host: {}\r\nContent-Type: application/json\r\n", server.address);
    let export = |options: &[&str]| -> Vec<serde_json::Value> {
        let mut command = std::process::Command::new(BINARY);
        command.args(["audit", "export"]).args(options).env("RINGFENCE_STATE_DIR", server.state.path());
        let output = command.output().expect("command runs");
        assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
        let text = String::from_utf8(output.stdout).expect("output is UTF-8");
        text.lines().map(|line| serde_json::from_str(line).expect("line is JSON")).collect()
    };
    assert_eq!(server.http("POST /v1/sessions", &host, r#"{"template": "perl"}"#).0, 400);
    assert_eq!(server.http("POST /v1/sessions", &host, r#"{"template": "bash"}"#).0, 201);
    ringfence_testkit::wait_until("the audit does not contain two events", || export(&[]).len() == 2);
    let events = export(&["--since", "1h", "--principal", "local"]);
    assert_eq!(
        events.iter().map(|event| event["kind"].as_str()).collect::<Vec<_>>(),
        [Some("refused"), Some("session_created")]
    );
    let fields: Vec<&str> = events[0].as_object().expect("event is an object").keys().map(String::as_str).collect();
    let expected = ["number", "time", "time_ms", "principal", "session", "kind", "outcome", "duration_ms", "detail"];
    assert!(fields.len() == expected.len() && expected.iter().all(|field| fields.contains(field)), "{fields:?}");
    assert!(events[0]["number"].as_u64() < events[1]["number"].as_u64());
    assert_eq!(export(&["--since", "2100-01-01"]), [] as [serde_json::Value; 0]);
    assert_eq!(export(&["--principal", "unknown"]), [] as [serde_json::Value; 0]);
}

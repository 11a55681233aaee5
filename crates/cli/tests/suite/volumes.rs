//! Reports of sessions about protected names in their volumes: files that programs on the host execute or read as
//! settings.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ringfence_config::SessionSettings;
use ringfence_core::AuditKind;
use ringfence_core::{Access, Volume};
use ringfence_core::{Principal, SessionId};
use ringfence_session::{CallResult, CommandRequest, Sessions};
use ringfence_store::Audit;
use tokio_util::sync::CancellationToken;

use crate::BINARY;

fn settings(host: &Path) -> SessionSettings {
    let volume = Volume { host: host.to_owned(), guest: "/data".into(), access: Access::ReadWrite, allowed_root: None };
    SessionSettings { volumes: vec![volume], pool: [("bash".to_owned(), 1)].into(), ..SessionSettings::default() }
}

async fn command(sessions: &Sessions, session: Option<&SessionId>, line: &str) -> CallResult {
    let request = CommandRequest {
        command: line.into(),
        template: Some("bash".into()),
        flavor: None,
        session_id: session.cloned(),
        timeout: Some(Duration::from_secs(20)),
        questions: None,
    };
    let result = sessions.run_command(&Principal::local(), request, CancellationToken::new()).await;
    result.unwrap_or_else(|failure| panic!("{line}: {failure:?}"))
}

fn stdout(result: &CallResult) -> String {
    String::from_utf8_lossy(&result.stdout.head).into_owned()
}

/// Returns the outcomes and the guest paths of the audit events about protected names.
fn recorded(audit: &Audit) -> Vec<(String, String)> {
    let events = audit.collected().into_iter().filter(|event| event.kind == AuditKind::ProtectedName);
    events.map(|event| (event.outcome.to_string(), event.detail["guest"].as_str().unwrap_or_default().into())).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn protected_name_created_by_a_guest_is_reported_once_and_audited() {
    let directory = tempfile::tempdir().expect("create a directory");
    let volume = directory.path().canonicalize().expect("resolve the path");
    let audit = Audit::in_memory();
    let sessions = Sessions::audited(settings(&volume), PathBuf::from(BINARY), audit.clone());
    let first = command(&sessions, None, "touch /data/ordinary").await;
    assert!(first.notices.is_empty(), "{:?}", first.notices);
    let id = first.session_id;
    let planted = command(&sessions, Some(&id), "echo evil > /data/.envrc; mkdir /data/.vscode").await;
    assert_eq!(planted.notices.len(), 2, "{:?}", planted.notices);
    assert!(planted.notices.iter().any(|notice| notice.starts_with("/data/.envrc was created in a volume")));
    let after = command(&sessions, Some(&id), "echo more >> /data/.envrc").await;
    assert!(after.notices.is_empty(), "{:?}", after.notices);
    let mut events = recorded(&audit);
    events.sort();
    let created = |name: &str| ("created".to_owned(), name.to_owned());
    assert_eq!(events, [created("/data/.envrc"), created("/data/.vscode")]);

    // Pool sandboxes that were created before these names existed would not protect them.
    for _ in 0..2 {
        let next = command(&sessions, None, "echo more >> /data/.envrc || echo refused").await;
        assert_eq!(stdout(&next), "refused\n", "{next:?}");
        assert!(next.notices.is_empty(), "{:?}", next.notices);
    }
    // Names that background processes create are recorded when the session ends, at the latest.
    command(&sessions, Some(&id), "(sleep 0.2; mkdir /data/.cursor) > /dev/null 2>&1 &").await;
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while !volume.join(".cursor").exists() {
        assert!(std::time::Instant::now() < deadline, "the background process created nothing");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    sessions.stop(&Principal::local(), &id).await.expect("stop the session");
    assert!(recorded(&audit).contains(&created("/data/.cursor")), "{:?}", recorded(&audit));
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strict_volumes_of_sessions_prevent_protected_names_and_stay_unchanged() {
    let (directory, state) =
        (tempfile::tempdir().expect("create a directory"), tempfile::tempdir().expect("create a directory"));
    let volume = directory.path().canonicalize().expect("resolve the path");
    let settings = SessionSettings { strict_volumes: Some(state.path().join("volumes")), ..settings(&volume) };
    let sessions = Sessions::new(settings, PathBuf::from(BINARY));
    let result = command(&sessions, None, "echo evil > /data/.envrc || echo refused").await;
    assert_eq!((&*stdout(&result), result.notices.len()), ("refused\n", 0), "{result:?}");
    sessions.shut_down().await;
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    while std::fs::read_dir(&volume).expect("read the volume").next().is_some() {
        assert!(std::time::Instant::now() < deadline, "placeholders were left");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

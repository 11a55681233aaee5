//! Limits on the number and the age of sessions, with real sessions.

use std::path::PathBuf;
use std::time::Duration;

use ringfence_config::SessionSettings;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_session::{CallResult, CommandRequest, Sessions};
use tokio_util::sync::CancellationToken;

use crate::BINARY;

fn sessions(settings: SessionSettings) -> Sessions {
    Sessions::new(settings, PathBuf::from(BINARY))
}

async fn echo(sessions: &Sessions, principal: &str, session_id: Option<&SessionId>) -> Result<CallResult, Failure> {
    let request = CommandRequest {
        command: "echo output".into(),
        template: Some("bash".into()),
        flavor: None,
        session_id: session_id.cloned(),
        timeout: None,
        questions: None,
    };
    sessions.run_command(&Principal::named(principal), request, CancellationToken::new()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_do_not_exceed_the_session_limit() {
    let sessions = sessions(SessionSettings { max_sessions: 2, ..SessionSettings::default() });
    let tasks = (0..6).map(|_| {
        let sessions = sessions.clone();
        tokio::spawn(async move { echo(&sessions, "a", None).await })
    });
    let (mut created, mut refused) = (0, 0);
    for task in tasks.collect::<Vec<_>>() {
        match task.await.expect("the task did not panic") {
            Ok(_) => created += 1,
            Err(failure) => {
                assert_eq!(
                    (failure.kind, failure.context["rule"].as_str()),
                    (Kind::ResourceLimit, "sessions.max_sessions")
                );
                refused += 1;
            }
        }
    }
    assert_eq!((created, refused), (2, 4));
    let id = sessions.list(&Principal::named("a")).await[0].session_id.clone();
    sessions.stop(&Principal::named("a"), &id).await.expect("stop the session");
    echo(&sessions, "b", None).await.expect("create a session after another was stopped");
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_session_of_the_same_principal_is_evicted_if_configured() {
    let settings =
        SessionSettings { max_sessions_per_principal: Some(1), evict_idle: true, ..SessionSettings::default() };
    let sessions = sessions(settings);
    let other_principal = echo(&sessions, "b", None).await.expect("create a session").session_id;
    let first = echo(&sessions, "a", None).await.expect("create a session").session_id;
    let second = echo(&sessions, "a", None).await.expect("the first session is evicted").session_id;
    assert_eq!(echo(&sessions, "a", Some(&first)).await.unwrap_err().kind, Kind::SessionNotFound);
    echo(&sessions, "a", Some(&second)).await.expect("the second session is alive");
    echo(&sessions, "b", Some(&other_principal)).await.expect("the session of another principal is alive");
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_used_last_is_not_evicted() {
    let sessions = sessions(SessionSettings { max_sessions: 2, evict_idle: true, ..SessionSettings::default() });
    let mut last_used = echo(&sessions, "a", None).await.expect("create a session").session_id;
    for _ in 0..8 {
        let other = echo(&sessions, "a", None).await.expect("create a session").session_id;
        tokio::time::sleep(Duration::from_millis(5)).await;
        echo(&sessions, "a", Some(&last_used)).await.expect("the session that was used last is alive");
        tokio::time::sleep(Duration::from_millis(5)).await;
        let newest = echo(&sessions, "a", None).await.expect("create a session").session_id;
        assert_eq!(echo(&sessions, "a", Some(&other)).await.unwrap_err().kind, Kind::SessionNotFound);
        last_used = newest;
    }
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_ends_at_its_maximum_age() {
    let age = Duration::from_secs(2);
    let sessions = sessions(SessionSettings { max_age: Some(age), ..SessionSettings::default() });
    let id = echo(&sessions, "a", None).await.expect("create a session").session_id;
    let principal = Principal::named("a");
    let info = sessions.info(&principal, &id).await.expect("the session is alive");
    assert_eq!(info.expires, info.created + age.as_secs());
    let expired = async {
        while echo(&sessions, "a", Some(&id)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), expired).await.expect("the session ends although it is used");
    assert_eq!(sessions.info(&principal, &id).await.unwrap_err().kind, Kind::SessionNotFound);
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_sessions_are_not_evicted_before_their_first_call() {
    let sessions = sessions(SessionSettings { max_sessions: 2, evict_idle: true, ..SessionSettings::default() });
    let tasks = (0..4).map(|_| {
        let sessions = sessions.clone();
        tokio::spawn(async move {
            for _ in 0..25 {
                if let Err(failure) = echo(&sessions, "a", None).await {
                    assert_eq!(failure.kind, Kind::ResourceLimit, "an admitted call must not fail: {failure:?}");
                }
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        task.await.expect("all calls were served or refused");
    }
    sessions.shut_down().await;
}

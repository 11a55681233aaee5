//! The limits of the service, with real sessions.

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
        command: "echo here".into(),
        template: Some("bash".into()),
        flavor: None,
        session_id: session_id.cloned(),
        timeout: None,
    };
    sessions.run_command(&Principal::named(principal), request, CancellationToken::new()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_more_than_the_limit_is_refused_however_they_come() {
    let sessions = sessions(SessionSettings { max_sessions: 2, ..SessionSettings::default() });
    let asked = (0..6).map(|_| {
        let sessions = sessions.clone();
        tokio::spawn(async move { echo(&sessions, "a", None).await })
    });
    let (mut made, mut refused) = (0, 0);
    for task in asked.collect::<Vec<_>>() {
        match task.await.expect("it does not panic") {
            Ok(_) => made += 1,
            Err(failure) => {
                assert_eq!(
                    (failure.kind, failure.context["rule"].as_str()),
                    (Kind::ResourceLimit, "sessions.max_sessions")
                );
                refused += 1;
            }
        }
    }
    assert_eq!((made, refused), (2, 4));
    let id = sessions.list(&Principal::named("a")).await[0].session_id.clone();
    sessions.stop(&Principal::named("a"), &id).await.expect("it is there");
    echo(&sessions, "b", None).await.expect("the place is free again");
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_idle_session_makes_room_where_the_configuration_says_so() {
    let settings =
        SessionSettings { max_sessions_per_principal: Some(1), evict_idle: true, ..SessionSettings::default() };
    let sessions = sessions(settings);
    let theirs = echo(&sessions, "b", None).await.expect("there is room").session_id;
    let first = echo(&sessions, "a", None).await.expect("there is room").session_id;
    let second = echo(&sessions, "a", None).await.expect("the first makes room").session_id;
    assert_eq!(echo(&sessions, "a", Some(&first)).await.unwrap_err().kind, Kind::SessionNotFound);
    echo(&sessions, "a", Some(&second)).await.expect("it lives");
    echo(&sessions, "b", Some(&theirs)).await.expect("another's session is not touched");
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_one_that_was_used_last_stays() {
    let sessions = sessions(SessionSettings { max_sessions: 2, evict_idle: true, ..SessionSettings::default() });
    let mut kept = echo(&sessions, "a", None).await.expect("there is room").session_id;
    for _ in 0..8 {
        let other = echo(&sessions, "a", None).await.expect("there is room").session_id;
        tokio::time::sleep(Duration::from_millis(5)).await;
        echo(&sessions, "a", Some(&kept)).await.expect("it was used later than what was evicted");
        tokio::time::sleep(Duration::from_millis(5)).await;
        let newest = echo(&sessions, "a", None).await.expect("there is room").session_id;
        assert_eq!(echo(&sessions, "a", Some(&other)).await.unwrap_err().kind, Kind::SessionNotFound);
        kept = newest;
    }
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_ends_of_age() {
    let age = Duration::from_secs(2);
    let sessions = sessions(SessionSettings { max_age: Some(age), ..SessionSettings::default() });
    let id = echo(&sessions, "a", None).await.expect("there is room").session_id;
    let principal = Principal::named("a");
    let info = sessions.info(&principal, &id).await.expect("it is young");
    assert_eq!(info.expires, info.created + age.as_secs());
    let ends = async {
        while echo(&sessions, "a", Some(&id)).await.is_ok() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), ends).await.expect("it ends although it is used");
    assert_eq!(sessions.info(&principal, &id).await.unwrap_err().kind, Kind::SessionNotFound);
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn newcomers_do_not_evict_each_other_before_their_first_call() {
    let sessions = sessions(SessionSettings { max_sessions: 2, evict_idle: true, ..SessionSettings::default() });
    let asked = (0..4).map(|_| {
        let sessions = sessions.clone();
        tokio::spawn(async move {
            for _ in 0..25 {
                if let Err(failure) = echo(&sessions, "a", None).await {
                    assert_eq!(failure.kind, Kind::ResourceLimit, "whoever is let in is served: {failure:?}");
                }
            }
        })
    });
    for task in asked.collect::<Vec<_>>() {
        task.await.expect("everybody is served or refused");
    }
    sessions.shut_down().await;
}

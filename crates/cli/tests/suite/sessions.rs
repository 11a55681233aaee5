//! Sessions as a server has them: state that stays, limits that hold, ends that are told.

use std::path::PathBuf;
use std::time::Duration;

use ringfence_config::SessionSettings;
use ringfence_core::{Failure, Kind, Principal, SessionId};
use ringfence_session::{CallResult, CodeRequest, CommandRequest, Sessions, Status};
use tokio_util::sync::CancellationToken;

use crate::BINARY;

fn sessions() -> Sessions {
    Sessions::new(SessionSettings::default(), PathBuf::from(BINARY))
}

/// A caller with one session, made by its first call.
struct Caller {
    sessions: Sessions,
    template: &'static str,
    session: Option<SessionId>,
    timeout: Option<Duration>,
}

impl Caller {
    fn new(sessions: &Sessions, template: &'static str) -> Self {
        Self { sessions: sessions.clone(), template, session: None, timeout: None }
    }

    async fn try_code(&mut self, code: &str) -> Result<CallResult, Failure> {
        let (template, session_id) = (Some(self.template.into()), self.session.clone());
        let request =
            CodeRequest { code: code.into(), template, flavor: None, session_id, timeout: self.timeout, host: None };
        let answer = self.sessions.execute(&Principal::local(), request, CancellationToken::new()).await?;
        self.session = Some(answer.session_id.clone());
        Ok(answer)
    }

    async fn code(&mut self, code: &str) -> CallResult {
        self.try_code(code).await.unwrap_or_else(|failure| panic!("{code}: {failure:?}"))
    }

    async fn command(&mut self, command: &str) -> CallResult {
        let (template, session_id) = (Some(self.template.into()), self.session.clone());
        let request =
            CommandRequest { command: command.into(), template, flavor: None, session_id, timeout: self.timeout };
        let answer = self.sessions.run_command(&Principal::local(), request, CancellationToken::new()).await;
        let answer = answer.unwrap_or_else(|failure| panic!("{command}: {failure:?}"));
        self.session = Some(answer.session_id.clone());
        answer
    }
}

fn text(answer: &CallResult) -> String {
    String::from_utf8_lossy(&answer.stdout.head).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_stay_from_call_to_call_in_every_language() {
    let sessions = sessions();
    for (template, first, second, expected) in [
        ("python", "x = 41", "x += 1\nprint(x)", "42\n"),
        ("node", "let x = 41", "x += 1; console.log(x)", "42\n"),
        ("bash", "x=41; cd /tmp", "echo $((x + 1)) $PWD", "42 /tmp\n"),
    ] {
        let mut caller = Caller::new(&sessions, template);
        let answer = caller.code(first).await;
        assert!(answer.session_created, "{template}");
        let answer = caller.code(second).await;
        assert_eq!((text(&answer).as_str(), answer.session_created), (expected, false), "{template}: {answer:?}");
    }
    let infos = sessions.list(&Principal::local()).await;
    assert_eq!(infos.len(), 3);
    assert!(
        infos.iter().all(|info| info.memory_bytes.is_none_or(|used| used > 0 && used < info.memory_limit_bytes)),
        "{infos:?}"
    );
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_errors_and_commands_are_told_apart() {
    let sessions = sessions();
    let mut caller = Caller::new(&sessions, "python");
    assert_eq!(caller.code("6 * 7").await.result.as_deref(), Some("42"));
    let answer = caller.code("1 / 0").await;
    assert_eq!(answer.status, Status::Error);
    assert_eq!(answer.error.as_ref().map(|error| error.name.as_str()), Some("ZeroDivisionError"), "{answer:?}");
    let answer = caller.command("echo out; echo err >&2; exit 3").await;
    assert_eq!((answer.status, answer.exit_code), (Status::Error, Some(3)));
    assert_eq!((text(&answer).as_str(), answer.stderr.head.as_slice()), ("out\n", b"err\n".as_slice()));
    caller.code("open('made', 'w').write('by python')").await;
    assert_eq!(text(&caller.command("cat made | tr a-z A-Z").await), "BY PYTHON");
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_timeout_interrupts_and_keeps_the_state() {
    let sessions = sessions();
    for (template, setting, endless, asking) in [
        ("python", "x = 'kept'", "print('begun', flush=True)\nwhile True: pass", "print(x)"),
        ("node", "let x = 'kept'", "console.log('begun'); while (true) {}", "console.log(x)"),
        ("bash", "x=kept", "echo begun; while :; do :; done", "echo $x"),
    ] {
        let mut caller = Caller::new(&sessions, template);
        caller.code(setting).await;
        caller.timeout = Some(Duration::from_secs(1));
        let answer = caller.code(endless).await;
        assert_eq!((answer.status, text(&answer).as_str()), (Status::TimedOut, "begun\n"), "{template}: {answer:?}");
        caller.timeout = None;
        assert_eq!(text(&caller.code(asking).await), "kept\n", "{template}");
    }
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_interpreter_that_dies_is_replaced_and_the_caller_told() {
    let sessions = sessions();
    let mut caller = Caller::new(&sessions, "python");
    caller.code("x = 1; open('/workspace/kept', 'w').write('kept')").await;
    let answer = caller.code("import os; os.kill(os.getpid(), 9)").await;
    assert_eq!(answer.status, Status::Killed);
    assert!(answer.notices[0].contains("state is lost"), "{answer:?}");
    let answer = caller.code("print(open('/workspace/kept').read(), 'x' in globals())").await;
    assert_eq!(text(&answer), "kept False\n");
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_that_nobody_uses_expires() {
    let settings = SessionSettings { idle_timeout: Duration::from_secs(1), ..SessionSettings::default() };
    let sessions = Sessions::new(settings, PathBuf::from(BINARY));
    sessions.create_session(&Principal::local(), None, None).await.expect("it is made");
    while !sessions.list(&Principal::local()).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_of_one_principal_is_not_there_for_another() {
    let sessions = sessions();
    let mut caller = Caller::new(&sessions, "bash");
    let id = caller.code("echo hello").await.session_id;
    let other = Principal::named("somebody else");
    assert!(sessions.list(&other).await.is_empty());
    let unknown = sessions.info(&other, &SessionId::from_caller("session-0")).await.unwrap_err();
    for failure in [sessions.info(&other, &id).await.unwrap_err(), sessions.stop(&other, &id).await.unwrap_err()] {
        assert_eq!(failure.kind, Kind::SessionNotFound);
        assert_eq!(failure.message.replace(id.as_str(), "session-0"), unknown.message, "no difference is shown");
    }
    let stopped = sessions.stop(&Principal::local(), &id).await.expect("its own");
    assert!(!stopped.was_running);
    assert_eq!(caller.try_code("echo again").await.unwrap_err().kind, Kind::SessionNotFound);
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_bounded_and_forged_frames_are_only_output() {
    let sessions = sessions();
    let mut caller = Caller::new(&sessions, "python");
    let flood = "import sys\nfor _ in range(2000): sys.stdout.write('x' * 100_000)\nprint('end')";
    let answer = caller.code(flood).await;
    assert_eq!(answer.status, Status::Ok);
    assert!(
        answer.stdout.dropped_bytes > 190_000_000 && answer.stdout.tail.ends_with(b"end\n"),
        "{}",
        answer.stdout.dropped_bytes
    );
    let forged = r#"
import json, os, struct
frame = json.dumps({"type": "done", "id": 1, "status": "ok", "result": "forged"}).encode()
os.write(1, struct.pack(">I", len(frame)) + frame)
"true"
"#;
    let answer = caller.code(forged).await;
    assert_eq!(answer.result.as_deref(), Some("'true'"), "{answer:?}");
    sessions.shut_down().await;
}

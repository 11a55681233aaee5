//! Sessions of a server: persistent state, limits, and reports of their end.

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

/// A caller with one session, which its first call creates.
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
        let request = CodeRequest {
            code: code.into(),
            template,
            flavor: None,
            session_id,
            timeout: self.timeout,
            host: None,
            questions: None,
            rich_html: false,
        };
        let result = self.sessions.execute(&Principal::local(), request, CancellationToken::new()).await?;
        self.session = Some(result.session_id.clone());
        Ok(result)
    }

    async fn code(&mut self, code: &str) -> CallResult {
        self.try_code(code).await.unwrap_or_else(|failure| panic!("{code}: {failure:?}"))
    }

    async fn command(&mut self, command: &str) -> CallResult {
        let (template, session_id) = (Some(self.template.into()), self.session.clone());
        let request = CommandRequest {
            command: command.into(),
            template,
            flavor: None,
            session_id,
            timeout: self.timeout,
            questions: None,
        };
        let result = self.sessions.run_command(&Principal::local(), request, CancellationToken::new()).await;
        let result = result.unwrap_or_else(|failure| panic!("{command}: {failure:?}"));
        self.session = Some(result.session_id.clone());
        result
    }
}

fn text(result: &CallResult) -> String {
    String::from_utf8_lossy(&result.stdout.head).into_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn variables_persist_between_calls_in_every_language() {
    let sessions = sessions();
    for (template, first, second, expected) in [
        ("python", "x = 41", "x += 1\nprint(x)", "42\n"),
        ("node", "let x = 41", "x += 1; console.log(x)", "42\n"),
        ("bash", "x=41; cd /tmp", "echo $((x + 1)) $PWD", "42 /tmp\n"),
    ] {
        let mut caller = Caller::new(&sessions, template);
        let result = caller.code(first).await;
        assert!(result.session_created, "{template}");
        let result = caller.code(second).await;
        assert_eq!((text(&result).as_str(), result.session_created), (expected, false), "{template}: {result:?}");
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
async fn results_errors_and_exit_codes_are_distinguished() {
    let sessions = sessions();
    let mut caller = Caller::new(&sessions, "python");
    assert_eq!(caller.code("6 * 7").await.result.as_deref(), Some("42"));
    let result = caller.code("1 / 0").await;
    assert_eq!(result.status, Status::Error);
    assert_eq!(result.error.as_ref().map(|error| error.name.as_str()), Some("ZeroDivisionError"), "{result:?}");
    let result = caller.command("echo out; echo err >&2; exit 3").await;
    assert_eq!((result.status, result.exit_code), (Status::Error, Some(3)));
    assert_eq!((text(&result).as_str(), result.stderr.head.as_slice()), ("out\n", b"err\n".as_slice()));
    caller.code("open('made', 'w').write('by python')").await;
    assert_eq!(text(&caller.command("cat made | tr a-z A-Z").await), "BY PYTHON");
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timeout_interrupts_the_call_and_preserves_the_state() {
    let sessions = sessions();
    for (template, set_variable, endless, print_variable) in [
        ("python", "x = 'preserved'", "print('started', flush=True)\nwhile True: pass", "print(x)"),
        ("node", "let x = 'preserved'", "console.log('started'); while (true) {}", "console.log(x)"),
        ("bash", "x=preserved", "echo started; while :; do :; done", "echo $x"),
    ] {
        let mut caller = Caller::new(&sessions, template);
        caller.code(set_variable).await;
        caller.timeout = Some(Duration::from_secs(1));
        let result = caller.code(endless).await;
        assert_eq!((result.status, text(&result).as_str()), (Status::TimedOut, "started\n"), "{template}: {result:?}");
        caller.timeout = None;
        assert_eq!(text(&caller.code(print_variable).await), "preserved\n", "{template}");
    }
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_interpreter_is_replaced_and_reported() {
    let sessions = sessions();
    let mut caller = Caller::new(&sessions, "python");
    caller.code("x = 1; open('/workspace/preserved', 'w').write('preserved')").await;
    let result = caller.code("import os; os.kill(os.getpid(), 9)").await;
    assert_eq!(result.status, Status::Killed);
    assert!(result.notices[0].contains("state is lost"), "{result:?}");
    let result = caller.code("print(open('/workspace/preserved').read(), 'x' in globals())").await;
    assert_eq!(text(&result), "preserved False\n");
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_session_expires() {
    let settings = SessionSettings { idle_timeout: Duration::from_secs(1), ..SessionSettings::default() };
    let sessions = Sessions::new(settings, PathBuf::from(BINARY));
    sessions.create_session(&Principal::local(), None, None).await.expect("session is created");
    while !sessions.list(&Principal::local()).await.is_empty() {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_of_another_principal_is_not_found() {
    let sessions = sessions();
    let mut caller = Caller::new(&sessions, "bash");
    let id = caller.code("echo hello").await.session_id;
    let other = Principal::named("other");
    assert!(sessions.list(&other).await.is_empty());
    let unknown = sessions.info(&other, &SessionId::from_caller("session-0")).await.unwrap_err();
    for failure in [sessions.info(&other, &id).await.unwrap_err(), sessions.stop(&other, &id).await.unwrap_err()] {
        assert_eq!(failure.kind, Kind::SessionNotFound);
        assert_eq!(
            failure.message.replace(id.as_str(), "session-0"),
            unknown.message,
            "the message does not reveal that the session exists"
        );
    }
    let stopped = sessions.stop(&Principal::local(), &id).await.expect("the principal's session");
    assert!(!stopped.was_running);
    assert_eq!(caller.try_code("echo again").await.unwrap_err().kind, Kind::SessionNotFound);
    sessions.shut_down().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_flood_is_truncated_and_forged_frames_are_plain_output() {
    let sessions = sessions();
    let mut caller = Caller::new(&sessions, "python");
    let flood = "import sys\nfor _ in range(2000): sys.stdout.write('x' * 100_000)\nprint('end')";
    let result = caller.code(flood).await;
    assert_eq!(result.status, Status::Ok);
    assert!(
        result.stdout.dropped_bytes > 190_000_000 && result.stdout.tail.ends_with(b"end\n"),
        "{}",
        result.stdout.dropped_bytes
    );
    let forged = r#"
import json, os, struct
frame = json.dumps({"type": "done", "id": 1, "status": "ok", "result": "forged"}).encode()
os.write(1, struct.pack(">I", len(frame)) + frame)
"true"
"#;
    let result = caller.code(forged).await;
    assert_eq!(result.result.as_deref(), Some("'true'"), "{result:?}");
    sessions.shut_down().await;
}

//! Servers hosted in real sandboxes, from their entries to their ends.

use std::path::Path;
use std::time::Duration;

use ringfence_core::AuditKind;
use ringfence_entries::{HostPathMode, ServerEntry, StdioSettings, Transport};
use ringfence_servers::{
    Host, HostSettings, HostedServer, Phase, ProcessExit, Progress, ServerInput, ServerOutput, StartFailure,
};
use ringfence_store::Audit;
use ringfence_testkit::{User, for_each_user, process, skip, wait_until};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::BINARY;

const PATIENCE: Duration = Duration::from_secs(120);

fn host(cache: &Path) -> Host {
    Host::new(HostSettings::new(BINARY.into(), cache.to_owned()))
}

fn entry(settings: StdioSettings) -> ServerEntry {
    let uuid = format!("{:016x}", rand());
    ServerEntry { name: "server".into(), uuid, enable: true, description: None, transport: Transport::Stdio(settings) }
}

fn rand() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn stdio(command: &str, args: &[&str]) -> StdioSettings {
    let mut settings = StdioSettings::new(command);
    settings.args = args.iter().map(|&argument| argument.into()).collect();
    settings
}

async fn start(host: &Host, settings: StdioSettings) -> Result<HostedServer, StartFailure> {
    tokio::time::timeout(PATIENCE, host.start(&entry(settings), &Progress::default())).await.expect("it starts in time")
}

/// Lines to and from a server.
struct Talk {
    input: ServerInput,
    output: BufReader<ServerOutput>,
}

impl Talk {
    fn with(server: &mut HostedServer) -> Self {
        let (input, output) = server.take_streams().expect("its streams");
        Self { input, output: BufReader::new(output) }
    }

    async fn ask(&mut self, line: &str) -> String {
        self.input.write_all(format!("{line}\n").as_bytes()).await.expect("it reads");
        self.line().await
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        tokio::time::timeout(PATIENCE, read).await.expect("it answers in time").expect("it writes text");
        line.trim_end().to_owned()
    }
}

/// A server that evaluates what it is sent.
const EVALUATOR: &str = "import sys, os\nfor line in sys.stdin:\n    print(eval(line), flush=True)\n";

fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
    project_in(Path::new("/tmp"), files)
}

fn project_in(place: &Path, files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::Builder::new().prefix("ringfence-test-").tempdir_in(place).expect("a directory");
    for (name, content) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
        std::fs::write(path, content).expect("a file");
    }
    directory
}

fn text(path: &Path) -> &str {
    path.to_str().expect("a path that is text")
}

async fn ended(server: &HostedServer) -> ProcessExit {
    tokio::time::timeout(PATIENCE, server.wait_for_exit()).await.expect("it ends")
}

#[tokio::test]
async fn a_hosted_server_sees_its_project_and_nothing_else_of_the_host() {
    let directory = project(&[("server.py", EVALUATOR), ("data/x", "in the project"), (".git/config", "not this")]);
    let beside = project(&[("secret", "a secret")]);
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let server_py = directory.path().join("server.py");
    let mut settings =
        stdio("python3", &[text(&server_py), &format!("--data={}", text(&directory.path().join("data")))]);
    settings.env.insert("TOKEN".into(), "of the entry".into());
    settings.env.insert("DATA".into(), text(&directory.path().join("data")).into());
    settings.sandbox_settings.env.insert("BOX".into(), "of the box".into());
    let mut server = start(&host, settings).await.expect("it starts");
    let mut talk = Talk::with(&mut server);
    assert_eq!(talk.ask("sys.argv").await, "['/workspace/server.py', '--data=/workspace/data']");
    assert_eq!(talk.ask("open(os.environ['DATA'] + '/x').read()").await, "in the project");
    assert_eq!(
        talk.ask("sorted(os.environ)").await,
        "['BOX', 'DATA', 'HOME', 'LANG', 'PATH', 'TMPDIR', 'TOKEN', 'USER']"
    );
    assert_eq!(talk.ask("sorted(os.listdir('/workspace'))").await, "['data', 'server.py']");
    let secret = format!("os.path.exists({:?})", beside.path().join("secret"));
    assert_eq!(talk.ask(&secret).await, "False");
    assert_eq!(
        talk.ask("os.path.exists('/etc/shadow'), os.path.exists('/home'), os.path.exists('/root')").await,
        "(False, False, False)"
    );
    let connect = "__import__('socket').socket().connect_ex(('127.0.0.1', 3128)), os.listdir('/sys/class/net') if os.path.exists('/sys') else []";
    assert_eq!(talk.ask(connect).await, "(111, [])", "there is no way out");
    assert_eq!(talk.ask("open('/workspace/server.py', 'w').write('changed')").await, "7");
    assert_eq!(std::fs::read_to_string(&server_py).expect("it is there"), EVALUATOR, "the host's is as it was");
    server.stop().await;
    host.shut_down().await;
}

#[tokio::test]
async fn a_project_to_be_written_is_written() {
    let directory = project(&[("server.py", EVALUATOR)]);
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let mut settings = stdio("python3", &["server.py"]);
    settings.cwd = Some(directory.path().to_owned());
    settings.sandbox_settings.host_path_mode = HostPathMode::ReadWrite;
    let mut server = start(&host, settings).await.expect("it starts");
    let mut talk = Talk::with(&mut server);
    assert_eq!(talk.ask("open('written', 'w').write('by the server')").await, "13");
    drop(talk);
    server.stop().await;
    assert_eq!(std::fs::read_to_string(directory.path().join("written")).expect("it is there"), "by the server");
    host.shut_down().await;
}

#[tokio::test]
async fn a_protected_name_that_a_server_creates_is_recorded() {
    let directory = project(&[("server.py", EVALUATOR)]);
    let cache = tempfile::tempdir().expect("a directory");
    let audit = Audit::in_memory();
    let host =
        Host::new(HostSettings { audit: audit.clone(), ..HostSettings::new(BINARY.into(), cache.path().to_owned()) });
    let mut settings = stdio("python3", &["server.py"]);
    settings.cwd = Some(directory.path().to_owned());
    settings.sandbox_settings.host_path_mode = HostPathMode::ReadWrite;
    let mut server = start(&host, settings).await.expect("it starts");
    let mut talk = Talk::with(&mut server);
    assert_eq!(talk.ask("open('.envrc', 'w').write('evil')").await, "4");
    let is_told = || server.stderr_tail().iter().any(|line| line.contains(".envrc was created in a volume"));
    let told = tokio::time::timeout(PATIENCE, async {
        while !is_told() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    told.await.expect("it is among the last lines of the server");
    assert_eq!(talk.ask("open('ringfence.toml', 'w').write('evil')").await, "4");
    drop(talk);
    server.stop().await;
    host.shut_down().await;
    let events = audit.collected().into_iter().filter(|event| event.kind == AuditKind::ProtectedName);
    let created: Vec<_> = events.map(|event| event.detail["host"].as_str().unwrap_or_default().to_owned()).collect();
    for name in [".envrc", "ringfence.toml"] {
        let path = directory.path().join(name);
        assert_eq!(created.iter().filter(|host| Path::new(host) == path).count(), 1, "{name}: {created:?}");
    }
}

#[tokio::test]
async fn what_cannot_start_says_in_which_phase() {
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let missing = start(&host, stdio("no-such-program", &[])).await.err().expect("it does not start");
    assert_eq!((missing.phase, missing.is_transient), (Phase::ProcessStart, false), "{missing:?}");
    assert!(missing.message.contains("no-such-program") && !missing.hints.is_empty(), "{missing:?}");
    let home = start(&host, stdio("python3", &["-c", "pass", "/home"])).await.err().expect("it does not start");
    assert_eq!((home.phase, home.is_transient), (Phase::SessionCreate, false), "{home:?}");
    let mut weak = stdio("python3", &["-c", "pass"]);
    weak.sandbox_settings.image = Some("/no/such/image".into());
    let weak = start(&host, weak).await.err().expect("it does not start");
    assert_eq!((weak.phase, weak.is_transient), (Phase::BoxUnavailable, false), "{weak:?}");
    host.shut_down().await;
}

#[tokio::test]
async fn a_server_that_will_not_end_is_ended_with_all_that_it_started() {
    let word = format!("unending-{:x}", rand());
    let script = format!(
        "import os, signal, subprocess, sys\n\
         signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
         for _ in range(3):\n    subprocess.Popen(['sh', '-c', 'trap \"\" TERM HUP; while :; do sleep 1; done', '{word}'], start_new_session=True)\n\
         print('up', flush=True)\n\
         while True: signal.pause()\n"
    );
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let mut server = start(&host, stdio("python3", &["-c", &script])).await.expect("it starts");
    assert_eq!(Talk::with(&mut server).line().await, "up");
    assert!(process::is_running(&word));
    server.stop().await;
    assert!(!process::is_running(&word), "nothing is left when it has been stopped");
    let mut server = start(&host, stdio("python3", &["-c", &script])).await.expect("it starts");
    assert_eq!(Talk::with(&mut server).line().await, "up");
    drop(server);
    wait_until("it is left after a drop", || !process::is_running(&word));
    // Its daemons do not outlive it either.
    let short = script.replace("while True: signal.pause()", "sys.exit(7)");
    let server = start(&host, stdio("python3", &["-c", &short])).await.expect("it starts");
    assert_eq!(ended(&server).await, ProcessExit::Exited(7));
    wait_until("a daemon is left", || !process::is_running(&word));
    host.shut_down().await;
}

#[tokio::test]
async fn a_flood_of_complaints_neither_blocks_the_server_nor_fills_memory() {
    let script = "import sys\nfor number in range(200000): sys.stderr.write(f'complaint {number}\\n')\n\
                  sys.stderr.write('x' * (8 << 20))\nsys.stderr.flush()\nprint('done', flush=True)\nsys.stdin.read()";
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let mut server = start(&host, stdio("python3", &["-c", script])).await.expect("it starts");
    assert_eq!(Talk::with(&mut server).line().await, "done");
    let lines = server.stderr_tail();
    assert!(lines.len() <= 501 && lines.iter().map(String::len).sum::<usize>() < 1 << 20, "{}", lines.len());
    server.stop().await;
    host.shut_down().await;
}

#[tokio::test]
async fn a_server_over_its_memory_says_so() {
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let mut settings = stdio("python3", &["-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"]);
    settings.sandbox_settings.memory_mb = Some(64);
    let server = start(&host, settings).await.expect("it starts");
    assert_eq!(server.usage().memory_limit_bytes, Some(64 << 20));
    let how = ended(&server).await;
    assert!(
        matches!(
            how,
            ProcessExit::Killed { is_out_of_memory: true, .. } | ProcessExit::SandboxLost { is_out_of_memory: true }
        ),
        "{how:?}"
    );
    host.shut_down().await;
}

#[tokio::test]
async fn one_that_shares_a_sandbox_is_stopped_alone() {
    let directory = project(&[("server.py", EVALUATOR)]);
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let word = format!("sharing-{:x}", rand());
    let mut settings = stdio("python3", &[text(&directory.path().join("server.py")), &word]);
    settings.sandbox_settings.shared = true;
    let mut one = start(&host, settings.clone()).await.expect("it starts");
    let mut other = start(&host, settings).await.expect("it starts");
    assert_eq!(one.sandbox_id(), other.sandbox_id());
    let (mut to_one, mut to_other) = (Talk::with(&mut one), Talk::with(&mut other));
    let daemon = format!("daemon-{word}");
    let fork = format!(
        "__import__('subprocess').Popen(['sh', '-c', 'while :; do sleep 1; done', '{daemon}'], start_new_session=True).pid > 0"
    );
    assert_eq!(to_one.ask(&fork).await, "True");
    assert_eq!(to_other.ask("os.getcwd() != '/workspace' and os.path.exists('server.py')").await, "True");
    assert_eq!(to_other.ask("len(os.listdir('/workspace/.mcp'))").await, "2");
    drop(to_one);
    one.stop().await;
    assert!(!process::is_running(&daemon), "its daemon is gone with it");
    assert_eq!(to_other.ask("len(os.listdir('/workspace/.mcp'))").await, "1", "and its files");
    drop(to_other);
    other.stop().await;
    assert!(!process::is_running(&word), "the sandbox ends with its last lodger");
    host.shut_down().await;
}

#[tokio::test]
async fn only_an_entry_that_says_so_runs_on_the_host() {
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let word = format!("bare-{:x}", rand());
    // By its full path: a version manager's own would add variables.
    let mut settings = stdio("/usr/bin/python3", &["-c", EVALUATOR, &word]);
    settings.sandbox = false;
    settings.env.insert("TOKEN".into(), "x".into());
    let mut server = start(&host, settings).await.expect("it starts");
    let mut talk = Talk::with(&mut server);
    assert_eq!(talk.ask("sorted(set(os.environ) - {'LC_CTYPE'})").await, "['HOME', 'PATH', 'TOKEN']");
    let fork = "__import__('subprocess').Popen(['sh', '-c', 'while :; do sleep 1; done', sys.argv[1]]).pid > 0";
    assert_eq!(talk.ask(fork).await, "True");
    drop(talk);
    server.stop().await;
    wait_until("its group is left", || !process::is_running(&word));
    host.shut_down().await;
}

/// Variable by which this test program becomes a host of servers; its value is the cache.
const ROLE: &str = "RINGFENCE_TEST_HOST_IN";

/// A process that tests start as another user or kill: it hosts servers, reports so, and waits.
#[test]
#[ignore = "a process of other tests"]
fn host_servers_for_another_test() {
    let cache = std::env::var_os(ROLE).expect("the cache directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let host = host(Path::new(&cache));
        let script = |word: &str| {
            format!("import os, subprocess\nsubprocess.Popen(['sh', '-c', 'while :; do sleep 1; done', '{word}'], start_new_session=True)\n{EVALUATOR}")
        };
        let word = std::env::var("WORD").expect("a word");
        // In the cache, which is not this process's to remove: it may be killed.
        let directory = project_in(Path::new(&cache), &[("server.py", &script(&word)), ("requirements.txt", "")]);
        let settings = stdio("python3", &[text(&directory.path().join("server.py"))]);
        let mut alone = start(&host, settings.clone()).await.expect("it starts");
        let mut shared = settings.clone();
        shared.sandbox_settings.shared = true;
        let mut shared = start(&host, shared).await.expect("it starts");
        let mut writing = settings;
        writing.sandbox_settings.host_path_mode = HostPathMode::ReadWrite;
        let mut writing = start(&host, writing).await.expect("it starts");
        for server in [&mut alone, &mut shared, &mut writing] {
            assert_eq!(Talk::with(server).ask("open('new', 'w').write('x'), os.getuid()").await, "(1, 1000)");
        }
        assert_eq!(std::fs::read_to_string(directory.path().join("new")).expect("one may write"), "x");
        if std::env::var_os("STAY").is_some() {
            std::fs::write(Path::new(&cache).join("up"), "").expect("a file");
            std::future::pending::<()>().await;
        }
        shared.stop().await;
        alone.stop().await;
        writing.stop().await;
        host.shut_down().await;
        std::fs::write(Path::new(&cache).join("done"), "").expect("a file");
    });
}

/// Starts this program as a host of servers.
fn other_host(who: User, cache: &Path, word: &str) -> std::process::Command {
    let own = std::env::current_exe().expect("it is running");
    // Where the others may not enter, a copy is made where they may.
    let copy = cache.join("host");
    std::fs::copy(own, &copy).expect("a copy");
    let mut command = who.program(&copy);
    command.args(["--exact", "hosting_start::host_servers_for_another_test", "--ignored", "--nocapture"]);
    command.env(ROLE, cache).env("WORD", word);
    command
}

#[test]
fn servers_are_hosted_by_everyone() {
    for_each_user("hosting_start", |who| {
        let cache = who.directory();
        let word = format!("everyone-{:x}", rand());
        let output = other_host(who, cache.path(), &word).output().expect("it runs");
        assert!(cache.path().join("done").exists(), "{who:?}: {output:?}");
        assert!(!process::is_running(&word), "{who:?}");
    });
}

#[test]
fn nothing_is_left_of_a_host_that_is_killed() {
    let cache = User::Root.directory();
    let word = format!("killed-{:x}", rand());
    let mut child = other_host(User::Root, cache.path(), &word).env("STAY", "1").spawn().expect("it starts");
    wait_until("it does not come up", || cache.path().join("up").exists());
    assert!(process::is_running(&word));
    child.kill().expect("it lives");
    child.wait().expect("it ends");
    wait_until("a server is left", || !process::is_running(&word));
}

#[tokio::test]
async fn a_server_reaches_what_its_entry_allows_and_nothing_else() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    let served = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\npage").await;
        }
    });
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let mut settings = stdio("python3", &["-c", EVALUATOR]);
    settings.sandbox_settings.allow = vec![address.to_string()];
    let mut server = start(&host, settings.clone()).await.expect("it starts");
    let mut talk = Talk::with(&mut server);
    // Not through the variables: they leave loopback out.
    let get = |place: &str| {
        format!(
            "(lambda c: (c.request('GET', 'http://{place}/'), c.getresponse().read())[1])(__import__('http.client').client.HTTPConnection('127.0.0.1', 3128))"
        )
    };
    assert_eq!(talk.ask(&get(&address.to_string())).await, "b'page'");
    let refused = talk.ask(&get("127.0.0.1:1")).await;
    assert!(refused.starts_with("b'") && refused != "b'page'", "{refused}");
    let tail = server.stderr_tail();
    assert!(tail.iter().any(|line| line.contains("egress to 127.0.0.1:1: ")), "{tail:?}");
    settings.sandbox_settings.allow = vec!["not a host".into()];
    let refused = start(&host, settings).await.err().expect("it does not start");
    assert_eq!((refused.phase, refused.hints.is_empty()), (Phase::SessionCreate, false), "{refused:?}");
    served.abort();
    host.shut_down().await;
}

/// Speaks the first words of the protocol, and gives the server's name.
async fn initialize(server: &mut HostedServer) -> String {
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;
    let mut talk = Talk::with(server);
    let answer = talk.ask(request).await;
    let answer: serde_json::Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
    answer["result"]["serverInfo"]["name"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

/// The server from npm that `scripts/test` names.
fn everything(test: &str) -> Option<String> {
    let named = std::env::var("RINGFENCE_TEST_SERVER_EVERYTHING").ok();
    if named.is_none() {
        skip(test, "no MCP server from npm is named; ./scripts/test does that");
    }
    named
}

/// How often a start has installed something.
fn counting() -> (Progress, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
    let count: std::sync::Arc<std::sync::atomic::AtomicUsize> = std::sync::Arc::default();
    let counter = std::sync::Arc::clone(&count);
    let progress = Progress::new(move |_, step| {
        if step.starts_with("installing") {
            counter.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    });
    (progress, count)
}

async fn start_counted(
    host: &Host,
    settings: StdioSettings,
    progress: &Progress,
) -> Result<HostedServer, StartFailure> {
    tokio::time::timeout(Duration::from_secs(300), host.start(&entry(settings), progress))
        .await
        .expect("it starts in time")
}

#[tokio::test]
async fn a_server_from_npm_is_installed_once_and_starts_offline() {
    let Some(everything) = everything("hosting_start::npm") else { return };
    let cache = tempfile::tempdir().expect("a directory");
    let (progress, installed) = counting();
    let host = host(cache.path());
    let settings = stdio("npx", &["-y", &everything]);
    // Two at once install once.
    let (one, other) = tokio::join!(
        start_counted(&host, settings.clone(), &progress),
        start_counted(&host, settings.clone(), &progress)
    );
    for server in [one, other] {
        let mut server = server.expect("it starts");
        assert!(initialize(&mut server).await.contains("everything"));
        server.stop().await;
    }
    assert_eq!(installed.load(std::sync::atomic::Ordering::Relaxed), 1);
    let mut offline = settings;
    offline.sandbox_settings.network = false;
    let mut server = start_counted(&host, offline, &progress).await.expect("it starts without a network");
    assert!(initialize(&mut server).await.contains("everything"));
    server.stop().await;
    let left: Vec<_> = std::fs::read_dir(cache.path().join("packages/new")).expect("it is there").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    host.shut_down().await;
}

#[tokio::test]
async fn an_installation_goes_on_when_a_start_is_given_up_and_ends_with_the_host() {
    let Some(everything) = everything("hosting_start::given_up") else { return };
    let cache = tempfile::tempdir().expect("a directory");
    let first = host(cache.path());
    let settings = stdio("npx", &["-y", &everything]);
    let begun = std::sync::Arc::new(tokio::sync::Notify::new());
    let beginning = std::sync::Arc::clone(&begun);
    let progress = Progress::new(move |_, step| {
        if step.starts_with("installing") {
            begun.notify_one();
        }
    });
    let give_up = async |host: &Host| {
        let entry = entry(settings.clone());
        tokio::select! {
            _ = host.start(&entry, &progress) => panic!("it is started"),
            () = beginning.notified() => {}
        }
    };
    give_up(&first).await;
    let (quiet, installed) = counting();
    let mut server = start_counted(&first, settings.clone(), &quiet).await.expect("it starts");
    assert!(initialize(&mut server).await.contains("everything"));
    assert_eq!(installed.load(std::sync::atomic::Ordering::Relaxed), 0, "the first start has installed it");
    server.stop().await;
    first.shut_down().await;
    let other_cache = tempfile::tempdir().expect("a directory");
    let second = host(other_cache.path());
    give_up(&second).await;
    second.shut_down().await;
    let count =
        |part: &str| std::fs::read_dir(other_cache.path().join("packages").join(part)).expect("it is there").count();
    wait_until("an installation is left", || count("new") == 0);
    assert_eq!(count("ready"), 0, "it was ended");
}

#[tokio::test]
async fn what_cannot_be_installed_says_why() {
    if everything("hosting_start::dep_install").is_none() {
        return;
    }
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let (progress, _) = counting();
    let no_such = start_counted(&host, stdio("npx", &["-y", "@ringfence-test/no-such-package-4711"]), &progress).await;
    let failure = no_such.err().expect("there is no such package");
    assert_eq!((failure.phase, failure.is_transient), (Phase::DepInstall, false), "{failure:?}");
    assert!(failure.message.contains("npm exited with code") && failure.message.contains("404"), "{failure:?}");
    assert!(failure.message.chars().count() < 700, "{failure:?}");
    let mut offline = stdio("uvx", &["mcp-server-time"]);
    offline.sandbox_settings.network = false;
    let failure = start_counted(&host, offline, &progress).await.err().expect("it is not installed");
    assert_eq!((failure.phase, failure.is_transient), (Phase::DepInstall, false), "{failure:?}");
    let project = project(&[("server.py", EVALUATOR), ("requirements.txt", "ringfence-test-no-such-package==4711\n")]);
    let settings = stdio("python3", &[text(&project.path().join("server.py"))]);
    let failure = start_counted(&host, settings, &progress).await.err().expect("there is no such package");
    assert!(
        failure.message.contains("exited with code 1") && failure.message.contains("No matching distribution"),
        "{failure:?}"
    );
    let left: Vec<_> = std::fs::read_dir(cache.path().join("packages/ready")).expect("it is there").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    wait_until("what failed is left", || {
        std::fs::read_dir(cache.path().join("packages/new")).expect("it is there").count() == 0
    });
    host.shut_down().await;
}

#[tokio::test]
async fn a_python_project_has_what_its_requirements_name() {
    if everything("hosting_start::requirements").is_none() {
        return;
    }
    let project = project(&[
        ("server.py", EVALUATOR),
        ("requirements.txt", "-r requirements-base.txt\n"),
        ("requirements-base.txt", "iniconfig==2.0.0\n"),
    ]);
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let (progress, installed) = counting();
    let settings = stdio("python3", &[text(&project.path().join("server.py"))]);
    for _ in 0..2 {
        let mut server = start_counted(&host, settings.clone(), &progress).await.expect("it starts");
        let mut talk = Talk::with(&mut server);
        assert_eq!(talk.ask("__import__('importlib.metadata').metadata.version('iniconfig')").await, "2.0.0");
        // What was installed cannot be changed from inside.
        let write = "__import__('subprocess').call(['touch', __import__('iniconfig').__file__], stderr=-3) != 0";
        assert_eq!(talk.ask(write).await, "True");
        drop(talk);
        server.stop().await;
    }
    assert_eq!(installed.load(std::sync::atomic::Ordering::Relaxed), 1);
    host.shut_down().await;
}

#[tokio::test]
async fn a_python_package_is_installed_and_its_code_is_what_it_is_now() {
    if everything("hosting_start::pyproject").is_none() {
        return;
    }
    let manifest = "[build-system]\nrequires = ['setuptools>=64']\nbuild-backend = 'setuptools.build_meta'\n\
                    [project]\nname = 'tiny'\nversion = '1'\n[project.scripts]\ntiny-server = 'tiny:main'\n";
    let code = "def main():\n    print('first', flush=True)\n    input()\n";
    let project =
        project(&[("pyproject.toml", manifest), ("src/tiny/__init__.py", code), (".venv/bin/tiny-server", "")]);
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let (progress, installed) = counting();
    let settings = stdio(text(&project.path().join(".venv/bin/tiny-server")), &[]);
    let mut server = start_counted(&host, settings.clone(), &progress).await.expect("it starts");
    assert_eq!(Talk::with(&mut server).line().await, "first");
    server.stop().await;
    std::fs::write(project.path().join("src/tiny/__init__.py"), code.replace("first", "second")).expect("a file");
    let uv = stdio("uv", &["--directory", text(project.path()), "run", "tiny-server"]);
    let mut server = start_counted(&host, uv, &progress).await.expect("it starts");
    assert_eq!(Talk::with(&mut server).line().await, "second");
    server.stop().await;
    assert_eq!(installed.load(std::sync::atomic::Ordering::Relaxed), 1);
    host.shut_down().await;
}

#[tokio::test]
async fn a_node_project_finds_its_packages_beside_its_code() {
    if everything("hosting_start::package_json").is_none() {
        return;
    }
    let manifest =
        r#"{"name": "tiny", "type": "module", "dependencies": {"ms": "2.1.3"}, "scripts": {"prepare": "exit 1"}}"#;
    let code = "import ms from 'ms'; console.log(ms(60000)); process.stdin.resume();";
    let project = project(&[("package.json", manifest), ("dist/index.js", code)]);
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let (progress, _) = counting();
    let mut settings = stdio("node", &[text(&project.path().join("dist/index.js"))]);
    for shared in [false, true] {
        settings.sandbox_settings.shared = shared;
        let mut server = start_counted(&host, settings.clone(), &progress).await.expect("it starts");
        assert_eq!(Talk::with(&mut server).line().await, "1m");
        server.stop().await;
    }
    host.shut_down().await;
}

#[tokio::test]
async fn many_starts_stops_and_crashes_leave_nothing() {
    let directory = project(&[("server.py", EVALUATOR)]);
    let cache = tempfile::tempdir().expect("a directory");
    let host = host(cache.path());
    let word = format!("cycle-{:x}", rand());
    let settings = stdio("python3", &[text(&directory.path().join("server.py")), &word]);
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("it is there").count();
    let cycle = async |number: usize| {
        let mut settings = settings.clone();
        settings.sandbox_settings.shared = number % 3 == 2;
        let mut server = start(&host, settings).await.expect("it starts");
        let sandbox = server.sandbox_id();
        let mut talk = Talk::with(&mut server);
        assert_eq!(talk.ask("1 + 1").await, "2");
        if number.is_multiple_of(2) {
            talk.input.write_all(b"os.kill(os.getpid(), 9)\n").await.expect("it reads");
            assert!(matches!(ended(&server).await, ProcessExit::Killed { signal: 9, .. }));
        }
        drop(talk);
        server.stop().await;
        assert!(!Path::new("/proc").join(sandbox).exists(), "the sandbox is gone");
    };
    cycle(2).await;
    let before = descriptors();
    for number in 0..24 {
        cycle(number).await;
    }
    assert!(!process::is_running(&word));
    // Other tests run beside this one, in the same process.
    wait_until("descriptors are left", || descriptors() <= before + 20);
    host.shut_down().await;
}

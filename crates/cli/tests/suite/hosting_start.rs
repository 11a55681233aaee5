//! Hosted servers in real sandboxes: start from an entry, isolation, installation of packages, and stop.

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

const TIMEOUT: Duration = Duration::from_secs(120);

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
    tokio::time::timeout(TIMEOUT, host.start(&entry(settings), &Progress::default()))
        .await
        .expect("the start ends in time")
}

/// Exchanges lines with a server.
struct Connection {
    input: ServerInput,
    output: BufReader<ServerOutput>,
}

impl Connection {
    fn with(server: &mut HostedServer) -> Self {
        let (input, output) = server.take_streams().expect("take the streams");
        Self { input, output: BufReader::new(output) }
    }

    async fn request(&mut self, line: &str) -> String {
        self.input.write_all(format!("{line}\n").as_bytes()).await.expect("send the line");
        self.line().await
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        tokio::time::timeout(TIMEOUT, read).await.expect("the server responds in time").expect("read a line");
        line.trim_end().to_owned()
    }
}

/// A server that evaluates each line as a Python expression.
const EVALUATOR: &str = "import sys, os\nfor line in sys.stdin:\n    print(eval(line), flush=True)\n";

fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
    project_in(Path::new("/tmp"), files)
}

fn project_in(parent: &Path, files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::Builder::new().prefix("ringfence-test-").tempdir_in(parent).expect("create a directory");
    for (name, content) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("the path has a parent")).expect("create a directory");
        std::fs::write(path, content).expect("write the file");
    }
    directory
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}

async fn wait_for_exit(server: &HostedServer) -> ProcessExit {
    tokio::time::timeout(TIMEOUT, server.wait_for_exit()).await.expect("the server exits in time")
}

#[tokio::test]
async fn hosted_server_sees_only_its_project_of_the_host() {
    let directory = project(&[("server.py", EVALUATOR), ("data/x", "in the project"), (".git/config", "not this")]);
    let other_directory = project(&[("secret", "a secret")]);
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let server_py = directory.path().join("server.py");
    let mut settings =
        stdio("python3", &[text(&server_py), &format!("--data={}", text(&directory.path().join("data")))]);
    settings.env.insert("TOKEN".into(), "of the entry".into());
    settings.env.insert("DATA".into(), text(&directory.path().join("data")).into());
    settings.sandbox_settings.env.insert("BOX".into(), "of the box".into());
    let mut server = start(&host, settings).await.expect("start the server");
    let mut connection = Connection::with(&mut server);
    assert_eq!(connection.request("sys.argv").await, "['/workspace/server.py', '--data=/workspace/data']");
    assert_eq!(connection.request("open(os.environ['DATA'] + '/x').read()").await, "in the project");
    assert_eq!(
        connection.request("sorted(os.environ)").await,
        "['BOX', 'DATA', 'HOME', 'LANG', 'PATH', 'TMPDIR', 'TOKEN', 'USER']"
    );
    assert_eq!(connection.request("sorted(os.listdir('/workspace'))").await, "['data', 'server.py']");
    let secret = format!("os.path.exists({:?})", other_directory.path().join("secret"));
    assert_eq!(connection.request(&secret).await, "False");
    assert_eq!(
        connection.request("os.path.exists('/etc/shadow'), os.path.exists('/home'), os.path.exists('/root')").await,
        "(False, False, False)"
    );
    let connect = "__import__('socket').socket().connect_ex(('127.0.0.1', 3128)), os.listdir('/sys/class/net') if os.path.exists('/sys') else []";
    assert_eq!(connection.request(connect).await, "(111, [])", "the sandbox has a network");
    assert_eq!(connection.request("open('/workspace/server.py', 'w').write('changed')").await, "7");
    assert_eq!(
        std::fs::read_to_string(&server_py).expect("read the file"),
        EVALUATOR,
        "the file of the host has changed"
    );
    server.stop().await;
    host.shut_down().await;
}

#[tokio::test]
async fn read_write_project_is_written_on_the_host() {
    let directory = project(&[("server.py", EVALUATOR)]);
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let mut settings = stdio("python3", &["server.py"]);
    settings.cwd = Some(directory.path().to_owned());
    settings.sandbox_settings.host_path_mode = HostPathMode::ReadWrite;
    let mut server = start(&host, settings).await.expect("start the server");
    let mut connection = Connection::with(&mut server);
    assert_eq!(connection.request("open('written', 'w').write('by the server')").await, "13");
    drop(connection);
    server.stop().await;
    assert_eq!(std::fs::read_to_string(directory.path().join("written")).expect("read the file"), "by the server");
    host.shut_down().await;
}

#[tokio::test]
async fn protected_name_created_by_server_is_recorded() {
    let directory = project(&[("server.py", EVALUATOR)]);
    let cache = tempfile::tempdir().expect("create a directory");
    let audit = Audit::in_memory();
    let host =
        Host::new(HostSettings { audit: audit.clone(), ..HostSettings::new(BINARY.into(), cache.path().to_owned()) });
    let mut settings = stdio("python3", &["server.py"]);
    settings.cwd = Some(directory.path().to_owned());
    settings.sandbox_settings.host_path_mode = HostPathMode::ReadWrite;
    let mut server = start(&host, settings).await.expect("start the server");
    let mut connection = Connection::with(&mut server);
    assert_eq!(connection.request("open('.envrc', 'w').write('evil')").await, "4");
    let is_reported = || server.stderr_tail().iter().any(|line| line.contains(".envrc was created in a volume"));
    let reported = tokio::time::timeout(TIMEOUT, async {
        while !is_reported() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    });
    reported.await.expect("the stderr tail reports the name");
    assert_eq!(connection.request("open('ringfence.toml', 'w').write('evil')").await, "4");
    drop(connection);
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
async fn failed_start_names_its_phase() {
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let missing = start(&host, stdio("no-such-program", &[])).await.err().expect("the start fails");
    assert_eq!((missing.phase, missing.is_transient), (Phase::ProcessStart, false), "{missing:?}");
    assert!(missing.message.contains("no-such-program") && !missing.hints.is_empty(), "{missing:?}");
    let refused = start(&host, stdio("python3", &["-c", "pass", "/home"])).await.err().expect("the start fails");
    assert_eq!((refused.phase, refused.is_transient), (Phase::SessionCreate, false), "{refused:?}");
    let mut settings = stdio("python3", &["-c", "pass"]);
    settings.sandbox_settings.image = Some("/no/such/image".into());
    let no_image = start(&host, settings).await.err().expect("the start fails");
    assert_eq!((no_image.phase, no_image.is_transient), (Phase::BoxUnavailable, false), "{no_image:?}");
    host.shut_down().await;
}

#[tokio::test]
async fn server_ignoring_sigterm_is_killed_with_its_children() {
    let marker = format!("unending-{:x}", rand());
    let script = format!(
        "import os, signal, subprocess, sys\n\
         signal.signal(signal.SIGTERM, signal.SIG_IGN)\n\
         for _ in range(3):\n    subprocess.Popen(['sh', '-c', 'trap \"\" TERM HUP; while :; do sleep 1; done', '{marker}'], start_new_session=True)\n\
         print('up', flush=True)\n\
         while True: signal.pause()\n"
    );
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let mut server = start(&host, stdio("python3", &["-c", &script])).await.expect("start the server");
    assert_eq!(Connection::with(&mut server).line().await, "up");
    assert!(process::is_running(&marker));
    server.stop().await;
    assert!(!process::is_running(&marker), "a process is left after the stop");
    let mut server = start(&host, stdio("python3", &["-c", &script])).await.expect("start the server");
    assert_eq!(Connection::with(&mut server).line().await, "up");
    drop(server);
    wait_until("a process is left after the drop", || !process::is_running(&marker));
    // Daemons do not outlive a server that exits.
    let short = script.replace("while True: signal.pause()", "sys.exit(7)");
    let server = start(&host, stdio("python3", &["-c", &short])).await.expect("start the server");
    assert_eq!(wait_for_exit(&server).await, ProcessExit::Exited(7));
    wait_until("a daemon is left", || !process::is_running(&marker));
    host.shut_down().await;
}

#[tokio::test]
async fn stderr_flood_neither_blocks_server_nor_fills_memory() {
    let script = "import sys\nfor number in range(200000): sys.stderr.write(f'line {number}\\n')\n\
                  sys.stderr.write('x' * (8 << 20))\nsys.stderr.flush()\nprint('done', flush=True)\nsys.stdin.read()";
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let mut server = start(&host, stdio("python3", &["-c", script])).await.expect("start the server");
    assert_eq!(Connection::with(&mut server).line().await, "done");
    let lines = server.stderr_tail();
    assert!(lines.len() <= 501 && lines.iter().map(String::len).sum::<usize>() < 1 << 20, "{}", lines.len());
    server.stop().await;
    host.shut_down().await;
}

#[tokio::test]
async fn exceeded_memory_limit_is_reported() {
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let mut settings = stdio("python3", &["-c", "x = []\nwhile True: x.append(bytearray(1 << 20))"]);
    settings.sandbox_settings.memory_mb = Some(64);
    let server = start(&host, settings).await.expect("start the server");
    assert_eq!(server.usage().memory_limit_bytes, Some(64 << 20));
    let exit = wait_for_exit(&server).await;
    assert!(
        matches!(
            exit,
            ProcessExit::Killed { is_out_of_memory: true, .. } | ProcessExit::SandboxLost { is_out_of_memory: true }
        ),
        "{exit:?}"
    );
    host.shut_down().await;
}

#[tokio::test]
async fn stop_of_server_in_shared_sandbox_spares_other_servers() {
    let directory = project(&[("server.py", EVALUATOR)]);
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let marker = format!("sharing-{:x}", rand());
    let mut settings = stdio("python3", &[text(&directory.path().join("server.py")), &marker]);
    settings.sandbox_settings.shared = true;
    let mut first = start(&host, settings.clone()).await.expect("start the server");
    let mut second = start(&host, settings).await.expect("start the server");
    assert_eq!(first.sandbox_id(), second.sandbox_id());
    let (mut to_first, mut to_second) = (Connection::with(&mut first), Connection::with(&mut second));
    let daemon = format!("daemon-{marker}");
    let fork = format!(
        "__import__('subprocess').Popen(['sh', '-c', 'while :; do sleep 1; done', '{daemon}'], start_new_session=True).pid > 0"
    );
    assert_eq!(to_first.request(&fork).await, "True");
    assert_eq!(to_second.request("os.getcwd() != '/workspace' and os.path.exists('server.py')").await, "True");
    assert_eq!(to_second.request("len(os.listdir('/workspace/.mcp'))").await, "2");
    drop(to_first);
    first.stop().await;
    assert!(!process::is_running(&daemon), "the daemon of the stopped server is left");
    assert_eq!(
        to_second.request("len(os.listdir('/workspace/.mcp'))").await,
        "1",
        "files of the stopped server are left"
    );
    drop(to_second);
    second.stop().await;
    assert!(!process::is_running(&marker), "the sandbox outlives its last server");
    host.shut_down().await;
}

#[tokio::test]
async fn entry_with_sandbox_false_runs_on_the_host() {
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let marker = format!("bare-{:x}", rand());
    // The full path, because the python3 of a version manager would add variables.
    let mut settings = stdio("/usr/bin/python3", &["-c", EVALUATOR, &marker]);
    settings.sandbox = false;
    settings.env.insert("TOKEN".into(), "x".into());
    let mut server = start(&host, settings).await.expect("start the server");
    let mut connection = Connection::with(&mut server);
    assert_eq!(connection.request("sorted(set(os.environ) - {'LC_CTYPE'})").await, "['HOME', 'PATH', 'TOKEN']");
    let fork = "__import__('subprocess').Popen(['sh', '-c', 'while :; do sleep 1; done', sys.argv[1]]).pid > 0";
    assert_eq!(connection.request(fork).await, "True");
    drop(connection);
    server.stop().await;
    wait_until("a process of its group is left", || !process::is_running(&marker));
    host.shut_down().await;
}

/// The variable that makes this test program a host of servers. Its value is the cache directory.
const HOST_CACHE_VARIABLE: &str = "RINGFENCE_TEST_HOST_IN";

/// The process that other tests start as another user, or kill: it hosts servers, and creates a file when they run.
#[test]
#[ignore = "a process of other tests"]
fn host_servers_for_another_test() {
    let cache = std::env::var_os(HOST_CACHE_VARIABLE).expect("the cache directory");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("start a runtime");
    runtime.block_on(async {
        let host = host(Path::new(&cache));
        let script = |marker: &str| {
            format!("import os, subprocess\nsubprocess.Popen(['sh', '-c', 'while :; do sleep 1; done', '{marker}'], start_new_session=True)\n{EVALUATOR}")
        };
        let marker = std::env::var("MARKER").expect("read MARKER");
        // In the cache directory, which the test removes, because this process may be killed.
        let directory = project_in(Path::new(&cache), &[("server.py", &script(&marker)), ("requirements.txt", "")]);
        let settings = stdio("python3", &[text(&directory.path().join("server.py"))]);
        let mut alone = start(&host, settings.clone()).await.expect("start the server");
        let mut shared = settings.clone();
        shared.sandbox_settings.shared = true;
        let mut shared = start(&host, shared).await.expect("start the server");
        let mut writing = settings;
        writing.sandbox_settings.host_path_mode = HostPathMode::ReadWrite;
        let mut writing = start(&host, writing).await.expect("start the server");
        for server in [&mut alone, &mut shared, &mut writing] {
            assert_eq!(Connection::with(server).request("open('new', 'w').write('x'), os.getuid()").await, "(1, 1000)");
        }
        assert_eq!(std::fs::read_to_string(directory.path().join("new")).expect("read the file"), "x");
        if std::env::var_os("STAY").is_some() {
            std::fs::write(Path::new(&cache).join("up"), "").expect("write the file");
            std::future::pending::<()>().await;
        }
        shared.stop().await;
        alone.stop().await;
        writing.stop().await;
        host.shut_down().await;
        std::fs::write(Path::new(&cache).join("done"), "").expect("write the file");
    });
}

/// Returns the command that starts this test program as a host of servers.
fn host_command(who: User, cache: &Path, marker: &str) -> std::process::Command {
    let program = std::env::current_exe().expect("the path of this program");
    // A copy, because other users may have no access to the target directory.
    let copy = cache.join("host");
    std::fs::copy(program, &copy).expect("copy the program");
    let mut command = who.program(&copy);
    command.args(["--exact", "hosting_start::host_servers_for_another_test", "--ignored", "--nocapture"]);
    command.env(HOST_CACHE_VARIABLE, cache).env("MARKER", marker);
    command
}

#[test]
fn every_user_can_host_servers() {
    for_each_user("every_user_can_host_servers", |who| {
        let cache = who.directory();
        let marker = format!("everyone-{:x}", rand());
        let output = host_command(who, cache.path(), &marker).output().expect("run the command");
        assert!(cache.path().join("done").exists(), "{who:?}: {output:?}");
        assert!(!process::is_running(&marker), "{who:?}");
    });
}

#[test]
fn killed_host_leaves_no_processes() {
    let cache = User::Root.directory();
    let marker = format!("killed-{:x}", rand());
    let mut child = host_command(User::Root, cache.path(), &marker).env("STAY", "1").spawn().expect("start the server");
    wait_until("the servers do not start", || cache.path().join("up").exists());
    assert!(process::is_running(&marker));
    child.kill().expect("kill the host");
    child.wait().expect("wait for the host");
    wait_until("a server is left", || !process::is_running(&marker));
}

#[tokio::test]
async fn server_reaches_only_allowed_addresses() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind a port");
    let address = listener.local_addr().expect("the address of the listener");
    let served = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut request = [0; 4096];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut request).await;
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\npage").await;
        }
    });
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let mut settings = stdio("python3", &["-c", EVALUATOR]);
    settings.sandbox_settings.allow = vec![address.to_string()];
    let mut server = start(&host, settings.clone()).await.expect("start the server");
    let mut connection = Connection::with(&mut server);
    // Not through the proxy variables, which exclude loopback addresses.
    let get = |authority: &str| {
        format!(
            "(lambda c: (c.request('GET', 'http://{authority}/'), c.getresponse().read())[1])(__import__('http.client').client.HTTPConnection('127.0.0.1', 3128))"
        )
    };
    assert_eq!(connection.request(&get(&address.to_string())).await, "b'page'");
    let refused = connection.request(&get("127.0.0.1:1")).await;
    assert!(refused.starts_with("b'") && refused != "b'page'", "{refused}");
    let tail = server.stderr_tail();
    assert!(tail.iter().any(|line| line.contains("egress to 127.0.0.1:1: ")), "{tail:?}");
    settings.sandbox_settings.allow = vec!["not a host".into()];
    let refused = start(&host, settings).await.err().expect("the start fails");
    assert_eq!((refused.phase, refused.hints.is_empty()), (Phase::SessionCreate, false), "{refused:?}");
    served.abort();
    host.shut_down().await;
}

/// Sends `initialize`; returns the name of the server.
async fn initialize(server: &mut HostedServer) -> String {
    let request = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"test","version":"1"}}}"#;
    let mut connection = Connection::with(server);
    let response = connection.request(request).await;
    let response: serde_json::Value =
        serde_json::from_str(&response).unwrap_or_else(|error| panic!("{error}: {response}"));
    response["result"]["serverInfo"]["name"].as_str().unwrap_or_else(|| panic!("{response}")).to_owned()
}

/// Returns the npm package of server-everything that `scripts/test` sets, or records a skip.
fn server_everything_package(test: &str) -> Option<String> {
    let package = std::env::var("RINGFENCE_TEST_SERVER_EVERYTHING").ok();
    if package.is_none() {
        skip(test, "RINGFENCE_TEST_SERVER_EVERYTHING is not set; ./scripts/test sets it");
    }
    package
}

/// Returns a progress callback, and the number of installations that it has seen.
fn counting_progress() -> (Progress, std::sync::Arc<std::sync::atomic::AtomicUsize>) {
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
        .expect("the start ends in time")
}

#[tokio::test]
async fn npm_server_is_installed_once_and_starts_offline() {
    let Some(everything) = server_everything_package("npm_server_is_installed_once_and_starts_offline") else { return };
    let cache = tempfile::tempdir().expect("create a directory");
    let (progress, installed) = counting_progress();
    let host = host(cache.path());
    let settings = stdio("npx", &["-y", &everything]);
    // Two concurrent starts install the package once.
    let (first, second) = tokio::join!(
        start_counted(&host, settings.clone(), &progress),
        start_counted(&host, settings.clone(), &progress)
    );
    for server in [first, second] {
        let mut server = server.expect("start the server");
        assert!(initialize(&mut server).await.contains("everything"));
        server.stop().await;
    }
    assert_eq!(installed.load(std::sync::atomic::Ordering::Relaxed), 1);
    let mut offline = settings;
    offline.sandbox_settings.network = false;
    let mut server = start_counted(&host, offline, &progress).await.expect("start without a network");
    assert!(initialize(&mut server).await.contains("everything"));
    server.stop().await;
    let left: Vec<_> =
        std::fs::read_dir(cache.path().join("packages/new")).expect("list the directory").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    host.shut_down().await;
}

#[tokio::test]
async fn installation_outlives_cancelled_start_and_ends_with_the_host() {
    let Some(everything) = server_everything_package("installation_outlives_cancelled_start_and_ends_with_the_host")
    else {
        return;
    };
    let cache = tempfile::tempdir().expect("create a directory");
    let first = host(cache.path());
    let settings = stdio("npx", &["-y", &everything]);
    let started = std::sync::Arc::new(tokio::sync::Notify::new());
    let installation_started = std::sync::Arc::clone(&started);
    let progress = Progress::new(move |_, step| {
        if step.starts_with("installing") {
            started.notify_one();
        }
    });
    let cancel_start = async |host: &Host| {
        let entry = entry(settings.clone());
        tokio::select! {
            _ = host.start(&entry, &progress) => panic!("the start has ended"),
            () = installation_started.notified() => {}
        }
    };
    cancel_start(&first).await;
    let (second_progress, installed) = counting_progress();
    let mut server = start_counted(&first, settings.clone(), &second_progress).await.expect("start the server");
    assert!(initialize(&mut server).await.contains("everything"));
    assert_eq!(installed.load(std::sync::atomic::Ordering::Relaxed), 0, "the package was installed again");
    server.stop().await;
    first.shut_down().await;
    let other_cache = tempfile::tempdir().expect("create a directory");
    let second = host(other_cache.path());
    cancel_start(&second).await;
    second.shut_down().await;
    let count = |part: &str| {
        std::fs::read_dir(other_cache.path().join("packages").join(part)).expect("list the directory").count()
    };
    wait_until("files of the installation are left", || count("new") == 0);
    assert_eq!(count("ready"), 0, "the installation was not cancelled");
}

#[tokio::test]
async fn failed_installation_reports_its_reason() {
    if server_everything_package("failed_installation_reports_its_reason").is_none() {
        return;
    }
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let (progress, _) = counting_progress();
    let result = start_counted(&host, stdio("npx", &["-y", "@ringfence-test/no-such-package-4711"]), &progress).await;
    let failure = result.err().expect("the package does not exist");
    assert_eq!((failure.phase, failure.is_transient), (Phase::DepInstall, false), "{failure:?}");
    assert!(failure.message.contains("npm exited with code") && failure.message.contains("404"), "{failure:?}");
    assert!(failure.message.chars().count() < 700, "{failure:?}");
    let mut offline = stdio("uvx", &["mcp-server-time"]);
    offline.sandbox_settings.network = false;
    let failure = start_counted(&host, offline, &progress).await.err().expect("the package is not installed");
    assert_eq!((failure.phase, failure.is_transient), (Phase::DepInstall, false), "{failure:?}");
    let project = project(&[("server.py", EVALUATOR), ("requirements.txt", "ringfence-test-no-such-package==4711\n")]);
    let settings = stdio("python3", &[text(&project.path().join("server.py"))]);
    let failure = start_counted(&host, settings, &progress).await.err().expect("the package does not exist");
    assert!(
        failure.message.contains("exited with code 1") && failure.message.contains("No matching distribution"),
        "{failure:?}"
    );
    let left: Vec<_> =
        std::fs::read_dir(cache.path().join("packages/ready")).expect("list the directory").flatten().collect();
    assert!(left.is_empty(), "{left:?}");
    wait_until("files of a failed installation are left", || {
        std::fs::read_dir(cache.path().join("packages/new")).expect("list the directory").count() == 0
    });
    host.shut_down().await;
}

#[tokio::test]
async fn requirements_of_python_project_are_installed() {
    if server_everything_package("requirements_of_python_project_are_installed").is_none() {
        return;
    }
    let project = project(&[
        ("server.py", EVALUATOR),
        ("requirements.txt", "-r requirements-base.txt\n"),
        ("requirements-base.txt", "iniconfig==2.0.0\n"),
    ]);
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let (progress, installed) = counting_progress();
    let settings = stdio("python3", &[text(&project.path().join("server.py"))]);
    for _ in 0..2 {
        let mut server = start_counted(&host, settings.clone(), &progress).await.expect("start the server");
        let mut connection = Connection::with(&mut server);
        assert_eq!(connection.request("__import__('importlib.metadata').metadata.version('iniconfig')").await, "2.0.0");
        // Servers cannot change installed packages.
        let write = "__import__('subprocess').call(['touch', __import__('iniconfig').__file__], stderr=-3) != 0";
        assert_eq!(connection.request(write).await, "True");
        drop(connection);
        server.stop().await;
    }
    assert_eq!(installed.load(std::sync::atomic::Ordering::Relaxed), 1);
    host.shut_down().await;
}

#[tokio::test]
async fn python_package_is_installed_once_and_runs_its_current_code() {
    if server_everything_package("python_package_is_installed_once_and_runs_its_current_code").is_none() {
        return;
    }
    let manifest = "[build-system]\nrequires = ['setuptools>=64']\nbuild-backend = 'setuptools.build_meta'\n\
                    [project]\nname = 'tiny'\nversion = '1'\n[project.scripts]\ntiny-server = 'tiny:main'\n";
    let code = "def main():\n    print('first', flush=True)\n    input()\n";
    let project =
        project(&[("pyproject.toml", manifest), ("src/tiny/__init__.py", code), (".venv/bin/tiny-server", "")]);
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let (progress, installed) = counting_progress();
    let settings = stdio(text(&project.path().join(".venv/bin/tiny-server")), &[]);
    let mut server = start_counted(&host, settings.clone(), &progress).await.expect("start the server");
    assert_eq!(Connection::with(&mut server).line().await, "first");
    server.stop().await;
    std::fs::write(project.path().join("src/tiny/__init__.py"), code.replace("first", "second"))
        .expect("write the file");
    let uv = stdio("uv", &["--directory", text(project.path()), "run", "tiny-server"]);
    let mut server = start_counted(&host, uv, &progress).await.expect("start the server");
    assert_eq!(Connection::with(&mut server).line().await, "second");
    server.stop().await;
    assert_eq!(installed.load(std::sync::atomic::Ordering::Relaxed), 1);
    host.shut_down().await;
}

#[tokio::test]
async fn node_project_finds_its_packages() {
    if server_everything_package("node_project_finds_its_packages").is_none() {
        return;
    }
    let manifest =
        r#"{"name": "tiny", "type": "module", "dependencies": {"ms": "2.1.3"}, "scripts": {"prepare": "exit 1"}}"#;
    let code = "import ms from 'ms'; console.log(ms(60000)); process.stdin.resume();";
    let project = project(&[("package.json", manifest), ("dist/index.js", code)]);
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let (progress, _) = counting_progress();
    let mut settings = stdio("node", &[text(&project.path().join("dist/index.js"))]);
    for shared in [false, true] {
        settings.sandbox_settings.shared = shared;
        let mut server = start_counted(&host, settings.clone(), &progress).await.expect("start the server");
        assert_eq!(Connection::with(&mut server).line().await, "1m");
        server.stop().await;
    }
    host.shut_down().await;
}

#[tokio::test]
async fn repeated_starts_stops_and_crashes_leak_nothing() {
    let directory = project(&[("server.py", EVALUATOR)]);
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let marker = format!("cycle-{:x}", rand());
    let settings = stdio("python3", &[text(&directory.path().join("server.py")), &marker]);
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("list the directory").count();
    let cycle = async |number: usize| {
        let mut settings = settings.clone();
        settings.sandbox_settings.shared = number % 3 == 2;
        let mut server = start(&host, settings).await.expect("start the server");
        let sandbox = server.sandbox_id();
        let mut connection = Connection::with(&mut server);
        assert_eq!(connection.request("1 + 1").await, "2");
        if number.is_multiple_of(2) {
            connection.input.write_all(b"os.kill(os.getpid(), 9)\n").await.expect("send the line");
            assert!(matches!(wait_for_exit(&server).await, ProcessExit::Killed { signal: 9, .. }));
        }
        drop(connection);
        server.stop().await;
        assert!(!Path::new("/proc").join(sandbox).exists(), "the sandbox is left");
    };
    cycle(2).await;
    let before = descriptors();
    for number in 0..24 {
        cycle(number).await;
    }
    assert!(!process::is_running(&marker));
    // Other tests may open descriptors in the same process.
    wait_until("descriptors are leaked", || descriptors() <= before + 20);
    host.shut_down().await;
}

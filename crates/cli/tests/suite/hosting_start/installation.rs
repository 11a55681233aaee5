//! Installation of the packages of hosted servers: from npm, for Python, and of projects on the host.

use ringfence_testkit::{skip, wait_until};

use super::*;

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

//! Hosts in a process of their own: as other users, and killed.

use ringfence_entries::HostPathMode;
use ringfence_testkit::{User, for_each_user, process, wait_until};

use super::*;

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
    command.args(["--exact", "hosting_start::host_process::host_servers_for_another_test", "--ignored", "--nocapture"]);
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

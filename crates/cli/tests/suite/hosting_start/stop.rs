//! Stops, crashes, floods and exceeded limits of hosted servers: nothing is left behind.

use ringfence_testkit::{process, wait_until};

use super::*;

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

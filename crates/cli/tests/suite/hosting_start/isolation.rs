//! A hosted server reaches its project, its variables and its hosts, and nothing else of the host.

use ringfence_core::AuditKind;
use ringfence_entries::HostPathMode;
use ringfence_store::Audit;
use ringfence_testkit::{process, wait_until};

use super::*;

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
        connection.request("sorted(name for name in os.environ if 'PROXY' not in name.upper())").await,
        "['BOX', 'DATA', 'HOME', 'LANG', 'PATH', 'TMPDIR', 'TOKEN', 'USER']"
    );
    assert_eq!(connection.request("sorted(os.listdir('/workspace'))").await, "['data', 'server.py']");
    let secret = format!("os.path.exists({:?})", other_directory.path().join("secret"));
    assert_eq!(connection.request(&secret).await, "False");
    assert_eq!(
        connection.request("os.path.exists('/etc/shadow'), os.path.exists('/home'), os.path.exists('/root')").await,
        "(False, False, False)"
    );
    let connect = "__import__('socket').socket().connect_ex(('192.0.2.1', 80)), os.listdir('/sys/class/net') if os.path.exists('/sys') else []";
    assert_eq!(connection.request(connect).await, "(101, [])", "the sandbox has a network");
    let fetch = "(lambda c: (c.request('GET', 'http://192.0.2.1/'), c.getresponse().status)[1])(__import__('http.client').client.HTTPConnection('127.0.0.1', 3128))";
    assert_eq!(connection.request(fetch).await, "403", "no rule allows a host");
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
    assert!(
        tail.iter().any(|line| line.contains("network: blocked 127.0.0.1:1, this port is not on the allow list")),
        "{tail:?}"
    );
    let lines = server.refused_hosts();
    assert!(lines.iter().any(|line| line.contains("ringfence allow server ")), "{lines:?}");
    server.allow(vec!["127.0.0.1:1".parse().expect("a rule")]).await.expect("the server has a network");
    assert_eq!(server.refused_hosts(), Vec::<String>::new());
    let allowed = connection.request(&get("127.0.0.1:1")).await;
    assert!(allowed.contains("cannot connect"), "the rule applies to the running server: {allowed}");
    settings.sandbox_settings.allow = vec!["not a host".into()];
    let refused = start(&host, settings).await.err().expect("the start fails");
    assert_eq!((refused.phase, refused.hints.is_empty()), (Phase::SessionCreate, false), "{refused:?}");
    served.abort();
    host.shut_down().await;
}

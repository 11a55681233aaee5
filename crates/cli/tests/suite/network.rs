//! `--network`: nothing without it, only what is allowed with it.

use ringfence_testkit::{for_each_user, run_python_as};
use std::io::{Read, Write};
use std::net::TcpListener;

/// A web server on the host's loopback address that answers every request the same way.
pub(crate) fn serve(answer: &'static str) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let port = listener.local_addr().expect("bound").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let length = answer.len();
            let _ = write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{answer}");
        }
    });
    port
}

const FETCH: &str = r"
import sys, urllib.request, urllib.error
try:
    print(urllib.request.urlopen(sys.argv[1] if len(sys.argv) > 1 else URL, timeout=10).read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
except OSError as error:
    print('failed:', error.reason if hasattr(error, 'reason') else error)
";

#[test]
fn an_allowed_host_is_reached_and_no_other() {
    let port = serve("allowed content");
    let other = serve("must not be seen");
    for_each_user("an_allowed_host", |who| {
        let allow = format!("allow=127.0.0.1:{port}");
        let verbose = format!("import os; os.environ['no_proxy'] = ''\nURL = 'http://127.0.0.1:{port}/'\n{FETCH}");
        let outcome = run_python_as(who, &["--network", &allow, "--verbose"], &verbose);
        assert!(outcome.stderr.contains(&format!("egress to 127.0.0.1:{port} allowed")), "{who:?}: {}", outcome.stderr);
        let fetch = |url: &str| run_python_as(who, &["--network", &allow], &format!("URL = '{url}'\n{FETCH}"));
        // Python goes around the proxy for loopback addresses, as NO_PROXY asks; here the host's are meant.
        let direct = |url: &str| {
            let program =
                format!("import os; os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\nURL = '{url}'\n{FETCH}");
            run_python_as(who, &["--network", &allow], &program)
        };
        let outcome = direct(&format!("http://127.0.0.1:{port}/"));
        assert_eq!(outcome.text(), "allowed content\n", "{who:?}: {}", outcome.stderr);
        let outcome = direct(&format!("http://127.0.0.1:{other}/"));
        assert!(outcome.text().starts_with("403 ringfence: "), "{who:?}: {}", outcome.text());
        assert!(
            outcome.text().contains(&format!("hint: allow it with --network allow=127.0.0.1:{other}")),
            "{who:?}: {}",
            outcome.text()
        );
        assert!(
            outcome.stderr.contains(&format!("egress to 127.0.0.1:{other} refused")),
            "{who:?}: {}",
            outcome.stderr
        );
        let outcome = fetch(&format!("http://127.0.0.1:{port}/"));
        assert!(outcome.text().contains("refused"), "{who:?}: without the proxy: {}", outcome.text());
    });
}

#[test]
fn without_a_network_nothing_is_reached() {
    let port = serve("must not be seen");
    for_each_user("without_a_network", |who| {
        let outcome = run_python_as(who, &[], &format!("URL = 'http://127.0.0.1:{port}/'\n{FETCH}"));
        assert!(outcome.text().contains("Connection refused"), "{who:?}: {}", outcome.text());
    });
}

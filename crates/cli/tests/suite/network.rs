//! The network of sandboxes: without rules no host can be reached, with them only the allowed ones. This file has the
//! tests of `ringfence run`.

mod attempts;
pub(crate) mod hosted;
mod questions;
pub(crate) mod reach;
mod refusals;
mod requests;
pub(crate) mod sessions;
pub(crate) mod test_network;

use ringfence_testkit::{for_each_user, run_python_as};
use std::io::{Read, Write};
use std::net::TcpListener;

/// Starts a web server on loopback that sends the same response to every request; returns its port.
pub(crate) fn serve(response: &'static str) -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("bind a port");
    let port = listener.local_addr().expect("the bound address").port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("accept a connection");
            let mut request = [0; 4096];
            let _ = stream.read(&mut request);
            let length = response.len();
            let _ =
                write!(stream, "HTTP/1.1 200 OK\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{response}");
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
fn only_allowed_hosts_are_reached() {
    let port = serve("allowed content");
    let other = serve("must not be seen");
    for_each_user("only_allowed_hosts_are_reached", |user| {
        let allow = format!("allow=127.0.0.1:{port}");
        let verbose = format!("import os; os.environ['no_proxy'] = ''\nURL = 'http://127.0.0.1:{port}/'\n{FETCH}");
        let outcome = run_python_as(user, &["--network", &allow, "--verbose"], &verbose);
        assert!(outcome.stderr.contains(&format!("network: allowed 127.0.0.1:{port}")), "{user:?}: {}", outcome.stderr);
        let fetch_without_proxy =
            |url: &str| run_python_as(user, &["--network", &allow], &format!("URL = '{url}'\n{FETCH}"));
        // NO_PROXY makes Python bypass the proxy for loopback addresses; here those of the host must be reached.
        let fetch_through_proxy = |url: &str| {
            let program =
                format!("import os; os.environ['no_proxy'] = os.environ['NO_PROXY'] = ''\nURL = '{url}'\n{FETCH}");
            run_python_as(user, &["--network", &allow], &program)
        };
        let outcome = fetch_through_proxy(&format!("http://127.0.0.1:{port}/"));
        assert_eq!(outcome.text(), "allowed content\n", "{user:?}: {}", outcome.stderr);
        let outcome = fetch_through_proxy(&format!("http://127.0.0.1:{other}/"));
        assert!(outcome.text().starts_with("403 ringfence: "), "{user:?}: {}", outcome.text());
        assert!(
            outcome.text().contains(&format!("hint: allow it with --network allow=127.0.0.1:{other}")),
            "{user:?}: {}",
            outcome.text()
        );
        assert!(
            outcome.stderr.contains(&format!("network: blocked 127.0.0.1:{other}")),
            "{user:?}: {}",
            outcome.stderr
        );
        let outcome = fetch_without_proxy(&format!("http://127.0.0.1:{port}/"));
        assert!(outcome.text().contains("refused"), "{user:?}: without the proxy: {}", outcome.text());
    });
}

#[test]
fn no_host_is_reached_without_network_option() {
    let port = serve("must not be seen");
    for_each_user("no_host_is_reached_without_network_option", |user| {
        let outcome = run_python_as(user, &[], &format!("URL = 'http://127.0.0.1:{port}/'\n{FETCH}"));
        assert!(outcome.text().contains("Connection refused"), "{user:?}: {}", outcome.text());
    });
}

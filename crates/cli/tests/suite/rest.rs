//! The REST routes, as a program that embeds ringfence uses them.

use std::net::TcpStream;

use serde_json::{Value, json};
use tungstenite::client::IntoClientRequest as _;
use tungstenite::{Message, WebSocket};

use ringfence_testkit::{Server, User, for_each_user, wait_until};

/// A program that embeds the server.
struct Embedder {
    server: Server,
}

impl Embedder {
    /// Sends a request; returns the status and the body.
    fn request(&self, request: &str, body: &Value) -> (u16, Value) {
        let headers = format!("Host: {}\r\nContent-Type: application/json\r\n", self.server.address);
        let body = if body.is_null() { String::new() } else { body.to_string() };
        let (status, body) = self.server.http(request, &headers, &body);
        (status, serde_json::from_str(&body).unwrap_or_else(|error| panic!("{request}: {error}: {body}")))
    }

    /// Sends a request; fails unless the response has this status.
    fn expect(&self, status: u16, request: &str, body: &Value) -> Value {
        let (actual, body) = self.request(request, body);
        assert_eq!(actual, status, "{request}: {body}");
        body
    }

    /// Creates a session; returns its path.
    fn create_session(&self, template: &str) -> String {
        let session = self.expect(201, "POST /v1/sessions", &json!({"template": template}));
        format!("/v1/sessions/{}", session["session_id"].as_str().expect("a session id"))
    }

    /// Starts a process; returns its path.
    fn start(&self, session: &str, process: &Value) -> String {
        let started = self.expect(201, &format!("POST {session}/processes"), process);
        format!("{session}/processes/{}", started["pid"])
    }

    /// Connects to the WebSocket of a process, or returns the status of the refusal.
    fn connect(&self, process: &str) -> Result<WebSocket<TcpStream>, u16> {
        let mut request = format!("ws://{}{process}/ws", self.server.address).into_client_request().expect("a request");
        request.headers_mut().insert("sec-websocket-protocol", "mcp".parse().expect("a header value"));
        let stream = TcpStream::connect(&self.server.address).expect("connect to the server");
        match tungstenite::client(request, stream) {
            Ok((socket, response)) => {
                assert_eq!(response.headers()["sec-websocket-protocol"], "mcp");
                Ok(socket)
            }
            Err(tungstenite::HandshakeError::Failure(tungstenite::Error::Http(response))) => {
                Err(response.status().as_u16())
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Reads the next line.
fn text(socket: &mut WebSocket<TcpStream>) -> String {
    loop {
        match socket.read().expect("read from the open socket") {
            Message::Text(text) => return text.to_string(),
            Message::Ping(_) => {}
            other => panic!("{other:?}"),
        }
    }
}

/// Reads up to the close frame; returns its code and its reason.
fn closing(socket: &mut WebSocket<TcpStream>) -> (u16, String) {
    loop {
        match socket.read().expect("read up to the close frame") {
            Message::Close(Some(frame)) => return (frame.code.into(), frame.reason.to_string()),
            Message::Close(None) => panic!("the close frame has no reason"),
            _ => {}
        }
    }
}

fn for_each_embedder(test: &str, check: impl Fn(&Embedder)) {
    for_each_user(test, |user| check(&Embedder { server: Server::start_as(user, &[], &[]) }));
}

#[test]
fn sessions_are_created_used_and_ended() {
    for_each_embedder("sessions_are_created_used_and_ended", |embedder| {
        let session = embedder.create_session("python");
        let listed = embedder.expect(200, "GET /v1/sessions", &Value::Null);
        assert_eq!(listed["sessions"].as_array().map(Vec::len), Some(1));
        embedder.expect(200, &format!("POST {session}/exec"), &json!({"code": "x = 41"}));
        let response = embedder.expect(200, &format!("POST {session}/exec"), &json!({"code": "x + 1", "timeout": 20}));
        assert_eq!(
            (&response["result"], &response["status"], &response["session_created"]),
            (&json!("42"), &json!("ok"), &json!(false))
        );
        let response = embedder.expect(200, &format!("POST {session}/exec"), &json!({"command": "echo out; exit 3"}));
        assert_eq!((&response["stdout"], &response["exit_code"]), (&json!("out\n"), &json!(3)));
        assert_eq!(embedder.expect(200, &format!("GET {session}"), &Value::Null)["status"], "idle");
        assert_eq!(embedder.expect(200, &format!("DELETE {session}"), &Value::Null)["was_running"], false);

        // The responses for an ended and for an unknown session are equal.
        let ended = embedder.expect(404, &format!("GET {session}"), &Value::Null);
        let id = session.rsplit('/').next().expect("a session id");
        let unknown = embedder.expect(404, "GET /v1/sessions/session-0", &Value::Null).to_string();
        assert_eq!(ended.to_string().replace(id, "session-0"), unknown);
        assert_eq!(ended["error_code"], "SESSION_NOT_FOUND");
    });
}

#[test]
fn invalid_requests_are_refused_with_the_reason() {
    let embedder = Embedder { server: Server::start(&[], &[]) };
    let session = embedder.create_session("bash");
    for (status, request, body) in [
        (400, "POST /v1/sessions".to_owned(), json!({"template": "perl"})),
        (400, "POST /v1/sessions".to_owned(), json!({"templates": "bash"})),
        (400, "POST /v1/sessions".to_owned(), json!(["bash", "small"])),
        (400, format!("POST {session}/exec"), json!({})),
        (400, format!("POST {session}/exec"), json!({"code": "1", "command": "true"})),
        (400, format!("POST {session}/exec"), json!({"code": "1", "timeout": 1_000_000})),
        (400, format!("POST {session}/processes"), json!({"argv": []})),
        (400, format!("POST {session}/processes"), json!({"argv": ["no-such-program"]})),
        (400, format!("POST {session}/processes"), json!({"argv": ["true"], "env": {"A=B": "c"}})),
        (400, format!("POST {session}/processes"), json!({"argv": ["true"], "workdir": "../etc"})),
        (400, format!("POST {session}/processes"), json!({"argv": ["true", "x".repeat(70_000)]})),
        (404, format!("GET {session}/processes/7"), Value::Null),
        (404, format!("GET {session}/processes/x"), Value::Null),
        (404, format!("GET {session}/files/none"), Value::Null),
        (400, format!("GET {session}/files/%2e%2e/%2e%2e/etc/passwd"), Value::Null),
        (400, format!("GET {session}/files/a%00b"), Value::Null),
        (404, "GET /v1/else".to_owned(), Value::Null),
        (405, "PATCH /v1/sessions".to_owned(), Value::Null),
        (404, "GET /v1/sessions/%ff".to_owned(), Value::Null),
        (400, format!("GET {session}/files/x?offset=-1"), Value::Null),
        (400, format!("GET {session}/processes/1/ws"), Value::Null),
    ] {
        let refusal = embedder.expect(status, &request, &body);
        for field in ["error", "error_code", "category", "severity", "recovery_suggestions", "context"] {
            assert!(!refusal[field].is_null(), "{request}: {refusal}");
        }
    }
}

#[test]
fn unknown_query_parameters_are_refused_without_effect() {
    let embedder = Embedder { server: Server::start(&[], &[]) };
    let session = embedder.create_session("bash");
    let file = format!("{session}/files/a.txt");
    let put = |query: &str, more: &str, body: &str| {
        let headers = format!("Host: {}\r\n{more}", embedder.server.address);
        embedder.server.http(&format!("PUT {file}{query}"), &headers, body)
    };
    assert_eq!(put("", "", "0123456789").0, 200);
    for (query, more) in
        [("?offset=4", ""), ("?offset=4&length=2", ""), ("?append", ""), ("", "Content-Range: bytes 4-5/10\r\n")]
    {
        let (status, body) = put(query, more, "xx");
        assert_eq!(status, 400, "{query} {more}: {body}");
    }
    let read = |query: &str| {
        let headers = format!("Host: {}\r\n", embedder.server.address);
        embedder.server.http(&format!("GET {file}{query}"), &headers, "")
    };
    assert_eq!(read(""), (200, "0123456789".into()), "a refused write changed the file");
    assert_eq!(read("?offset=4&length=2"), (200, "45".into()));
    for request in [
        format!("GET {file}?offset=1&limit=1"),
        format!("GET {session}/files/?offset=1"),
        format!("GET {session}?verbose=1"),
        format!("DELETE {session}?force=false"),
        format!("POST {session}/exec?timeout=1"),
        format!("GET {session}/processes?all=1"),
        "GET /v1/sessions?principal=other".to_owned(),
        "GET /v1/servers?limit=1".to_owned(),
    ] {
        let refusal = embedder.expect(400, &request, &Value::Null);
        assert!(refusal["error"].as_str().is_some_and(|error| !error.is_empty()), "{request}: {refusal}");
    }
    embedder.expect(200, &format!("GET {session}"), &Value::Null);
}

#[test]
fn requests_without_token_or_with_foreign_host_or_origin_are_refused() {
    let server = Server::start(&[], &[("RINGFENCE_AUTH_TOKEN", "a-long-secret")]);
    let (host, token) = (format!("Host: {}\r\n", server.address), "Authorization: Bearer a-long-secret\r\n");
    for (headers, expected) in [
        (format!("{host}{token}"), 200),
        (host.clone(), 401),
        (format!("Host: evil.example\r\n{token}"), 403),
        (format!("{host}{token}Origin: http://evil.example\r\n"), 403),
    ] {
        assert_eq!(server.http("GET /v1/sessions", &headers, "").0, expected, "{headers}");
    }
}

#[test]
fn file_contents_are_transferred_unchanged() {
    for_each_embedder("file_contents_are_transferred_unchanged", |embedder| {
        let session = embedder.create_session("bash");
        let host = format!("Host: {}\r\n", embedder.server.address);
        let content: Vec<u8> = (0..5_000_000_u32).map(|number| number.to_le_bytes()[1]).collect();
        let (status, response) = embedder.server.http_bytes(&format!("PUT {session}/files/a/b%20c"), &host, &content);
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&response));
        let (status, read) = embedder.server.http_bytes(&format!("GET {session}/files/a/b%20c"), &host, b"");
        assert!(status == 200 && read == content);
        let (_, part) =
            embedder.server.http_bytes(&format!("GET {session}/files/a/b%20c?offset=256&length=2"), &host, b"");
        assert_eq!(part, [1, 1]);
        let listed = embedder.expect(200, &format!("GET {session}/files/a/"), &Value::Null);
        assert_eq!((&listed["entries"][0]["name"], &listed["entries"][0]["size"]), (&json!("b c"), &json!(5_000_000)));
        // A file name that is not UTF-8.
        let (status, _) = embedder.server.http_bytes(&format!("PUT {session}/files/x%ff"), &host, b"odd");
        assert_eq!(status, 200);
        let response = embedder.expect(200, &format!("POST {session}/exec"), &json!({"command": "cat x$'\\xff'"}));
        assert_eq!(response["stdout"], "odd", "{response}");
        let too_large = vec![0; (16 << 20) + 1];
        let (status, response) = embedder.server.http_bytes(&format!("PUT {session}/files/large"), &host, &too_large);
        assert!(status == 413 && String::from_utf8_lossy(&response).contains("16777216"), "{status}");
    });
}

#[test]
fn process_exchanges_lines_over_a_websocket() {
    for_each_embedder("process_exchanges_lines_over_a_websocket", |embedder| {
        let session = embedder.create_session("bash");
        let process = json!({"argv": ["python3", "-uc", "import os, sys\nfor line in sys.stdin: print(os.environ['PREFIX'], os.getcwd(), line, end='')"],
            "env": {"PREFIX": "echo"}, "workdir": "/tmp"});
        let process = embedder.start(&session, &process);
        let mut socket = embedder.connect(&process).expect("connect to the process");
        for line in ["one", "zwei ü", ""] {
            socket.send(line.into()).expect("send a line");
            assert_eq!(text(&mut socket), format!("echo /tmp {line}"));
        }
        assert_eq!(embedder.connect(&process).err(), Some(429), "only one connection is allowed");
        // A call can run at the same time.
        let response = embedder.expect(200, &format!("POST {session}/exec"), &json!({"command": "pgrep -c python3"}));
        assert_eq!(response["stdout"], "1\n", "{response}");
        socket.close(None).expect("close the socket");
        while socket.read().is_ok() {}
        // The process continues, and the next connection uses the same process.
        let mut socket = loop {
            match embedder.connect(&process) {
                Ok(socket) => break socket,
                Err(status) => assert_eq!(status, 429),
            }
        };
        socket.send("again".into()).expect("send a line");
        assert_eq!(text(&mut socket), "echo /tmp again");
        let ended = embedder.expect(200, &format!("DELETE {process}"), &Value::Null);
        assert_eq!((&ended["status"], &ended["exit_code"]), (&json!("exited"), &json!(128 + 15)));
        assert_eq!(closing(&mut socket), (1000, "the process exited with code 143".into()));
        embedder.expect(404, &format!("GET {process}"), &Value::Null);
    });
}

#[test]
fn process_numbers_are_not_reused_after_the_server_dies() {
    let embedder = Embedder { server: Server::start(&[], &[]) };
    let session = embedder.create_session("bash");
    let process = embedder.start(&session, &json!({"argv": ["sleep", "100"]}));
    let state = embedder.server.kill();
    let embedder = Embedder { server: Server::start_in(User::Root, state, &[], &[]) };
    let next = embedder.start(&session, &json!({"argv": ["sleep", "100"]}));
    assert_ne!(process, next);
    embedder.expect(404, &format!("DELETE {process}"), &Value::Null);
    embedder.expect(200, &format!("DELETE {next}"), &Value::Null);
}

#[test]
fn session_with_a_connected_process_is_not_idle() {
    let server = Server::start(&[], &[("RINGFENCE_SESSIONS_IDLE_TIMEOUT_S", "1")]);
    let embedder = Embedder { server };
    let session = embedder.create_session("bash");
    let process = embedder.start(&session, &json!({"argv": ["cat"]}));
    let mut socket = embedder.connect(&process).expect("connect to the process");
    // Idle sessions that are created later expire first.
    for _ in 0..2 {
        let idle = embedder.create_session("bash");
        wait_until("the idle session did not expire", || {
            embedder.request(&format!("GET {idle}"), &Value::Null).0 == 404
        });
    }
    socket.send("still connected".into()).expect("send a line");
    assert_eq!(text(&mut socket), "still connected");
    socket.close(None).expect("close the socket");
    while socket.read().is_ok() {}
    wait_until("the session did not expire", || embedder.request(&format!("GET {session}"), &Value::Null).0 == 404);
}

#[test]
fn end_of_a_process_is_reported() {
    for_each_embedder("end_of_a_process_is_reported", |embedder| {
        let session = embedder.create_session("bash");
        let command = "seq 1 100000 >&2; echo last; exit 7";
        let process = embedder.start(&session, &json!({"command": command}));
        let mut socket = embedder.connect(&process).expect("connect to the process");
        assert_eq!(text(&mut socket), "last");
        assert_eq!(closing(&mut socket), (1000, "the process exited with code 7".into()));
        let info = embedder.expect(200, &format!("GET {process}"), &Value::Null);
        assert_eq!((&info["status"], &info["exit_code"]), (&json!("exited"), &json!(7)));
        let tail = info["stderr_tail"].as_str().expect("the end of stderr");
        assert!(tail.ends_with("\n99999\n100000\n") && tail.len() == 64 << 10, "{}", tail.len());

        // The processes of a session end with it.
        let process = embedder.start(&session, &json!({"argv": ["sleep", "1000"]}));
        let mut socket = embedder.connect(&process).expect("connect to the process");
        embedder.expect(200, &format!("DELETE {session}"), &Value::Null);
        assert_eq!(closing(&mut socket).0, 1000);
        embedder.expect(404, &format!("GET {process}"), &Value::Null);
    });
}

#[test]
fn processes_are_bounded() {
    let embedder = Embedder { server: Server::start(&[], &[]) };
    let session = embedder.create_session("bash");
    // Without a reader, the process blocks on its full pipe; a later reader gets all lines.
    let flood = "pad=$(printf %0200d 0); for i in $(seq 1 20000); do echo \"$i $pad\"; echo \"$i\" > reached; done";
    let flood = json!({"command": flood});
    let process = embedder.start(&session, &flood);
    // The pause is long enough for many lines: the process writes thousands per second while it is not blocked.
    let reached = || {
        let response = embedder.expect(
            200,
            &format!("POST {session}/exec"),
            &json!({"command": "cat reached 2>/dev/null; sleep 0.2"}),
        );
        response["stdout"].as_str().and_then(|text| text.trim().parse::<u32>().ok())
    };
    let mut before = reached();
    loop {
        let now = reached();
        if now.is_some() && now == before {
            break;
        }
        before = now;
    }
    assert!(before.is_some_and(|line| line < 2000), "the process must block on its full pipe: {before:?}");
    let mut socket = embedder.connect(&process).expect("connect to the process");
    for expected in 1..=20_000 {
        assert_eq!(text(&mut socket).split(' ').next(), Some(expected.to_string().as_str()));
    }
    assert_eq!(closing(&mut socket).0, 1000);

    let process = embedder
        .start(&session, &json!({"command": "head -c 3M /dev/zero | tr '\\0' x; echo; echo after; sleep 1000"}));
    let mut socket = embedder.connect(&process).expect("connect to the process");
    assert_eq!(closing(&mut socket), (1009, "a line is longer than 1 MiB".into()));
    drop(socket);
    let mut socket = loop {
        if let Ok(socket) = embedder.connect(&process) {
            break socket;
        }
    };
    assert_eq!(text(&mut socket), "after");
    socket.send("x".repeat((1 << 20) + 1).into()).expect("send a line");
    assert_eq!(closing(&mut socket), (1009, "a line is longer than 1 MiB".into()));

    for _ in 0..15 {
        embedder.start(&session, &json!({"argv": ["sleep", "1000"]}));
    }
    let refusal = embedder.expect(429, &format!("POST {session}/processes"), &json!({"argv": ["sleep", "1000"]}));
    assert_eq!(refusal["error_code"], "RESOURCE_LIMIT_EXCEEDED");
}

/// Arguments and variables reach the guest unchanged and do not affect the programs that start it.
#[test]
fn special_characters_in_arguments_and_variables_reach_only_the_guest() {
    let embedder = Embedder { server: Server::start(&[], &[]) };
    let session = embedder.create_session("bash");
    let odd = "a b; echo $(id) `id` 'x' \"y\" \\ * \n--flag \u{1b}[31m é";
    let environment =
        json!({"ODD": odd, "LD_PRELOAD": "/workspace/no-such.so", "PATH": "/usr/bin:/bin", "BASH_ENV": "/workspace/x"});
    let script = "import os, sys; print(repr(sys.argv[1] == os.environ['ODD']), len(sys.argv))";
    let process = json!({"argv": ["python3", "-I", "-c", script, odd], "env": environment});
    let process = embedder.start(&session, &process);
    let mut socket = embedder.connect(&process).expect("connect to the process");
    assert_eq!(text(&mut socket), "True 2");
    for bad in [
        json!({"argv": ["true", "a\0b"]}),
        json!({"argv": ["true"], "env": {"A=B": "x"}}),
        json!({"argv": ["true"], "env": {"A": "x\0y"}}),
        json!({"argv": [""]}),
        json!({"argv": ["true"], "workdir": "/workspace/../etc"}),
    ] {
        let (status, body) = embedder.request(&format!("POST {session}/processes"), &bad);
        assert!((400..500).contains(&status), "{bad}: {status} {body}");
    }
    // The environment of the init does not change.
    let response = embedder.expect(
        200,
        &format!("POST {session}/exec"),
        &json!({"command": "echo ${ODD-unset} ${LD_PRELOAD-unset}"}),
    );
    assert_eq!(response["stdout"], "unset unset\n");
}

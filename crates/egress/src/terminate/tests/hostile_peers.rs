//! Guests and servers that try to get around the checks, or that use up memory.

use std::time::Duration;

use super::*;

/// Runs a terminator for plain HTTP; returns the ends of the client and of the server.
fn open_plain(terminator: Terminator) -> (DuplexStream, DuplexStream) {
    let ((client, proxy_client), (proxy_server, server)) = (duplex(64 * 1024), duplex(64 * 1024));
    tokio::spawn(async move {
        let (mut from_client, mut to_client) = split(proxy_client);
        let _ = terminator.run(false, &[], &mut from_client, &mut to_client, proxy_server).await;
    });
    (client, server)
}

async fn read_head(stream: &mut DuplexStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        assert!(stream.read_buf(&mut head).await.unwrap() > 0, "{}", String::from_utf8_lossy(&head));
    }
    String::from_utf8(head).unwrap()
}

#[tokio::test]
async fn value_in_reason_phrase_is_not_passed_on() {
    let secret = definition_for_tests("github", VALUE, &["a.com+private"], &[Location::Header]);
    let setup = Setup::new(&["a.com+private"], &[secret], &[]);
    let address = Some("10.0.0.1".parse().unwrap());
    let (mut client, mut server) = open_plain(Terminator { address, ..setup.terminator("a.com:80") });
    let request = format!("GET / HTTP/1.1\r\nHost: a.com\r\nX-Key: {}\r\n\r\n", setup.placeholder());
    client.write_all(request.as_bytes()).await.unwrap();
    assert!(read_head(&mut server).await.contains(VALUE));
    let response = format!("HTTP/1.1 404 {VALUE} not found\r\nContent-Length: 0\r\nX-Key: {VALUE}\r\n\r\n");
    server.write_all(response.as_bytes()).await.unwrap();
    let response = read_head(&mut client).await;
    assert!(response.starts_with("HTTP/1.1 404 ") && response.contains(&setup.placeholder()), "{response}");
    assert!(!response.contains(VALUE), "{response}");
}

#[tokio::test]
async fn length_of_chunked_request_hides_no_other_request() {
    let setup = Setup::new(&["a.com method=POST"], &[], &[]);
    let delete = "DELETE / HTTP/1.1\r\nHost: a.com\r\n\r\n";
    let chunk = format!("{:x}\r\n{delete}\r\n0\r\n\r\n", delete.len());
    for (length, chunks) in [(0, chunk.as_str()), (99, "0\r\n\r\n")] {
        let (mut client, mut server) = open_plain(setup.terminator("a.com:80"));
        let framing = format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}");
        let request = format!("POST / HTTP/1.1\r\nHost: a.com\r\n{framing}{delete}");
        client.write_all(request.as_bytes()).await.unwrap();
        client.shutdown().await.unwrap();
        let head = read_head(&mut server).await;
        assert!(head.starts_with("POST / "), "{head}");
        let _ = server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await;
        let mut rest = String::new();
        server.read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "", "{length}");
    }
}

#[tokio::test]
async fn plain_request_to_address_names_no_host_with_checks() {
    let setup = Setup::new(&["1.1.1.1", "a.com method=GET", "b.com"], &[], &[]);
    for (host, status) in [("a.com", 400), ("b.com", 200)] {
        let terminator = Terminator { credentials: None, ..setup.terminator("1.1.1.1:80") };
        assert!(terminator.is_needed(ClientProtocol::Http).unwrap());
        let (mut client, mut server) = open_plain(terminator);
        client.write_all(format!("DELETE / HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).await.unwrap();
        if status == 200 {
            assert!(read_head(&mut server).await.contains("b.com"));
            server.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await.unwrap();
        }
        let response = read_until(&mut client, "\r\n\r\n").await;
        assert!(response.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {response}");
    }
}

async fn read_until(stream: &mut DuplexStream, text: &str) -> String {
    let mut received = Vec::new();
    while !String::from_utf8_lossy(&received).contains(text) {
        assert!(stream.read_buf(&mut received).await.unwrap() > 0);
    }
    String::from_utf8_lossy(&received).into_owned()
}

#[tokio::test]
async fn responses_that_guest_does_not_read_take_little_memory() {
    let setup = Setup::new(&["a.com"], &[github(&[Location::Header])], &[HTTP_2]);
    let io = TokioIo::new(setup.open_tls("a.com:443", HTTP_2).await);
    let mut client = hyper::client::conn::http2::Builder::new(TokioExecutor::new());
    let client = client.initial_connection_window_size(65_535).initial_stream_window_size(65_535);
    let (sender, connection) = client.handshake(io).await.unwrap();
    tokio::spawn(connection);
    let mut unread = Vec::new();
    for _ in 0..8 {
        let request = Request::builder().uri("https://a.com/endless").body(text("")).unwrap();
        unread.push(sender.clone().send_request(request).await.unwrap());
    }
    // The server sends until the window of the connection is full.
    let mut sent = 0;
    for _ in 0..200 {
        tokio::time::sleep(Duration::from_millis(50)).await;
        let before = std::mem::replace(&mut sent, setup.server.sent.load(Ordering::Relaxed));
        if sent > 0 && sent == before {
            break;
        }
    }
    assert!(sent > 0 && sent < 2 << 20, "{sent} bytes");
}

use tokio::io::{BufReader, duplex};

use super::*;
use crate::decision::{Decision, DecisionLog};
use crate::tls::{client_hello, client_hello_in_one_byte_records, client_hello_without_name};

/// Sends `bytes` through a tunnel and ends; returns the bytes that the server received, and the result.
async fn send(target: &str, bytes: &[u8]) -> (Vec<u8>, Result<Ended, TunnelError>) {
    let (policy, limits) = (Policy::parse(["a.com:*", "10.0.0.1:*"]).unwrap(), Limits::default());
    let target = &HostPort::parse(target, None).unwrap();
    let tunnel = Tunnel { policy: &policy, limits: &limits, target, terminator: None };
    let (proxy_end, mut server) = duplex(64 * 1024);
    let mut client = bytes;
    let mut response = Vec::new();
    let mut received = Vec::new();
    let (result, ()) = tokio::join!(async { tunnel.run(&mut client, &mut response, proxy_end).await }, async {
        server.read_to_end(&mut received).await.unwrap();
        server.shutdown().await.unwrap();
    });
    (received, result)
}

#[tokio::test]
async fn tls_to_tunnel_host_passes() {
    for target in ["a.com:443", "a.com:8443", "10.0.0.1:443"] {
        let bytes = [client_hello("A.com").as_slice(), b"more"].concat();
        let (received, result) = send(target, &bytes).await;
        assert!(result.is_ok(), "{target}");
        assert_eq!(received, bytes, "{target}");
    }
}

#[tokio::test]
async fn tls_to_other_hosts_is_refused() {
    for target in ["a.com:443", "a.com:8443", "10.0.0.1:443"] {
        for name in ["evil.org", "sub.a.com", "a.com\0.evil.org", ""] {
            let (received, result) = send(target, &client_hello(name)).await;
            assert!(matches!(result, Err(TunnelError::Refused(Refusal::SniMismatch))), "{target} {name:?}");
            assert_eq!(received, b"", "{target} {name:?}");
        }
    }
}

#[tokio::test]
async fn tls_without_server_name_passes_to_addresses_only() {
    for target in ["a.com:443", "a.com:80", "a.com:8443"] {
        let (received, result) = send(target, &client_hello_without_name()).await;
        assert!(matches!(result, Err(TunnelError::Refused(Refusal::NoSni))), "{target}");
        assert_eq!(received, b"", "{target}");
    }
    let (received, result) = send("10.0.0.1:443", &client_hello_without_name()).await;
    assert!(result.is_ok());
    assert_eq!(received, client_hello_without_name());
}

#[tokio::test]
async fn fragmented_client_hellos_are_joined() {
    let (received, result) = send("a.com:443", &client_hello_in_one_byte_records("a.com")).await;
    assert!(result.is_ok());
    assert_eq!(received, client_hello_in_one_byte_records("a.com"));
    let (received, result) = send("a.com:443", &client_hello_in_one_byte_records("evil.org")).await;
    assert!(matches!(result, Err(TunnelError::Refused(Refusal::SniMismatch))));
    assert_eq!(received, b"");
}

#[tokio::test]
async fn plain_requests_to_tunnel_host_pass() {
    let first = "POST /1 HTTP/1.1\r\nHost: a.com\r\nContent-Length: 2\r\n\r\nok";
    let second = "GET /2 HTTP/1.1\r\nHost: a.com\r\n\r\n";
    let (received, result) = send("a.com:80", format!("{first}{second}").as_bytes()).await;
    assert!(result.is_ok());
    let received = String::from_utf8(received).unwrap();
    let counts = (received.matches("Host: a.com\r\n").count(), received.matches("/2").count());
    assert_eq!(counts, (2, 1), "{received}");
}

#[tokio::test]
async fn plain_requests_to_other_hosts_are_refused() {
    let good = "GET / HTTP/1.1\r\nHost: a.com\r\n\r\n";
    for target in ["a.com:80", "a.com:8080", "10.0.0.1:80"] {
        for bad in [
            "GET / HTTP/1.1\r\nHost: evil.org\r\n\r\n",
            "\r\nGET / HTTP/1.1\r\nHost: evil.org\r\n\r\n",
            "GET / HTTP/1.1\nHost: evil.org\n\n",
            "GET http://evil.org/ HTTP/1.1\r\nHost: a.com\r\n\r\n",
            "CONNECT evil.org:443 HTTP/1.1\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        ] {
            let (received, result) = send(target, bad.as_bytes()).await;
            assert!(matches!(result, Err(TunnelError::RefusedRequest(_))), "{target} {bad:?} {result:?}");
            assert_eq!(received, b"", "{target} {bad:?}");
            let (received, result) = send(target, format!("{good}{bad}").as_bytes()).await;
            assert!(matches!(result, Err(TunnelError::Refused(_))), "{target} {bad:?} {result:?}");
            assert!(!String::from_utf8_lossy(&received).contains("evil.org"), "{target} {bad:?}");
        }
    }
}

#[tokio::test]
async fn other_protocols_pass_on_other_ports_only() {
    for bytes in [&b"EHLO me\r\n"[..], b"hello", b"\0\0\0\x08", b"{}"] {
        let (received, result) = send("a.com:80", bytes).await;
        assert!(matches!(result, Err(TunnelError::RefusedRequest(Refusal::NotHttp))), "{bytes:?}");
        assert_eq!(received, b"", "{bytes:?}");
        let (received, result) = send("a.com:2525", bytes).await;
        assert!(result.is_ok(), "{bytes:?}");
        assert_eq!(received, bytes);
    }
}

/// Sends each piece, followed by a pause, to a server that never responds.
async fn send_in_pieces(target: &str, pieces: &[&[u8]]) -> (Vec<u8>, Result<Ended, TunnelError>) {
    let (policy, limits) = (Policy::default(), Limits::default());
    let target = &HostPort::parse(target, None).unwrap();
    send_pieces_through(&Tunnel { policy: &policy, limits: &limits, target, terminator: None }, pieces).await
}

async fn send_pieces_through(tunnel: &Tunnel<'_>, pieces: &[&[u8]]) -> (Vec<u8>, Result<Ended, TunnelError>) {
    let ((client, mut guest), (server, mut server_end)) = (duplex(64), duplex(64 * 1024));
    let mut client = BufReader::new(client);
    let mut response = Vec::new();
    let (result, _guest) = tokio::join!(async { tunnel.run(&mut client, &mut response, server).await }, async {
        for piece in pieces {
            guest.write_all(piece).await.unwrap();
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
        guest
    });
    let mut received = Vec::new();
    server_end.read_to_end(&mut received).await.unwrap();
    (received, result)
}

#[tokio::test(start_paused = true)]
async fn incomplete_line_is_relayed_unless_it_becomes_a_request() {
    let (received, result) = send_in_pieces("a.com:2525", &[b"hello", b" world"]).await;
    assert!(matches!(result, Err(TunnelError::IdleTimeout)), "{result:?}");
    assert_eq!(received, b"hello world");
    let (received, result) =
        send_in_pieces("a.com:2525", &[b"GE", b"T / HTT", b"P/1.1\r\nHost: evil.org\r\n\r\n"]).await;
    assert!(matches!(result, Err(TunnelError::RefusedRequest(Refusal::Head(_)))), "{result:?}");
    assert_eq!(received, b"GET / HTT");
    let (received, result) = send_in_pieces("a.com:80", &[b"GE", b"T / HTT"]).await;
    assert!(matches!(result, Err(TunnelError::RefusedRequest(Refusal::HeadTimeout))), "{result:?}");
    assert_eq!(received, b"");
    let (received, result) = send_in_pieces("a.com:80", &[b"GET / HTTP/1.1\r\n"]).await;
    assert!(matches!(result, Err(TunnelError::RefusedRequest(Refusal::HeadTimeout))), "{result:?}");
    assert_eq!(received, b"");
}

#[tokio::test(start_paused = true)]
async fn no_byte_reaches_host_with_limits_before_request_is_complete() {
    let (policy, limits) = (Policy::parse(["a.com:2525 method=GET"]).unwrap(), Limits::default());
    let (target, (log, _)) = (HostPort::parse("a.com:2525", None).unwrap(), DecisionLog::bounded(8));
    let terminator = Terminator::new(&policy.rules, None, &limits, &log, &target, &Decision::default());
    let tunnel = Tunnel { policy: &policy, limits: &limits, target: &target, terminator: Some(&terminator) };
    for pieces in [&[&b"DELETE /x"[..], b"\r"][..], &[b"EHLO", b" me\r\n"], &[b"\x80"]] {
        let (received, result) = send_pieces_through(&tunnel, pieces).await;
        assert!(result.is_err(), "{pieces:?}");
        assert_eq!(received, b"", "{pieces:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn slow_bytes_are_relayed_while_more_arrive() {
    let (policy, limits) = (Policy::default(), Limits::default());
    let target = &HostPort::parse("a.com:2525", None).unwrap();
    let tunnel = Tunnel { policy: &policy, limits: &limits, target, terminator: None };
    let ((client, mut guest), (server, mut server_end)) = (duplex(64), duplex(64));
    let (mut client, mut response) = (BufReader::new(client), Vec::new());
    let run = tunnel.run(&mut client, &mut response, server);
    let send_slowly = async {
        for _ in 0..40 {
            guest.write_all(b".").await.unwrap();
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let relayed = async {
        let mut first = [0; 3];
        server_end.read_exact(&mut first).await.unwrap();
        first
    };
    tokio::select! {
        first = relayed => assert_eq!(&first, b"..."),
        () = send_slowly => panic!("nothing was relayed"),
        ended = run => panic!("{ended:?}"),
    }
}

#[tokio::test]
async fn endless_first_line_is_refused() {
    let (received, result) = send("a.com:2525", &b"word ".repeat(MAX_DETECTION_BYTES)).await;
    assert!(matches!(result, Err(TunnelError::RefusedRequest(Refusal::Head(HeadError::TooLarge)))), "{result:?}");
    assert_eq!(received, b"");
}

#[tokio::test]
async fn websocket_is_relayed_after_server_accepts() {
    let request = "GET / HTTP/1.1\r\nHost: a.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    for (status, is_relayed) in [("101 Switching Protocols", true), ("200 OK", false)] {
        let (policy, limits) = (Policy::default(), Limits::default());
        let target = &HostPort::parse("a.com:80", None).unwrap();
        let tunnel = Tunnel { policy: &policy, limits: &limits, target, terminator: None };
        let ((client, mut guest), (server, mut server_end)) = (duplex(1024), duplex(1024));
        let (client, mut to_client) = split(client);
        let mut client = BufReader::new(client);
        // The frame is sent with the request and must not reach the server before its response.
        guest.write_all(format!("{request}\x01\x02frame").as_bytes()).await.unwrap();
        let (_, received) = tokio::join!(async { tunnel.run(&mut client, &mut to_client, server).await }, async {
            let mut received = vec![0; request.len()];
            server_end.read_exact(&mut received).await.unwrap();
            assert_eq!(received, request.as_bytes());
            let response = format!("HTTP/1.1 {status}\r\n\r\n");
            server_end.write_all(response.as_bytes()).await.unwrap();
            let mut forwarded = vec![0; response.len()];
            guest.read_exact(&mut forwarded).await.unwrap();
            assert_eq!(forwarded, response.as_bytes());
            guest.shutdown().await.unwrap();
            let mut frame = Vec::new();
            server_end.read_to_end(&mut frame).await.unwrap();
            drop(server_end);
            frame
        });
        assert_eq!(received, if is_relayed { &b"\x01\x02frame"[..] } else { b"" }, "{status}");
    }
}

#[tokio::test]
async fn port_443_allows_only_tls() {
    let (received, result) = send("a.com:443", b"SSH-2.0").await;
    assert!(matches!(result, Err(TunnelError::Refused(Refusal::NotTls))));
    assert_eq!(received, b"");
    let (received, result) = send("a.com:443", b"\x16\x03\x01").await;
    assert!(matches!(result, Err(TunnelError::Refused(Refusal::BadHello))));
    assert_eq!(received, b"");
    let (received, result) = send("a.com:22", b"SSH-2.0").await;
    assert!(result.is_ok());
    assert_eq!(received, b"SSH-2.0");
}

#[tokio::test(start_paused = true)]
async fn incomplete_client_hello_and_silence_time_out() {
    let (policy, limits) = (Policy::default(), Limits::default());
    for (target, bytes, expected) in [
        ("a.com:443", &b""[..], "the tunnel was refused"),
        ("a.com:443", b"\x16\x03", "the tunnel was refused"),
        ("a.com:22", b"\x16\x03", "the tunnel was refused"),
        ("a.com:22", b"", "the idle timeout expired"),
    ] {
        let target = &HostPort::parse(target, None).unwrap();
        let tunnel = Tunnel { policy: &policy, limits: &limits, target, terminator: None };
        let (client, mut guest) = duplex(64);
        let (server, _server_end) = duplex(64);
        guest.write_all(bytes).await.unwrap();
        let mut client = BufReader::new(client);
        let result = tunnel.run(&mut client, &mut Vec::new(), server).await;
        assert_eq!(result.unwrap_err().to_string(), expected, "{target}");
    }
}

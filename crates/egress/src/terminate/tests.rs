//! Connections through the proxy to a test server, over memory.

mod hostile_peers;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::BoxBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex, split};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::secrets::{Location, SecretDefinition, definition_for_tests};
use crate::tls::{HTTP_1_1, HTTP_2, SandboxAuthority, UpstreamTls};

const VALUE: &str = "ghp_16C7e42F292c6912E7710c838347Ae178B4a";
type Body = BoxBody<Bytes, std::convert::Infallible>;

fn text(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).boxed()
}

/// A body in several chunks, followed by trailers.
fn chunks(parts: &[&str], trailers: &[(&'static str, &str)]) -> Body {
    let mut fields = HeaderMap::new();
    for (name, value) in trailers {
        fields.insert(*name, value.parse().unwrap());
    }
    let data = parts.iter().map(|part| Frame::data(Bytes::copy_from_slice(part.as_bytes())));
    let frames: Vec<_> = data.chain((!fields.is_empty()).then(|| Frame::trailers(fields))).map(Ok).collect();
    StreamBody::new(futures_of(frames)).boxed()
}

fn futures_of<T: Unpin>(items: Vec<T>) -> impl futures_core::Stream<Item = T> {
    struct Items<T>(std::vec::IntoIter<T>);
    impl<T: Unpin> futures_core::Stream for Items<T> {
        type Item = T;
        fn poll_next(mut self: std::pin::Pin<&mut Self>, _: &mut std::task::Context<'_>) -> std::task::Poll<Option<T>> {
            std::task::Poll::Ready(self.0.next())
        }
    }
    Items(items.into_iter())
}

/// A body without an end, which counts its bytes.
fn endless(sent: &Arc<AtomicUsize>) -> Body {
    const CHUNK: &[u8] = &[0; 16 * 1024];
    struct Endless(Arc<AtomicUsize>);
    impl futures_core::Stream for Endless {
        type Item = Result<Frame<Bytes>, std::convert::Infallible>;
        fn poll_next(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Self::Item>> {
            self.0.fetch_add(CHUNK.len(), Ordering::Relaxed);
            std::task::Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(CHUNK)))))
        }
    }
    StreamBody::new(Endless(Arc::clone(sent))).boxed()
}

#[derive(Debug)]
struct Received {
    head: String,
    body: String,
    trailers: Option<HeaderMap>,
}

/// The server that the proxy connects to.
struct Server {
    authority: SandboxAuthority,
    requests: Mutex<Vec<Received>>,
    protocols: Vec<Vec<u8>>,
    /// Number of bytes of endless bodies that were sent.
    sent: Arc<AtomicUsize>,
}

impl Server {
    /// Answers `/redirect` by a redirect, `/trailers` with chunks and trailers, `/endless` without end, and all others with
    /// what it has received.
    async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        let (parts, body) = request.into_parts();
        let head = format!("{} {} {:?}", parts.method, parts.uri, parts.headers);
        // Without a complete body there is no response.
        let Ok(body) = body.collect().await else { std::future::pending().await };
        let trailers = body.trailers().cloned();
        let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
        let sensitive = parts.headers.get("authorization").map(|value| value.to_str().unwrap().to_owned());
        let head = format!("{head} authorization={sensitive:?}");
        self.requests.lock().unwrap().push(Received { head: head.clone(), body: body.clone(), trailers });
        match parts.uri.path() {
            "/redirect" => {
                Response::builder().status(302).header("location", "https://evil.test/").body(text("")).unwrap()
            }
            "/trailers" => Response::builder()
                .header("trailer", "x-end")
                .body(chunks(&["ghp_16C7e42F29", "2c6912E7710c838347Ae17", "8B4a ", "end"], &[("x-end", VALUE)]))
                .unwrap(),
            "/endless" => Response::new(endless(&self.sent)),
            _ => Response::builder()
                .header("x-echo", sensitive.unwrap_or_default())
                .header("x-ringfence-reason", "forged")
                .body(text(format!("{head}\n{body}")))
                .unwrap(),
        }
    }

    async fn serve(self: Arc<Self>, io: DuplexStream, is_tls: bool) {
        let service = service_fn(|request| {
            let server = Arc::clone(&self);
            async move { Ok::<_, std::convert::Infallible>(server.respond(request).await) }
        });
        let http1 = hyper::server::conn::http1::Builder::new();
        if !is_tls {
            let _ = http1.serve_connection(TokioIo::new(io), service).await;
            return;
        }
        let mut config = ServerConfig::clone(&self.authority.server_config(&"a.com".parse().unwrap()).unwrap());
        config.alpn_protocols.clone_from(&self.protocols);
        let Ok(tls) = TlsAcceptor::from(Arc::new(config)).accept(io).await else { return };
        if tls.get_ref().1.alpn_protocol() == Some(HTTP_2) {
            let server = Arc::clone(&self);
            let service = service_fn(move |request| {
                let server = Arc::clone(&server);
                async move { Ok::<_, std::convert::Infallible>(server.respond(request).await) }
            });
            let http2 = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let _ = http2.serve_connection(TokioIo::new(tls), service).await;
        } else {
            let _ = http1.serve_connection(TokioIo::new(tls), service).await;
        }
    }
}

struct Setup {
    server: Arc<Server>,
    credentials: Arc<SandboxCredentials>,
    rules: Vec<Rule>,
    decisions: mpsc::Receiver<Decision>,
    log: DecisionLog,
}

fn github(locations: &[Location]) -> SecretDefinition {
    definition_for_tests("github", VALUE, &["a.com"], locations)
}

#[test]
fn host_of_a_lost_secret_is_refused() {
    let (log, _decisions) = DecisionLog::bounded(8);
    let lost_secret_hosts = vec!["a.com".parse().unwrap(), "c.com".parse().unwrap()];
    let policy = Policy::parse(["*.com", "a.com", "c.com"]).unwrap();
    let mut context = Context { lost_secret_hosts, ..Context::new(policy, log) };
    let is_needed = |context: &Context, target: &str| {
        let target = HostPort::parse(target, None).unwrap();
        let terminator = context.terminator(&context.policy.snapshot(), &target, &Decision::default());
        let needed = terminator.is_needed(ClientProtocol::Tls { server_name: Some(&target.host.to_string()) });
        needed.map_err(|refusal| refusal.code())
    };
    for host in ["a.com:443", "c.com:443"] {
        assert_eq!(is_needed(&context, host), Err("no-authority"));
    }
    assert_eq!(is_needed(&context, "b.com:443"), Ok(false));
    // The authority was not lost, and one of the hosts has another secret.
    context.credentials = Some(Arc::new(SandboxCredentials::generate(&[github(&[])]).unwrap()));
    assert_eq!(is_needed(&context, "a.com:443"), Ok(true));
    assert_eq!(is_needed(&context, "b.com:443"), Ok(false));
    assert_eq!(is_needed(&context, "c.com:443"), Err("no-authority"));
}

impl Setup {
    fn new(rules: &[&str], secrets: &[SecretDefinition], protocols: &[&[u8]]) -> Self {
        let authority = SandboxAuthority::generate().unwrap();
        let root = authority.certificate().clone();
        let credentials = SandboxCredentials::generate(secrets).unwrap().with_upstream_roots(&[root]);
        let (log, decisions) = DecisionLog::bounded(64);
        let protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        Self {
            server: Arc::new(Server { authority, requests: Mutex::default(), protocols, sent: Arc::default() }),
            credentials: Arc::new(credentials),
            rules: Policy::parse(rules.iter().copied()).unwrap().rules,
            decisions,
            log,
        }
    }

    fn placeholder(&self) -> String {
        self.credentials.bindings[0].placeholder.clone()
    }

    fn terminator(&self, target: &str) -> Terminator {
        let target = HostPort::parse(target, None).unwrap();
        let decision = Decision {
            host: Some(target.host.clone()),
            port: Some(target.port),
            address: Some("1.1.1.1".parse().unwrap()),
            ..Decision::default()
        };
        Terminator::new(&self.rules, Some(&self.credentials), &Limits::default(), &self.log, &target, &decision)
    }

    /// Opens a connection through the proxy; returns the client's end.
    fn open(&self, target: &str, is_tls: bool) -> DuplexStream {
        let ((client, proxy_client), (proxy_server, server)) = (duplex(64 * 1024), duplex(64 * 1024));
        let terminator = self.terminator(target);
        tokio::spawn(Arc::clone(&self.server).serve(server, is_tls));
        tokio::spawn(async move {
            let (mut from_client, mut to_client) = split(proxy_client);
            let _ = terminator.run(is_tls, &[], &mut from_client, &mut to_client, proxy_server).await;
        });
        client
    }

    /// Opens a connection with TLS through the proxy.
    async fn open_tls(&self, target: &str, protocol: &[u8]) -> tokio_rustls::client::TlsStream<DuplexStream> {
        let io = self.open(target, true);
        let trusted = UpstreamTls::new(&[self.credentials.authority.certificate().clone()]);
        let host = HostPort::parse(target, None).unwrap().host;
        trusted.connect(io, &host, vec![protocol.to_vec()]).await.unwrap()
    }

    async fn client(&self, target: &str, protocol: &[u8]) -> Client {
        let io = self.open_tls(target, protocol).await;
        if protocol == HTTP_2 {
            assert_eq!(io.get_ref().1.alpn_protocol(), Some(HTTP_2));
            let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io));
            let (sender, connection) = handshake.await.unwrap();
            tokio::spawn(connection);
            Client::Http2(sender)
        } else {
            Client::http1(io).await
        }
    }

    fn reasons(&mut self) -> Vec<&'static str> {
        std::iter::from_fn(|| self.decisions.try_recv().ok()).map(|decision| decision.reason).collect()
    }

    fn received(&self) -> Vec<Received> {
        std::mem::take(&mut self.server.requests.lock().unwrap())
    }
}

enum Client {
    Http1(hyper::client::conn::http1::SendRequest<Body>),
    Http2(hyper::client::conn::http2::SendRequest<Body>),
}

impl Client {
    async fn http1(io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(io)).await.unwrap();
        tokio::spawn(connection);
        Self::Http1(sender)
    }

    /// Sends a request to a path of a.com; returns the status, fields, body and trailers.
    async fn send(&mut self, method: &str, path: &str, fields: &[(&str, &str)], body: Body) -> Reply {
        let uri = if matches!(self, Self::Http2(_)) { format!("https://a.com{path}") } else { path.to_owned() };
        let mut request = Request::builder().method(method).uri(uri);
        if matches!(self, Self::Http1(_)) && !fields.iter().any(|(name, _)| *name == "host") {
            request = request.header("host", "a.com");
        }
        let request = fields.iter().fold(request, |request, (name, value)| request.header(*name, *value));
        let request = request.body(body).unwrap();
        let response = match self {
            Self::Http1(sender) => {
                sender.ready().await.unwrap();
                sender.send_request(request).await.unwrap()
            }
            Self::Http2(sender) => sender.send_request(request).await.unwrap(),
        };
        let (parts, body) = response.into_parts();
        let body = body.collect().await.unwrap();
        let trailers = body.trailers().cloned();
        let body = String::from_utf8(body.to_bytes().to_vec()).unwrap();
        Reply { status: parts.status.as_u16(), headers: parts.headers, body, trailers }
    }
}

#[derive(Debug)]
struct Reply {
    status: u16,
    headers: HeaderMap,
    body: String,
    trailers: Option<HeaderMap>,
}

impl Reply {
    fn reason(&self) -> &str {
        self.headers.get("x-ringfence-reason").map_or("", |reason| reason.to_str().unwrap())
    }
}

#[tokio::test]
async fn server_receives_value_and_guest_never_does() {
    for protocol in [HTTP_1_1, HTTP_2] {
        let mut setup = Setup::new(&["a.com"], &[github(&Location::ALL)], &[HTTP_2, HTTP_1_1]);
        let placeholder = setup.placeholder();
        let mut client = setup.client("a.com:443", protocol).await;
        // All requests use one connection to the server.
        for path in ["/", &format!("/?key={placeholder}"), "/"] {
            let bearer = format!("Bearer {placeholder}");
            let fields = [("authorization", bearer.as_str()), ("accept-encoding", "gzip")];
            let reply = client.send("POST", path, &fields, text("some body")).await;
            assert_eq!((reply.status, reply.reason()), (200, ""), "{reply:?}");
            assert_eq!(reply.headers["x-echo"], bearer.as_str());
            assert!(reply.body.contains(&bearer) && !reply.body.contains(VALUE), "{}", reply.body);
            assert!(reply.body.ends_with("\nsome body"));
        }
        let received = setup.received();
        assert_eq!(received.len(), 3);
        assert!(received.iter().all(|request| request.head.contains(&format!("Some(\"Bearer {VALUE}\")"))));
        assert!(received.iter().all(|request| request.head.contains("\"accept-encoding\": \"identity\"")));
        assert!(received[1].head.contains(&format!("/?key={VALUE}")), "{received:?}");
        assert_eq!(setup.reasons(), ["secret-used"], "the use is logged once for each connection");
    }
}

#[tokio::test]
async fn streamed_response_and_trailers_are_searched() {
    for protocol in [HTTP_1_1, HTTP_2] {
        let setup = Setup::new(&["a.com"], &[github(&[Location::Header])], &[HTTP_2, HTTP_1_1]);
        let mut client = setup.client("a.com:443", protocol).await;
        let body = chunks(&["one ", "two"], &[("x-sum", "1")]);
        let reply = client.send("POST", "/trailers", &[("te", "trailers"), ("trailer", "x-sum")], body).await;
        assert_eq!(reply.body, format!("{} end", setup.placeholder()));
        if protocol == HTTP_2 {
            assert_eq!(reply.trailers.unwrap()["x-end"], setup.placeholder().as_str());
            assert_eq!(setup.received()[0].trailers.as_ref().unwrap()["x-sum"], "1");
        } else {
            assert_eq!(setup.received()[0].body, "one two");
        }
    }
}

#[tokio::test]
async fn placeholder_to_other_host_is_refused() {
    for protocol in [HTTP_1_1, HTTP_2] {
        let elsewhere = definition_for_tests("github", VALUE, &["other.com"], &Location::ALL);
        let mut setup = Setup::new(&["a.com path=/*"], &[elsewhere], &[HTTP_2, HTTP_1_1]);
        let placeholder = setup.placeholder();
        let (first, second) = placeholder.split_at(20);
        let cases = [
            ("/", Some(placeholder.as_str()), text("")),
            (&format!("/{placeholder}"), None, text("")),
            (&format!("/?a={placeholder}"), None, text("")),
            ("/", None, text(format!("{{\"token\": \"{placeholder}\"}}"))),
            ("/", None, chunks(&["x", first, second, "y"], &[])),
        ];
        for (path, field, body) in cases {
            let mut client = setup.client("a.com:443", protocol).await;
            let fields: Vec<_> = field.iter().map(|value| ("x-token", *value)).collect();
            let reply = client.send("POST", path, &fields, body).await;
            assert_eq!((reply.status, reply.reason()), (403, "secret-elsewhere"), "{path} {reply:?}");
            assert!(reply.body.contains("`github`"), "{}", reply.body);
            assert_eq!(setup.reasons(), ["secret-elsewhere"]);
        }
        assert!(setup.received().is_empty());
        let mut client = setup.client("a.com:443", protocol).await;
        assert_eq!(client.send("GET", "/", &[], text("")).await.status, 200);
    }
}

#[tokio::test]
async fn methods_and_paths_are_checked_for_every_request() {
    for protocol in [HTTP_1_1, HTTP_2] {
        let rules = ["a.com method=GET path=/repos/*", "a.com method=POST path=/graphql"];
        let mut setup = Setup::new(&rules, &[], &[HTTP_2, HTTP_1_1]);
        let mut client = setup.client("a.com:443", protocol).await;
        for (method, path, field, expected) in [
            ("GET", "/repos/me?x=..", None, ""),
            ("POST", "/repos/me", None, "wrong-method"),
            ("GET", "/user", None, "wrong-path"),
            ("POST", "/graphql", None, ""),
            ("GET", "/repos/../user", None, "ambiguous-path"),
            ("GET", "/repos/%2e%2e/user", None, "ambiguous-path"),
            ("GET", "/repos//user", None, "ambiguous-path"),
            ("GET", "/repos/me", Some(("x-http-method-override", "DELETE")), "request-override"),
            ("GET", "/repos/me", Some(("x-original-url", "/user")), "request-override"),
            ("GET", "/redirect", None, "wrong-path"),
        ] {
            let fields: Vec<_> = field.into_iter().collect();
            let reply = client.send(method, path, &fields, text("")).await;
            assert_eq!(reply.reason(), expected, "{method} {path}");
            assert_eq!(reply.status, if expected.is_empty() { 200 } else { 403 });
        }
        assert_eq!(setup.received().len(), 2);
        assert_eq!(setup.reasons().len(), 8, "every refusal is in the log");
    }
}

#[tokio::test]
async fn redirects_are_returned_and_not_followed() {
    let setup = Setup::new(&["a.com"], &[github(&[Location::Header])], &[HTTP_1_1]);
    let mut client = setup.client("a.com:443", HTTP_1_1).await;
    let reply = client.send("GET", "/redirect", &[("authorization", &setup.placeholder())], text("")).await;
    assert_eq!((reply.status, &reply.headers["location"]), (302, &"https://evil.test/".parse().unwrap()));
    assert_eq!(setup.received().len(), 1);
}

#[tokio::test]
async fn requests_that_name_another_host_are_refused() {
    let setup = Setup::new(&["a.com", "b.com"], &[github(&[Location::Header])], &[HTTP_1_1]);
    let mut client = setup.client("a.com:443", HTTP_1_1).await;
    for host in ["b.com", "a.com:8443", "a.com@b.com", ""] {
        let reply = client.send("GET", "/", &[("host", host)], text("")).await;
        assert_eq!(reply.reason(), "host-mismatch", "{host}");
    }
    assert!(setup.received().is_empty());
}

#[tokio::test]
async fn client_without_http2_and_server_without_http2_work() {
    for (server, client) in [(&[HTTP_1_1][..], HTTP_1_1), (&[][..], HTTP_1_1), (&[HTTP_2, HTTP_1_1][..], HTTP_1_1)] {
        let setup = Setup::new(&["a.com"], &[github(&[Location::Header])], server);
        let mut client = setup.client("a.com:443", client).await;
        assert_eq!(client.send("GET", "/", &[], text("")).await.status, 200);
    }
}

#[tokio::test]
async fn server_with_untrusted_certificate_is_refused() {
    for protocol in [HTTP_1_1, HTTP_2] {
        let mut setup = Setup::new(&["a.com"], &[github(&[Location::Header])], &[HTTP_2, HTTP_1_1]);
        let other = SandboxAuthority::generate().unwrap();
        let credentials = SandboxCredentials::generate(&[github(&[Location::Header])]).unwrap();
        setup.credentials = Arc::new(credentials.with_upstream_roots(&[other.certificate().clone()]));
        let mut client = setup.client("a.com:443", protocol).await;
        let reply = client.send("GET", "/", &[("authorization", &setup.placeholder())], text("")).await;
        assert_eq!((reply.status, reply.reason()), (502, "upstream-tls"));
        assert!(setup.received().is_empty());
    }
}

#[tokio::test]
async fn plain_http_obeys_rules_and_receives_no_value() {
    let setup = Setup::new(&["a.com method=GET"], &[github(&[Location::Header])], &[]);
    let mut client = Client::http1(setup.open("a.com:80", false)).await;
    assert_eq!(client.send("GET", "/", &[], text("")).await.status, 200);
    assert_eq!(client.send("POST", "/", &[], text("")).await.reason(), "wrong-method");
    let reply = client.send("GET", "/", &[("authorization", &setup.placeholder())], text("")).await;
    assert_eq!(reply.reason(), "secret-plain-text");
    assert_eq!(setup.received().len(), 1);
}

#[tokio::test]
async fn websocket_is_relayed() {
    let setup = Setup::new(&["a.com method=GET"], &[], &[]);
    let ((mut client, proxy_client), (proxy_server, mut server)) = (duplex(1024), duplex(1024));
    let terminator = setup.terminator("a.com:80");
    tokio::spawn(async move {
        let (mut from_client, mut to_client) = split(proxy_client);
        terminator.run(false, &[], &mut from_client, &mut to_client, proxy_server).await
    });
    client
        .write_all(b"GET /chat HTTP/1.1\r\nHost: a.com\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n")
        .await
        .unwrap();
    let mut head = vec![0; 1024];
    let count = server.read(&mut head).await.unwrap();
    let head = String::from_utf8_lossy(&head[..count]).to_lowercase();
    assert!(head.contains("upgrade: websocket\r\n") && head.contains("connection: upgrade\r\n"), "{head}");
    server
        .write_all(b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst")
        .await
        .unwrap();
    let mut response = Vec::new();
    while !response.ends_with(b"first") {
        assert!(client.read_buf(&mut response).await.unwrap() > 0);
    }
    assert!(response.starts_with(b"HTTP/1.1 101 "));
    client.write_all(b"frame").await.unwrap();
    let mut frame = [0; 5];
    server.read_exact(&mut frame).await.unwrap();
    assert_eq!(&frame, b"frame");
}

#[tokio::test]
async fn connections_are_terminated_only_where_requests_are_checked() {
    let tls = |server_name| ClientProtocol::Tls { server_name };
    let setup = Setup::new(&["a.com", "b.com", "c.com method=GET", "10.0.0.1"], &[github(&[])], &[]);
    let is_needed = |target, protocol| setup.terminator(target).is_needed(protocol).map_err(|refusal| refusal.code());
    assert_eq!(is_needed("a.com:443", tls(Some("a.com"))), Ok(true));
    assert_eq!(is_needed("b.com:443", tls(Some("b.com"))), Ok(false));
    assert_eq!(is_needed("c.com:443", tls(Some("c.com"))), Ok(true));
    assert_eq!(is_needed("c.com:443", ClientProtocol::Other), Err("not-http"));
    assert_eq!(is_needed("b.com:80", ClientProtocol::Http), Ok(true), "plain requests are searched for placeholders");
    // A tunnel to an address is no way around the checks of a name.
    assert_eq!(is_needed("10.0.0.1:443", tls(Some("c.com"))), Err("sni-mismatch"));
    assert_eq!(is_needed("10.0.0.1:443", tls(Some("b.com"))), Ok(false));
    let mut without = setup.terminator("c.com:443");
    without.credentials = None;
    assert_eq!(without.is_needed(tls(Some("c.com"))).map_err(|refusal| refusal.code()), Err("no-authority"));
}

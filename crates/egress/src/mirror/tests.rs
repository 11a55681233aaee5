//! The whole mirror over loopback, against registries that the tests script.

mod programs;
mod scripted;

use std::fs::{self, FileTimes, OpenOptions};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256, Sha512};

use super::budget::Budget;
use super::*;
use crate::decision::{Decision, Source};
use scripted::{Received, Registry, Reply, get};

const FILE: &str = "foo-1.0-py3-none-any.whl";

fn sha256(content: &[u8]) -> String {
    hash::hex(&Sha256::digest(content))
}

/// A mirror of one sandbox, with a cache that other mirrors can share.
struct Served {
    address: String,
    decisions: tokio::sync::mpsc::Receiver<Decision>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn mirror(cache: &Path, registry: &Registry) -> Mirror {
    let python = PythonIndexes { urls: vec![format!("{}/simple", registry.url)], certificates: Vec::new() };
    let npm = NpmRegistries { url: format!("{}/npm/", registry.url), ..NpmRegistries::default() };
    let registries = RegistrySource::known(python, npm);
    Mirror::new(MirrorSettings { cache_directory: cache.to_owned(), max_bytes: 1 << 30, registries })
}

fn serve(mirror: &Mirror, budget: Option<Budget>) -> Served {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let (log, decisions) = DecisionLog::bounded(1000);
    let guest = budget.map_or_else(|| Guest::new(log.clone()), |budget| Guest::with_budget(log.clone(), budget));
    let inner = Arc::clone(&mirror.0);
    let task = tokio::spawn(async move { drop(connection::serve(inner, listener, Arc::new(guest)).await) });
    Served { address, decisions, task }
}

impl Served {
    async fn get(&self, path: &str) -> Received {
        get(&self.address, path, "").await
    }

    async fn json(&self, path: &str) -> Value {
        let received = get(&self.address, path, "Accept: application/vnd.pypi.simple.v1+json\r\n").await;
        assert_eq!(received.status, 200, "{received:?}");
        serde_json::from_slice(&received.body).unwrap()
    }

    fn reasons(&mut self) -> Vec<&'static str> {
        std::iter::from_fn(|| self.decisions.try_recv().ok()).map(|decision| decision.reason).collect()
    }
}

/// A registry with the project `foo`, whose only file has this content and the hash of another if it is to be wrong.
fn foo(content: &[u8], hash_of: &[u8]) -> impl Fn(&str) -> Reply + Send + Sync + use<> {
    let page = format!("<html><a href=\"/files/{FILE}#sha256={}\">x</a></html>", sha256(hash_of));
    let content = content.to_vec();
    move |path| match path {
        "/simple/foo/" => Reply::new("text/html", page.clone()).with("ETag", "\"1\""),
        path if path == format!("/files/{FILE}") => Reply::new("application/zip", content.clone()),
        _ => Reply::missing(),
    }
}

fn path_of(content: &[u8]) -> String {
    format!("/pypi/files/foo/{}/{FILE}", sha256(content))
}

/// Makes all documents in the cache older than their freshness.
fn age_documents(cache: &Path) {
    let at = SystemTime::now() - Duration::from_secs(3600);
    for directory in fs::read_dir(cache.join("mirror/v1/index")).unwrap() {
        for file in fs::read_dir(directory.unwrap().path()).unwrap() {
            let file = OpenOptions::new().write(true).open(file.unwrap().path()).unwrap();
            file.set_times(FileTimes::new().set_modified(at)).unwrap();
        }
    }
}

fn stored_files(cache: &Path) -> usize {
    let usage = PackageCache::in_directory(cache).usage().unwrap();
    usize::try_from(usage.files).unwrap()
}

#[tokio::test]
async fn python_package_is_downloaded_once_and_then_served_offline() {
    let cache = tempfile::tempdir().unwrap();
    let registry = Registry::start(foo(b"content", b"content")).await;
    let mirror = mirror(cache.path(), &registry);
    let mut served = serve(&mirror, None);
    let page = served.json("/pypi/simple/Foo/?leak=secret").await;
    assert_eq!(page["files"][0]["url"], path_of(b"content"));
    assert!(!page.to_string().contains(&registry.url), "{page}");
    let fields = "X-Leak: secret\r\nAuthorization: Basic eA==\r\nCookie: a=b\r\nUser-Agent: leak\r\n";
    for _ in 0..2 {
        let file = get(&served.address, &path_of(b"content"), fields).await;
        assert_eq!((file.status, file.body.as_slice()), (200, &b"content"[..]));
    }
    let requests = registry.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    for request in &requests {
        let request = request.to_lowercase();
        assert!(request.starts_with("get ") && !request.contains("leak") && !request.contains("secret"), "{request}");
        assert!(!request.contains("authorization") && !request.contains("cookie"), "{request}");
    }
    let decision = served.decisions.recv().await.unwrap();
    assert_eq!((decision.package.as_deref(), decision.source), (Some("pypi/foo"), Source::Mirror));
    assert!(decision.is_allowed);
    drop(registry);
    age_documents(cache.path());
    assert_eq!(served.json("/pypi/simple/foo/").await["files"][0]["filename"], FILE);
    let html = served.get("/pypi/simple/foo/").await;
    assert!(html.text().contains(&format!("href=\"{}#sha256=", path_of(b"content"))), "{}", html.text());
    assert_eq!(served.get(&path_of(b"content")).await.status, 200);
    assert_eq!(served.get("/pypi/simple/bar/").await.status, 502, "a package that is not in the cache");
}

#[tokio::test]
async fn unchanged_document_is_confirmed() {
    let cache = tempfile::tempdir().unwrap();
    let page = foo(b"content", b"content");
    let confirm = move |path: &str| page(path).unless_matches("\"1\"");
    let registry = Registry::start(confirm).await;
    let mirror = mirror(cache.path(), &registry);
    let served = serve(&mirror, None);
    let first = served.json("/pypi/simple/foo/").await;
    age_documents(cache.path());
    for _ in 0..2 {
        assert_eq!(served.json("/pypi/simple/foo/").await, first);
    }
    let requests = registry.requests();
    assert_eq!(requests.len(), 2, "{requests:?}");
    assert!(requests[1].to_lowercase().contains("if-none-match: \"1\""), "{requests:?}");
}

#[tokio::test]
async fn file_with_wrong_hash_is_neither_served_nor_stored() {
    let cache = tempfile::tempdir().unwrap();
    let registry = Registry::start(foo(b"evil", b"good")).await;
    let mirror = mirror(cache.path(), &registry);
    let mut served = serve(&mirror, None);
    let received = served.get(&path_of(b"good")).await;
    assert_eq!(received.status, 502);
    assert!(!received.text().contains("evil"), "{}", received.text());
    assert_eq!(stored_files(cache.path()), 0);
    assert_eq!(served.reasons(), ["allowed", "package-wrong-hash"]);
}

#[tokio::test]
async fn large_file_with_wrong_hash_is_never_complete() {
    let cache = tempfile::tempdir().unwrap();
    let content = vec![7; 6 << 20];
    let registry = Registry::start(foo(&content, b"good")).await;
    let mirror = mirror(cache.path(), &registry);
    let served = serve(&mirror, None);
    let received = served.get(&path_of(b"good")).await;
    assert!(received.status == 502 || received.body.len() < content.len(), "{}", received.body.len());
    assert_eq!(stored_files(cache.path()), 0);
}

#[tokio::test]
async fn large_file_is_served_completely_while_it_is_downloaded() {
    let cache = tempfile::tempdir().unwrap();
    let content: Vec<u8> = (0..6_u32 << 18).flat_map(u32::to_le_bytes).collect();
    let registry = Registry::start(foo(&content, &content)).await;
    let mirror = mirror(cache.path(), &registry);
    let served = serve(&mirror, None);
    let path = path_of(&content);
    let (one, two) = tokio::join!(served.get(&path), served.get(&path));
    assert!(one.body == content && two.body == content);
    assert_eq!(registry.requests().len(), 2);
}

#[tokio::test]
async fn concurrent_requests_and_processes_share_a_download() {
    let cache = tempfile::tempdir().unwrap();
    let page = foo(b"content", b"content");
    let gate = scripted::Gate::closed();
    let slow = {
        let gate = gate.clone();
        move |path: &str| if path.starts_with("/files/") { page(path).after(&gate) } else { page(path) }
    };
    let registry = Registry::start(slow).await;
    // Two mirrors share the cache like two processes: each opens and locks files independently.
    let mirrors = [mirror(cache.path(), &registry), mirror(cache.path(), &registry)];
    let served = [serve(&mirrors[0], None), serve(&mirrors[1], None)];
    let path = path_of(b"content");
    let mut requests = tokio::task::JoinSet::new();
    for index in 0..16 {
        let (address, path) = (served[index % 2].address.clone(), path.clone());
        requests.spawn(async move { get(&address, &path, "").await.body });
    }
    // A guest that goes away does not end the download.
    requests.spawn({
        let (address, path) = (served[0].address.clone(), path.clone());
        async move {
            let _ = tokio::time::timeout(Duration::from_millis(100), get(&address, &path, "")).await;
            b"content".to_vec()
        }
    });
    registry.wait_for("/files/").await;
    gate.open();
    while let Some(body) = requests.join_next().await {
        assert_eq!(body.unwrap(), b"content");
    }
    let downloads = registry.requests().iter().filter(|request| request.contains("/files/")).count();
    assert_eq!(downloads, 1);
}

#[tokio::test]
async fn downloads_of_one_sandbox_do_not_delay_those_of_others() {
    let cache = tempfile::tempdir().unwrap();
    let gate = scripted::Gate::closed();
    let registry = Registry::start({
        let gate = gate.clone();
        move |path: &str| {
            let link = |n: u32| {
                let (name, hash) = (format!("foo-{n}.0.tar.gz"), sha256(&n.to_le_bytes()));
                format!("<html><a href=\"/files/{n}/{name}#sha256={hash}\">{name}</a></html>")
            };
            match path.split('/').collect::<Vec<_>>()[..] {
                ["", "files", n, _] => Reply::new("x/y", n.parse::<u32>().unwrap().to_le_bytes()).after(&gate),
                _ => Reply::new("text/html", (0..64).map(link).collect::<String>()),
            }
        }
    })
    .await;
    let mirror = mirror(cache.path(), &registry);
    let (greedy, other) = (serve(&mirror, None), serve(&mirror, None));
    let path = |n: u32| format!("/pypi/files/foo/{}/foo-{n}.0.tar.gz", sha256(&n.to_le_bytes()));
    let mut requests = tokio::task::JoinSet::new();
    let mut start = |served: &Served, n: u32| {
        let (address, path) = (served.address.clone(), path(n));
        requests.spawn(async move { get(&address, &path, "").await.status });
    };
    (0..40).for_each(|n| start(&greedy, n));
    registry.wait_for("/files/").await;
    // Time for as many downloads as are possible.
    tokio::time::sleep(Duration::from_millis(200)).await;
    start(&other, 63);
    registry.wait_for("/files/63/").await;
    gate.open();
    while let Some(status) = requests.join_next().await {
        assert_eq!(status.unwrap(), 200);
    }
}

#[tokio::test]
async fn redirects_lead_only_to_named_hosts() {
    let cache = tempfile::tempdir().unwrap();
    let other = Registry::start(foo(b"content", b"content")).await;
    // The same host under another name.
    let elsewhere = other.url.replace("127.0.0.1", "localhost");
    let redirect = move |path: &str| match path {
        "/simple/foo/" => Reply::redirect("/simple/moved/"),
        "/simple/moved/" => Reply::new("text/html", "<html></html>"),
        _ => Reply::redirect(&format!("{elsewhere}{path}")),
    };
    let registry = Registry::start(redirect).await;
    let mirror = mirror(cache.path(), &registry);
    let mut served = serve(&mirror, None);
    assert_eq!(served.get("/pypi/simple/foo/").await.status, 200);
    let refused = served.get("/pypi/simple/bar/").await;
    assert_eq!((refused.status, refused.text().contains("redirects to localhost")), (502, true), "{refused:?}");
    assert_eq!(served.reasons(), ["allowed", "registry-redirect"]);
    assert_eq!(other.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn private_addresses_that_only_an_index_names_are_refused() {
    let cache = tempfile::tempdir().unwrap();
    let hash = sha256(b"x");
    let page = format!(
        "<html><a href=\"http://169.254.169.254/latest/{FILE}#sha256={hash}\">x</a>\
         <a href=\"http://127.0.0.2:1/foo-2.0.tar.gz#sha256={hash}\">x</a></html>"
    );
    let registry = Registry::start(move |_: &str| Reply::new("text/html", page.clone())).await;
    let mirror = mirror(cache.path(), &registry);
    let mut served = serve(&mirror, None);
    for file in [FILE, "foo-2.0.tar.gz"] {
        let received = served.get(&format!("/pypi/files/foo/{hash}/{file}")).await;
        assert_eq!(received.status, 502, "{received:?}");
    }
    assert_eq!(served.reasons(), ["allowed", "registry-destination", "registry-destination"]);
}

#[tokio::test]
async fn packed_document_that_unpacks_to_too_much_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let bomb = {
        let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        let part = vec![b' '; 1 << 20];
        (0..100).for_each(|_| std::io::Write::write_all(&mut encoder, &part).unwrap());
        encoder.finish().unwrap()
    };
    let reply = move |_: &str| Reply::new("text/html", bomb.clone()).with("Content-Encoding", "gzip");
    let registry = Registry::start(reply).await;
    let mirror = mirror(cache.path(), &registry);
    let mut served = serve(&mirror, None);
    assert_eq!(served.get("/pypi/simple/foo/").await.status, 502);
    assert_eq!(served.reasons(), ["package-too-large"]);
}

#[tokio::test]
async fn npm_package_is_served_with_checked_tarball() {
    use base64::Engine as _;

    let cache = tempfile::tempdir().unwrap();
    let integrity = |content: &[u8]| {
        format!("sha512-{}", base64::engine::general_purpose::STANDARD.encode(Sha512::digest(content)))
    };
    let version = |version: &str, content: &[u8]| {
        json!({"name": "@a/b", "version": version,
               "dist": {"tarball": format!("/npm/x/{version}.tgz"), "integrity": integrity(content)}})
    };
    let document = json!({"name": "@a/b", "dist-tags": {"latest": "1.0.0"},
                          "versions": {"1.0.0": version("1.0.0", b"good"), "2.0.0": version("2.0.0", b"other")}});
    let registry = Registry::start(move |path: &str| match path {
        "/npm/@a%2fb" => Reply::new("application/json", document.to_string()),
        "/npm/x/1.0.0.tgz" => Reply::new("application/octet-stream", "good"),
        "/npm/x/2.0.0.tgz" => Reply::new("application/octet-stream", "evil"),
        _ => Reply::missing(),
    })
    .await;
    let mirror = mirror(cache.path(), &registry);
    let served = serve(&mirror, None);
    let accept = "Accept: application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8\r\n";
    let packument = get(&served.address, "/npm/@a%2fb", accept).await;
    let packument: Value = serde_json::from_slice(&packument.body).unwrap();
    let tarball = packument["versions"]["1.0.0"]["dist"]["tarball"].as_str().unwrap();
    let path = tarball.strip_prefix(&format!("http://{}", served.address)).unwrap();
    assert_eq!(served.get(path).await.body, b"good");
    assert_eq!(served.get("/npm/@a/b/-/b-2.0.0.tgz").await.status, 502);
    assert_eq!(served.get("/npm/@a/b/-/b-3.0.0.tgz").await.status, 404);
    assert_eq!(served.get("/npm/-/ping").await.text(), "{}");
    assert_eq!(stored_files(cache.path()), 1);
    let documents = || registry.requests().iter().filter(|request| request.starts_with("GET /npm/@a%2fb ")).count();
    assert_eq!(documents(), 1);
    // npm may request the other form only.
    fs::remove_dir_all(cache.path().join("mirror/v1/index")).unwrap();
    assert_eq!(get(&served.address, "/npm/@a%2fb", "Accept: application/json\r\n").await.status, 200);
    assert_eq!(served.get("/npm/@a/b/-/b-1.0.0.tgz").await.body, b"good");
    assert_eq!(documents(), 2);
}

#[tokio::test]
async fn budget_limits_requests_to_the_registry_but_not_the_cache() {
    let cache = tempfile::tempdir().unwrap();
    let registry = Registry::start(foo(b"content", b"content")).await;
    let mirror = mirror(cache.path(), &registry);
    let mut served = serve(&mirror, Some(Budget::new(2, 0)));
    assert_eq!(served.get(&path_of(b"content")).await.status, 200);
    for _ in 0..5 {
        assert_eq!(served.get(&path_of(b"content")).await.status, 200);
    }
    let refused = served.get("/pypi/simple/leaked-name/").await;
    assert_eq!((refused.status, refused.field("retry-after")), (429, Some("10")));
    assert_eq!(registry.requests().len(), 2);
    assert_eq!(served.reasons(), ["allowed", "allowed", "package-budget"]);
    let mut other = serve(&mirror, Some(Budget::new(1, 0)));
    assert_eq!(other.get("/pypi/simple/unknown/").await.status, 404);
    assert_eq!(other.get("/pypi/simple/unknown/").await.status, 404, "the registry is not asked twice");
    assert_eq!(other.reasons(), ["package-missing"]);
}

#[tokio::test]
async fn requests_that_are_not_reads_of_packages_are_refused() {
    let cache = tempfile::tempdir().unwrap();
    let registry = Registry::start(foo(b"content", b"content")).await;
    let mirror = mirror(cache.path(), &registry);
    let served = serve(&mirror, None);
    let hash = sha256(b"content");
    for path in [
        "/",
        "/etc/passwd",
        "/pypi/simple/../../etc/passwd",
        "/pypi/simple/..%2f..%2fetc/",
        "/npm/-/v1/search?text=secret",
        "/npm/-/whoami",
        &format!("/pypi/files/foo/{hash}/..%2f{FILE}"),
        &format!("/pypi/files/foo/{hash}/http:%2f%2fevil.example%2f{FILE}"),
    ] {
        assert_eq!(served.get(path).await.status, 404, "{path}");
    }
    let absolute = served.get(&format!("{}/simple/foo/", registry.url)).await;
    assert_eq!(absolute.status, 404);
    for method in ["POST", "PUT", "DELETE", "CONNECT"] {
        let received = scripted::request(&served.address, method, "/npm/foo", "Content-Length: 2\r\n\r\n{}").await;
        assert_eq!((received.status, received.field("allow")), (405, Some("GET, HEAD")), "{method}");
    }
    let with_body = get(&served.address, "/npm/foo", "Content-Length: 2\r\n").await;
    assert_eq!(with_body.status, 400);
    assert_eq!(registry.requests(), Vec::<String>::new());
}

#[tokio::test]
async fn ranges_and_head_are_served_from_verified_files() {
    let cache = tempfile::tempdir().unwrap();
    let registry = Registry::start(foo(b"0123456789", b"0123456789")).await;
    let mirror = mirror(cache.path(), &registry);
    let served = serve(&mirror, None);
    let path = path_of(b"0123456789");
    let head = scripted::request(&served.address, "HEAD", &path, "\r\n").await;
    assert_eq!((head.status, head.field("content-length"), head.body.len()), (200, Some("10"), 0));
    assert_eq!(head.field("accept-ranges"), Some("bytes"));
    let part = get(&served.address, &path, "Range: bytes=-3\r\n").await;
    assert_eq!((part.status, part.text().as_str()), (206, "789"));
    assert_eq!(part.field("content-range"), Some("bytes 7-9/10"));
    assert_eq!(get(&served.address, &path, "Range: bytes=10-\r\n").await.status, 416);
}

#[tokio::test]
async fn missing_registry_is_reported_with_its_reason() {
    let cache = tempfile::tempdir().unwrap();
    let failed = || std::future::ready(Err("pip was not found".to_owned()));
    let registries = RegistrySource::new(failed, || std::future::ready(Err("npm was not found".to_owned())));
    let settings = MirrorSettings { cache_directory: cache.path().to_owned(), max_bytes: 1 << 30, registries };
    let served = serve(&Mirror::new(settings), None);
    let received = served.get("/pypi/simple/foo/").await;
    assert_eq!((received.status, received.text().contains("pip was not found")), (502, true));
    assert!(served.get("/npm/foo").await.text().contains("npm was not found"));
}

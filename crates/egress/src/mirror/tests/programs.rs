//! Programs that the mirror provides.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;

use super::scripted::{Registry, Reply};
use super::{mirror, serve, sha256};
use crate::mirror::programs::Program;
use crate::mirror::{Mirror, PruneLimits};

/// A wheel that contains this program, and where it is.
fn uv_wheel(program: &[u8]) -> (Vec<u8>, Program) {
    const OFFSET: usize = 10;
    let mut encoder = flate2::write::DeflateEncoder::new(vec![0; OFFSET], flate2::Compression::default());
    encoder.write_all(program).unwrap();
    let mut wheel = encoder.finish().unwrap();
    let compressed_bytes = (wheel.len() - OFFSET) as u64;
    wheel.extend_from_slice(b"the rest of the archive");
    let uv = Program {
        name: "uv",
        version: "1.0",
        wheel: "uv-1.0-py3-none-any.whl",
        wheel_hash: sha256(&wheel).leak(),
        offset: OFFSET as u64,
        compressed_bytes,
        bytes: program.len() as u64,
    };
    (wheel, uv)
}

/// A mirror whose uv is this program, with a registry that has `content` as its wheel.
async fn mirror_with_uv(cache: &Path, uv: Program, content: Vec<u8>) -> (Mirror, Registry) {
    let page = format!("<html><a href=\"/files/{}#sha256={}\">x</a></html>", uv.wheel, uv.wheel_hash);
    let path = format!("/files/{}", uv.wheel);
    let registry = Registry::start(move |requested: &str| match requested {
        "/simple/uv/" => Reply::new("text/html", page.clone()),
        requested if requested == path => Reply::new("application/zip", content.clone()),
        _ => Reply::missing(),
    })
    .await;
    let mut mirror = mirror(cache, &registry);
    Arc::get_mut(&mut mirror.0).unwrap().uv = Some(Box::leak(Box::new(uv)));
    (mirror, registry)
}

#[tokio::test]
async fn uv_appears_in_its_directory_when_it_is_requested() {
    let cache = tempfile::tempdir().unwrap();
    let (wheel, uv) = uv_wheel(b"the program");
    let (mirror, registry) = mirror_with_uv(cache.path(), uv, wheel).await;
    let directory = mirror.uv_directory().unwrap();
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);
    let served = serve(&mirror, None);
    let received = served.get("/programs/uv").await;
    assert_eq!((received.status, received.text()), (200, "uv 1.0\n".into()), "{received:?}");
    let program = directory.join("uv");
    assert_eq!(fs::read(&program).unwrap(), b"the program");
    let mode = fs::metadata(&program).unwrap().mode();
    assert_eq!(mode & 0o777, 0o755, "guests of any uid can execute it");
    let requests = registry.requests().len();
    assert_eq!(served.get("/programs/uv").await.status, 200);
    assert_eq!(registry.requests().len(), requests, "the program is complete");
    // Pruning removes it, and the next request brings it back.
    mirror.0.cache.prune(PruneLimits { max_bytes: Some(0), older_than: None }).unwrap();
    assert!(directory.is_dir() && !program.exists());
    assert_eq!(served.get("/programs/uv").await.status, 200);
    assert!(program.exists());
}

#[tokio::test]
async fn uv_with_another_hash_is_refused() {
    let cache = tempfile::tempdir().unwrap();
    let (mut wheel, uv) = uv_wheel(b"the program");
    *wheel.last_mut().unwrap() ^= 1;
    let (mirror, _registry) = mirror_with_uv(cache.path(), uv, wheel).await;
    let directory = mirror.uv_directory().unwrap();
    assert_eq!(serve(&mirror, None).get("/programs/uv").await.status, 502);
    assert_eq!(fs::read_dir(directory).unwrap().count(), 0);
}

#[tokio::test]
async fn registry_without_uv_is_reported() {
    let cache = tempfile::tempdir().unwrap();
    let registry = Registry::start(|_: &str| Reply::missing()).await;
    let mirror = mirror(cache.path(), &registry);
    let served = serve(&mirror, None);
    assert_eq!(served.get("/programs/uv").await.status, 404);
    assert_eq!(served.get("/programs/uv").await.status, 404);
    assert_eq!(registry.requests().len(), 1, "the failure is remembered");
}

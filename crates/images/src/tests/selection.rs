//! Selection of an image from a layout, and refusal of invalid layouts.

use serde_json::{Value, json};

use super::fixture::{INDEX, MANIFEST};
use super::*;
use crate::layout::host_architecture;

fn unpack_error(image: &Path) -> ImageError {
    unpack(image, tempfile::tempdir().unwrap().path()).unwrap_err()
}

fn layer(content: &str) -> [(&'static str, Vec<u8>); 1] {
    [(TAR, tar(&[("file", Entry::File(0o644, content))]))]
}

fn with_platform(mut descriptor: Value, os: &str, architecture: &str) -> Value {
    descriptor["platform"] = json!({"os": os, "architecture": architecture});
    descriptor
}

fn unpacked_content(layout: &LayoutFixture) -> String {
    let cache = tempfile::tempdir().unwrap();
    let root = unpack(layout.path(), cache.path()).unwrap().root;
    fs::read_to_string(root.join("file")).unwrap()
}

#[test]
fn image_for_this_machine_is_selected() {
    let mut layout = LayoutFixture::new();
    let generic = layout.add_manifest(host_architecture(), &layer("generic"));
    let newer = layout.add_manifest(host_architecture(), &layer("for newer processors"));
    let mut newer = with_platform(newer, "linux", host_architecture());
    newer["platform"]["variant"] = "v9".into();
    let attestation = layout.add_manifest(host_architecture(), &layer("attestation"));
    let mut attestation = with_platform(attestation, "linux", host_architecture());
    attestation["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
    let all = [
        attestation,
        with_platform(layout.add_blob(MANIFEST, b"not read"), "unknown", "unknown"),
        with_platform(layout.add_manifest("vax", &layer("other")), "linux", "vax"),
        newer,
        with_platform(generic, "linux", host_architecture()),
        layout.add_blob("application/vnd.example+json", b"not read"),
    ];
    // Tools for several platforms nest indexes.
    let mut index = json!({"schemaVersion": 2, "manifests": all});
    for _ in 0..2 {
        let inner = layout.add_blob(INDEX, index.to_string().as_bytes());
        index = json!({"schemaVersion": 2, "manifests": [inner]});
    }
    // The same image has two names.
    let inner = index["manifests"][0].clone();
    layout.manifests = vec![inner.clone(), inner];
    layout.write_index();
    assert_eq!(unpacked_content(&layout), "generic");
    for _ in 0..2 {
        let inner = layout.add_blob(INDEX, index.to_string().as_bytes());
        index = json!({"schemaVersion": 2, "manifests": [inner.clone()]});
        layout.manifests = vec![inner];
    }
    layout.write_index();
    assert!(matches!(unpack_error(layout.path()), ImageError::TooLarge(_)), "too deep");
}

#[test]
fn docker_media_types_are_supported() {
    let mut layout = LayoutFixture::new();
    let config = json!({"os": "linux", "architecture": host_architecture(), "config": null}).to_string();
    let config = layout.add_blob("application/vnd.docker.container.image.v1+json", config.as_bytes());
    let layers = [layout.add_blob("application/vnd.docker.image.rootfs.diff.tar.gzip", &gzip(&layer("docker")[0].1))];
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
    let manifest = layout.add_blob("application/vnd.docker.distribution.manifest.v2+json", manifest.as_bytes());
    let list = json!({"schemaVersion": 2, "manifests": [manifest]}).to_string();
    layout.manifests =
        vec![layout.add_blob("application/vnd.docker.distribution.manifest.list.v2+json", list.as_bytes())];
    layout.write_index();
    assert_eq!(unpacked_content(&layout), "docker");
}

#[test]
fn image_for_other_machines_is_refused() {
    let mut layout = LayoutFixture::new();
    layout.manifests = vec![layout.add_manifest("vax", &layer(""))];
    layout.write_index();
    let error = unpack_error(layout.path()).to_string();
    assert_eq!(error, format!("the image does not support linux/{}, only linux/vax", host_architecture()));
    // The platforms in the index and in the configuration of the image must both match.
    layout.manifests = vec![with_platform(layout.manifests[0].clone(), "linux", host_architecture())];
    layout.write_index();
    assert!(matches!(unpack_error(layout.path()), ImageError::Platform { .. }));
    layout.manifests =
        vec![with_platform(layout.add_manifest(host_architecture(), &layer("")), "windows", host_architecture())];
    layout.write_index();
    assert!(unpack_error(layout.path()).to_string().contains("only windows/"));
}

#[test]
fn several_images_are_refused() {
    let mut layout = LayoutFixture::new();
    layout.add_image(&layer("one"));
    layout.add_image(&layer("other"));
    assert!(matches!(unpack_error(layout.path()), ImageError::Several(2)));
}

#[test]
fn digest_and_size_of_every_blob_are_checked() {
    for part in ["manifest", "config", "layer"] {
        for change in ["other", "longer", "missing"] {
            let mut layout = LayoutFixture::new();
            layout.add_image(&layer("content"));
            let manifest: Value =
                serde_json::from_slice(&fs::read(layout.blob_path(&layout.manifests[0])).unwrap()).unwrap();
            let path = layout.blob_path(match part {
                "manifest" => &layout.manifests[0],
                "config" => &manifest["config"],
                _ => &manifest["layers"][0],
            });
            let mut content = fs::read(&path).unwrap();
            match change {
                // Change the last byte of a layer, which unpacking does not need, or a byte within a JSON string.
                "other" if part == "layer" => *content.last_mut().unwrap() = 1,
                "other" => {
                    let at = content.windows(3).position(|window| window == b"sha" || window == b"hel").unwrap();
                    content[at] ^= 1;
                }
                "longer" => content.push(b'\n'),
                _ => {}
            }
            fs::write(&path, content).unwrap();
            if change == "missing" {
                fs::remove_file(&path).unwrap();
            }
            let (cache, archive) = (tempfile::tempdir().unwrap(), layout.create_archive(""));
            for image in [layout.path(), &archive] {
                let error = unpack(image, cache.path()).unwrap_err();
                assert!(matches!(error, ImageError::Damaged(_)), "{part} {change}: {error}");
                assert_eq!(error.to_string().contains("bytes instead of"), change == "longer", "{error}");
            }
            let ready = cache.path().join("images/ready");
            assert!(!ready.exists() || list(&ready).is_empty(), "{part} {change}");
        }
    }
}

#[test]
fn unsupported_layer_types_are_refused_with_hint() {
    for kind in ["tar+gzip+encrypted", "tar+bzip2"] {
        let media_type = format!("application/vnd.oci.image.layer.v1.{kind}");
        let mut layout = LayoutFixture::new();
        layout.add_image(&[(&media_type, Vec::new())]);
        let error = unpack_error(layout.path());
        assert!(matches!(error, ImageError::LayerType(_)) && error.hint().contains("gzip"), "{media_type}: {error}");
    }
}

#[test]
fn invalid_images_are_refused_with_cause() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let legacy = tar(&[("manifest.json", Entry::File(0o644, "[]"))]);
    let config = json!({"digest": format!("sha256:{}", "0".repeat(64)), "size": 1});
    let both = json!({"manifests": [], "config": config, "layers": []}).to_string();
    let invalid_digest = r#"{"manifests": [{"digest": "sha256:../../\u001b[31m", "size": 1}]}"#;
    let errors = [
        unpack_error(directory.path()),
        unpack_error(&directory.path().join("missing")),
        unpack_error(Path::new("/dev/null")),
        unpack_error(&file("text", &b"no archive ".repeat(100))),
        unpack_error(&file("empty", b"")),
        unpack_error(&file("legacy.tar", &legacy)),
        unpack_error(&file("whole.tar.gz", &gzip(&legacy))),
        unpack_error(&file("both.tar", &tar(&[("index.json", Entry::File(0o644, &both))]))),
        unpack_error(&file("digest.tar", &tar(&[("index.json", Entry::File(0o644, invalid_digest))]))),
        unpack_error(&file("large.tar", &tar(&[("index.json", Entry::File(0o644, &" ".repeat(5 << 20)))]))),
        unpack_error(&file("none.tar", &tar(&[("index.json", Entry::File(0o644, r#"{"manifests": []}"#))]))),
    ];
    insta::assert_snapshot!(errors.map(|error| error.to_string()).join("\n"));
}

//! Which image of a layout is taken, and which layouts are none.

use serde_json::{Value, json};

use super::layout::{INDEX, MANIFEST};
use super::*;
use crate::choice::this_machine;

fn problem(image: &Path) -> ImageError {
    unpack(image, tempfile::tempdir().unwrap().path()).unwrap_err()
}

fn layer(content: &str) -> [(&'static str, Vec<u8>); 1] {
    [(TAR, tar(&[("file", Made::File(0o644, content))]))]
}

fn on(mut descriptor: Value, os: &str, architecture: &str) -> Value {
    descriptor["platform"] = json!({"os": os, "architecture": architecture});
    descriptor
}

fn content(layout: &Layout) -> String {
    let cache = tempfile::tempdir().unwrap();
    let root = unpack(layout.path(), cache.path()).unwrap().root;
    fs::read_to_string(root.join("file")).unwrap()
}

#[test]
fn the_image_for_this_machine_is_taken() {
    let mut layout = Layout::new();
    let own = layout.manifest(this_machine(), &layer("own"));
    let newer = layout.manifest(this_machine(), &layer("for newer processors"));
    let mut newer = on(newer, "linux", this_machine());
    newer["platform"]["variant"] = "v9".into();
    let attestation = layout.manifest(this_machine(), &layer("about another"));
    let mut attestation = on(attestation, "linux", this_machine());
    attestation["annotations"] = json!({"vnd.docker.reference.type": "attestation-manifest"});
    let all = [
        attestation,
        on(layout.blob(MANIFEST, b"not looked at"), "unknown", "unknown"),
        on(layout.manifest("vax", &layer("other")), "linux", "vax"),
        newer,
        on(own, "linux", this_machine()),
        layout.blob("application/vnd.example+json", b"not looked at"),
    ];
    // An index within an index within the index, as tools for several platforms write it.
    let mut index = json!({"schemaVersion": 2, "manifests": all});
    for _ in 0..2 {
        let inner = layout.blob(INDEX, index.to_string().as_bytes());
        index = json!({"schemaVersion": 2, "manifests": [inner]});
    }
    // Under two names.
    let inner = index["manifests"][0].clone();
    layout.manifests = vec![inner.clone(), inner];
    layout.write_index();
    assert_eq!(content(&layout), "own");
    for _ in 0..2 {
        let inner = layout.blob(INDEX, index.to_string().as_bytes());
        index = json!({"schemaVersion": 2, "manifests": [inner.clone()]});
        layout.manifests = vec![inner];
    }
    layout.write_index();
    assert!(matches!(problem(layout.path()), ImageError::TooLarge(_)), "too deep");
}

#[test]
fn types_of_docker_are_known() {
    let mut layout = Layout::new();
    let config = json!({"os": "linux", "architecture": this_machine(), "config": null}).to_string();
    let config = layout.blob("application/vnd.docker.container.image.v1+json", config.as_bytes());
    let layers = [layout.blob("application/vnd.docker.image.rootfs.diff.tar.gzip", &gzip(&layer("docker")[0].1))];
    let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers}).to_string();
    let manifest = layout.blob("application/vnd.docker.distribution.manifest.v2+json", manifest.as_bytes());
    let list = json!({"schemaVersion": 2, "manifests": [manifest]}).to_string();
    layout.manifests = vec![layout.blob("application/vnd.docker.distribution.manifest.list.v2+json", list.as_bytes())];
    layout.write_index();
    assert_eq!(content(&layout), "docker");
}

#[test]
fn an_image_for_other_machines_is_refused() {
    let mut layout = Layout::new();
    layout.manifests = vec![layout.manifest("vax", &layer(""))];
    layout.write_index();
    let said = problem(layout.path()).to_string();
    assert_eq!(said, format!("it has nothing for linux/{}; there is linux/vax", this_machine()));
    // What its index promises is not believed.
    layout.manifests = vec![on(layout.manifests[0].clone(), "linux", this_machine())];
    layout.write_index();
    assert!(matches!(problem(layout.path()), ImageError::Platform { .. }));
    layout.manifests = vec![on(layout.manifest(this_machine(), &layer("")), "windows", this_machine())];
    layout.write_index();
    assert!(problem(layout.path()).to_string().contains("there is windows/"));
}

#[test]
fn one_of_several_images_is_not_guessed() {
    let mut layout = Layout::new();
    layout.add_image(&layer("one"));
    layout.add_image(&layer("other"));
    assert!(matches!(problem(layout.path()), ImageError::Several(2)));
}

#[test]
fn every_part_must_be_what_its_digest_says() {
    for part in ["manifest", "config", "layer"] {
        for change in ["other", "longer", "missing"] {
            let mut layout = Layout::new();
            layout.add_image(&layer("true"));
            let manifest: Value =
                serde_json::from_slice(&fs::read(layout.blob_path(&layout.manifests[0])).unwrap()).unwrap();
            let path = layout.blob_path(match part {
                "manifest" => &layout.manifests[0],
                "config" => &manifest["config"],
                _ => &manifest["layers"][0],
            });
            let mut content = fs::read(&path).unwrap();
            match change {
                // After all that is read of a layer otherwise, or a space in JSON's place.
                "other" if part == "layer" => *content.last_mut().unwrap() = 1,
                "other" => {
                    let at = content.windows(3).position(|three| three == b"sha" || three == b"hel").unwrap();
                    content[at] ^= 1;
                }
                "longer" => content.push(b'\n'),
                _ => {}
            }
            fs::write(&path, content).unwrap();
            if change == "missing" {
                fs::remove_file(&path).unwrap();
            }
            let (cache, archive) = (tempfile::tempdir().unwrap(), layout.archive(""));
            for image in [layout.path(), &archive] {
                let said = unpack(image, cache.path()).unwrap_err();
                assert!(matches!(said, ImageError::Damaged(_)), "{part} {change}: {said}");
                assert_eq!(said.to_string().contains("bytes, and should have"), change == "longer", "{said}");
            }
            let ready = cache.path().join("images/ready");
            assert!(!ready.exists() || all(&ready).is_empty(), "{part} {change}");
        }
    }
}

#[test]
fn layers_of_other_kinds_are_refused_with_what_to_do() {
    for kind in ["tar+gzip+encrypted", "tar+bzip2"] {
        let media_type = format!("application/vnd.oci.image.layer.v1.{kind}");
        let mut layout = Layout::new();
        layout.add_image(&[(&media_type, Vec::new())]);
        let said = problem(layout.path());
        assert!(matches!(said, ImageError::LayerType(_)) && said.hint().contains("gzip"), "{media_type}: {said}");
    }
}

#[test]
fn what_is_no_image_is_told_apart() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = directory.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    let legacy = tar(&[("manifest.json", Made::File(0o644, "[]"))]);
    let config = json!({"digest": format!("sha256:{}", "0".repeat(64)), "size": 1});
    let both = json!({"manifests": [], "config": config, "layers": []}).to_string();
    let odd = r#"{"manifests": [{"digest": "sha256:../../\u001b[31m", "size": 1}]}"#;
    let said = [
        problem(directory.path()),
        problem(&directory.path().join("missing")),
        problem(Path::new("/dev/null")),
        problem(&file("text", &b"no archive ".repeat(100))),
        problem(&file("empty", b"")),
        problem(&file("legacy.tar", &legacy)),
        problem(&file("whole.tar.gz", &gzip(&legacy))),
        problem(&file("both.tar", &tar(&[("index.json", Made::File(0o644, &both))]))),
        problem(&file("odd.tar", &tar(&[("index.json", Made::File(0o644, odd))]))),
        problem(&file("large.tar", &tar(&[("index.json", Made::File(0o644, &" ".repeat(5 << 20)))]))),
        problem(&file("none.tar", &tar(&[("index.json", Made::File(0o644, r#"{"manifests": []}"#))]))),
    ];
    insta::assert_snapshot!(said.map(|error| error.to_string()).join("\n"));
}

//! `ringfence cache`: the size of the cache, and its removal.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::BINARY;

fn cache(directory: &Path, arguments: &[&str]) -> Value {
    let mut command = Command::new(BINARY);
    command.arg("cache").args(arguments).arg("--json").current_dir(directory);
    command.env("HOME", directory).env("RINGFENCE_CACHE_DIR", directory.join("cache"));
    let output = command.output().expect("run the command");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("JSON")
}

#[test]
fn size_is_shown_and_packages_are_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let mirror = json!({"entries": cache(directory.path(), &["show"])[0]["entries"], "name": "mirror"});
    assert_eq!(mirror, json!({"entries": 0, "name": "mirror"}), "a cache that does not exist is empty");
    let files = directory.path().join("cache/mirror/v1/files/sha256/aa");
    let installed = directory.path().join("cache/packages/ready/key");
    for (directory, name) in [(&files, "aa11"), (&installed, "module.py")] {
        fs::create_dir_all(directory).expect("a directory");
        fs::write(directory.join(name), [0; 1000]).expect("a file");
    }
    let shown = cache(directory.path(), &["show"]);
    let sizes: Vec<(&str, u64, u64)> = shown
        .as_array()
        .expect("a list")
        .iter()
        .map(|part| {
            (
                part["name"].as_str().unwrap_or_default(),
                part["entries"].as_u64().unwrap_or_default(),
                part["bytes"].as_u64().unwrap_or_default(),
            )
        })
        .collect();
    assert_eq!(sizes, [("mirror", 1, 1000), ("packages", 1, 1000), ("images", 0, 0)]);
    assert_eq!(cache(directory.path(), &["prune"]), json!({"entries": 0, "bytes": 0}));
    assert_eq!(cache(directory.path(), &["prune", "--older-than", "1d"]), json!({"entries": 0, "bytes": 0}));
    assert_eq!(cache(directory.path(), &["prune", "--all"]), json!({"entries": 1, "bytes": 1000}));
    assert!(!files.join("aa11").exists() && installed.join("module.py").exists());
}

use std::os::unix::fs::{PermissionsExt as _, symlink};

use ringfence_egress::Location;
use tempfile::TempDir;

use super::*;

fn store() -> (TempDir, SecretStore) {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().canonicalize().unwrap().join("below/state");
    (directory, SecretStore::new(&state, Some(&state)))
}

fn secret(value: &str) -> StoredSecret {
    let settings = SecretSettings {
        variable: "TOKEN".into(),
        hosts: vec!["api.example".into(), "private.example:8443+private".into()],
        methods: vec!["GET".into()],
        paths: vec!["/user".into(), "/repos/*".into()],
        locations: [Location::Header, Location::Query].into(),
    };
    StoredSecret { value: SecretValue::new(value).unwrap(), settings }
}

fn add(store: &SecretStore, name: &str, value: &str) {
    store.add(name, secret(value), OnExisting::Replace).unwrap();
}

#[test]
fn secrets_are_added_replaced_and_removed() {
    let (_directory, store) = store();
    assert_eq!(store.read().unwrap(), BTreeMap::new());
    assert!(!store.remove("a").unwrap());
    assert!(!store.path.parent().unwrap().exists(), "reading creates nothing");
    let empty = store.revision();
    add(&store, "a", "first-value");
    store.add("b", secret("quoted \"\\ value"), OnExisting::Refuse).unwrap();
    assert!(matches!(store.add("a", secret("other-value"), OnExisting::Refuse), Err(SecretStoreError::Exists { .. })));
    let expected = [("a".to_owned(), secret("first-value")), ("b".to_owned(), secret("quoted \"\\ value"))];
    assert_eq!(store.read().unwrap(), BTreeMap::from(expected));
    let before = store.revision();
    assert_ne!(before, empty);
    add(&store, "a", "other-value");
    assert_ne!(store.revision(), before);
    assert!(store.remove("a").unwrap());
    assert_eq!(store.read().unwrap().into_keys().collect::<Vec<_>>(), ["b"]);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let state = store.path.parent().unwrap();
    assert_eq!((mode(state), mode(&store.path)), (0o700, 0o600));
    let mut names: Vec<_> = fs::read_dir(state).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["secrets.json", "secrets.lock"]);
}

#[test]
fn remains_of_a_crash_are_replaced() {
    let (_directory, store) = store();
    add(&store, "a", "first-value");
    // A link would let the next write create a file elsewhere.
    let elsewhere = store.path.with_file_name("elsewhere");
    symlink(&elsewhere, store.path.with_extension("json.new")).unwrap();
    add(&store, "b", "other-value");
    assert!(!elsewhere.exists());
    assert_eq!(store.read().unwrap().len(), 2);
}

#[test]
fn untrusted_and_damaged_files_are_refused_without_their_content() {
    let (_directory, store) = store();
    add(&store, "a", "first-value");
    let text = fs::read_to_string(&store.path).unwrap();
    let refused = |expected: &str| {
        let error = store.read().unwrap_err();
        let shown = format!("{error} {error:?} {}", error.hint());
        assert!(shown.contains(expected) && !shown.contains("first-value"), "{shown}");
        // A change never replaces what it cannot read.
        assert!(store.add("b", secret("other-value"), OnExisting::Replace).is_err());
    };
    for mode in [0o640, 0o604, 0o620, 0o602] {
        fs::set_permissions(&store.path, fs::Permissions::from_mode(mode)).unwrap();
        refused("can be read or written by others");
    }
    fs::set_permissions(&store.path, fs::Permissions::from_mode(0o600)).unwrap();
    for (from, to) in [("\"first-value\"", "[\"first-value\"]"), ("\"value\"", "\"first-value\""), ("}", "")] {
        fs::write(&store.path, text.replace(from, to)).unwrap();
        refused("invalid content in line");
    }
    fs::write(&store.path, text.replace("\"version\": 1", "\"version\": 2")).unwrap();
    refused("its version is 2");
    fs::write(&store.path, text.replace("first-value", "short")).unwrap();
    refused("shorter than 8 bytes");
    fs::write(&store.path, text.replace("\"/user\"", "\"user\"")).unwrap();
    refused("secret `a`");
    fs::write(&store.path, &text).unwrap();
    fs::hard_link(&store.path, store.path.with_file_name("other")).unwrap();
    refused("hard links");
    fs::rename(store.path.with_file_name("other"), store.path.with_file_name("moved")).unwrap();
    fs::remove_file(&store.path).unwrap();
    symlink("moved", &store.path).unwrap();
    refused("is a symbolic link");
}

#[test]
fn file_that_a_guest_could_have_written_is_refused() {
    let (directory, store) = store();
    add(&store, "a", "first-value");
    let state = store.path.parent().unwrap().to_owned();
    let volume = directory.path().canonicalize().unwrap();
    let record = VolumeRecord::in_directory(&state);
    // A guest sees a protected directory empty.
    record.add(std::slice::from_ref(&volume), std::slice::from_ref(&state), None).unwrap();
    assert_eq!(store.read().unwrap().len(), 1);
    record.add(std::slice::from_ref(&volume), &[], None).unwrap();
    let error = store.read().unwrap_err().to_string();
    assert!(error.contains("may be written by a guest"), "{error}");
}

#[test]
fn number_of_secrets_is_limited() {
    let (_directory, store) = store();
    add(&store, "first", "first-value");
    store
        .update(|secrets| {
            secrets.extend((1..MAX_SECRETS).map(|number| (format!("s{number}"), secret("first-value"))));
            Ok(())
        })
        .unwrap();
    let full = store.add("one-more", secret("first-value"), OnExisting::Refuse);
    assert!(matches!(full, Err(SecretStoreError::Full)), "{full:?}");
    assert_eq!(store.read().unwrap().len(), MAX_SECRETS);
    add(&store, "first", "other-value");
}

//! The listing of servers while its sources change.

use std::path::Path;

use ringfence_core::{Access, Volume};
use serde_json::json;

use super::*;
use ringfence_config::Environment;
use ringfence_entries::entry_from_json;
use ringfence_store::OnConflict;

/// Timeout for an expected listing, far longer than an update takes.
const TIMEOUT: Duration = Duration::from_secs(60);

struct Fixture {
    directory: tempfile::TempDir,
    store: Store,
    sources: Sources,
}

impl Fixture {
    fn new(config: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ringfence.toml");
        std::fs::write(&file, config).unwrap();
        let store = Store::open(&directory.path().join("state")).unwrap();
        let environment = Environment::new([("HOME", "/nonexistent")]);
        Self { sources: Sources { file: Some(file), environment, flags: Vec::new() }, store, directory }
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.directory.path().join(name), text).unwrap();
    }

    async fn add(&self, name: &str, command: &str) {
        let entry = entry_from_json(name, &json!({"command": command})).unwrap().0;
        self.store.add_server(entry, None, OnConflict::Replace).await.unwrap();
    }

    async fn start(&self) -> ListingWatcher {
        let configuration = ringfence_config::load(&self.sources).unwrap();
        ListingWatcher::start(self.sources.clone(), &configuration, self.store.clone(), FileTrust::default()).await
    }

    /// Returns `name=command` of each server, and the problems, without the path of the fixture.
    fn describe(&self, listing: &Listing) -> (Vec<String>, Vec<String>) {
        let servers = listing.servers.iter().map(|listed| {
            let ringfence_entries::Transport::Stdio(stdio) = &listed.entry.transport else { panic!("a command") };
            format!("{}={}", listed.entry.name, stdio.command)
        });
        let plain = |problem: &Problem| problem.to_string().replace(&format!("{}/", self.path().display()), "");
        (servers.collect(), listing.problems.iter().map(plain).collect())
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Waits until the listing has these servers and problems.
    async fn expect(&self, watcher: &ListingWatcher, servers: &[&str], problems: &[&str]) {
        let mut listings = watcher.subscribe();
        let matches = |listing: &Arc<Listing>| {
            let (found_servers, found_problems) = self.describe(listing);
            found_servers == servers && found_problems == problems
        };
        let is_expected = tokio::time::timeout(TIMEOUT, listings.wait_for(matches)).await.is_ok();
        assert!(is_expected, "expected {servers:?} {problems:?}, found {:#?}", self.describe(&watcher.current()));
    }
}

#[tokio::test]
async fn first_definition_wins_and_others_are_reported() {
    let fixture = Fixture::new(
        "[hosting]\nfiles = [\"one.json\", \"two.json\", \"none.json\"]\n\
         [servers.a]\ncommand = \"configuration\"\n[servers.b]\ncommand = \"configuration\"\n",
    );
    fixture.write("one.json", r#"{"mcpServers": {"b": {"command": "one"}, "c": {"command": "one"}, "d": {}}}"#);
    fixture.write("two.json", r#"{"c": {"command": "two"}, "e": {"command": "two", "colour": 1}}"#);
    fixture.add("a", "store").await;
    let watcher = fixture.start().await;
    let (servers, problems) = fixture.describe(&watcher.current());
    assert_eq!(servers, ["a=store", "b=configuration", "c=one", "e=two"]);
    insta::assert_snapshot!(problems.join("\n"));
    let uuid = |name: &str| watcher.current().find(name).unwrap().entry.uuid.clone();
    assert_eq!(uuid("c"), ringfence_entries::derived_uuid("c"), "the UUID is the same after a restart");
    assert_ne!(uuid("a"), ringfence_entries::derived_uuid("a"));
}

#[tokio::test]
async fn listing_follows_changes_of_files_and_store() {
    let fixture = Fixture::new("[hosting]\nfiles = [\"one.json\"]\n[servers.a]\ncommand = \"x\"\n");
    fixture.write("one.json", r#"{"mcpServers": {"b": {"command": "one"}}}"#);
    let watcher = fixture.start().await;
    fixture.expect(&watcher, &["a=x", "b=one"], &[]).await;

    fixture.write("one.json", r#"{"mcpServers": {"b": {"command": "one"}, "c": {"command": "more"}}}"#);
    fixture.expect(&watcher, &["a=x", "b=one", "c=more"], &[]).await;
    // Editors replace files by renaming.
    fixture.write("new", r#"{"mcpServers": {"c": {"command": "replaced"}}}"#);
    std::fs::rename(fixture.path().join("new"), fixture.path().join("one.json")).unwrap();
    fixture.expect(&watcher, &["a=x", "c=replaced"], &[]).await;

    fixture.write("ringfence.toml", "[hosting]\nfiles = [\"two.json\"]\n[servers.a]\ncommand = \"y\"\n");
    fixture.expect(&watcher, &["a=y"], &["two.json: no such file"]).await;
    fixture.write("two.json", r#"{"mcpServers": {"d": {"command": "two"}}}"#);
    fixture.expect(&watcher, &["a=y", "d=two"], &[]).await;

    // A change by another process.
    let other = Store::open(&fixture.path().join("state")).unwrap();
    let entry = entry_from_json("s", &json!({"command": "stored"})).unwrap().0;
    other.add_server(entry, None, OnConflict::Refuse).await.unwrap();
    fixture.expect(&watcher, &["a=y", "d=two", "s=stored"], &[]).await;
    other.remove_server("s").await.unwrap();
    fixture.expect(&watcher, &["a=y", "d=two"], &[]).await;
}

#[tokio::test]
async fn broken_source_keeps_its_previous_servers() {
    let fixture = Fixture::new("[hosting]\nfiles = [\"one.json\"]\n[servers.a]\ncommand = \"x\"\n");
    fixture.write("one.json", r#"{"mcpServers": {"b": {"command": "one"}, "c": {"command": "one"}}}"#);
    let watcher = fixture.start().await;
    fixture.write("one.json", r#"{"mcpServers": {"b": {"comm"#);
    let broken = "one.json: invalid JSON on line 1; its previous servers stay in use";
    fixture.expect(&watcher, &["a=x", "b=one", "c=one"], &[broken]).await;
    fixture.write("one.json", r#"{"mcpServers": {"b": {"command": 5}, "c": {"command": "two"}}}"#);
    let wrong = "one.json: server `b`: `command` must be a string, not a number";
    fixture.expect(&watcher, &["a=x", "b=one", "c=two"], &[wrong]).await;
    fixture.write("ringfence.toml", "[servers.a]\ncomand = \"y\"\n");
    let refused = "ringfence.toml: ringfence.toml:2: unknown key `comand`; the previous configuration stays in use";
    fixture.expect(&watcher, &["a=x", "b=one", "c=two"], &[refused, wrong]).await;
    fixture.write("ringfence.toml", "[servers.a]\ncommand = \"z\"\n");
    fixture.expect(&watcher, &["a=z"], &[]).await;
}

#[tokio::test]
async fn frozen_files_are_not_read_again() {
    let fixture = Fixture::new("[hosting]\nfiles = [\"one.json\"]\n[servers.a]\ncommand = \"x\"\n");
    fixture.write("one.json", r#"{"mcpServers": {"b": {"command": "one"}}}"#);
    let configuration = ringfence_config::load(&fixture.sources).unwrap();
    let (sources, store) = (fixture.sources.clone(), fixture.store.clone());
    let trust = FileTrust::default();
    let watcher = ListingWatcher::start(sources, &configuration, store, trust.clone()).await;
    trust.freeze();
    fixture.write("ringfence.toml", "[servers.planted]\ncommand = \"y\"\n");
    fixture.write("one.json", r#"{"mcpServers": {"planted": {"command": "two"}}}"#);
    watcher.refresh().await;
    assert_eq!(fixture.describe(&watcher.current()).0, ["a=x", "b=one"]);
    // No guest can write the store.
    fixture.add("s", "stored").await;
    fixture.expect(&watcher, &["a=x", "b=one", "s=stored"], &[]).await;
}

#[tokio::test]
async fn guest_writable_file_that_is_configured_later_is_not_read() {
    let fixture = Fixture::new("[servers.a]\ncommand = \"x\"\n");
    std::fs::create_dir(fixture.path().join("data")).unwrap();
    fixture.write("data/planted.json", r#"{"mcpServers": {"planted": {"command": "y"}}}"#);
    let configuration = ringfence_config::load(&fixture.sources).unwrap();
    let (sources, store) = (fixture.sources.clone(), fixture.store.clone());
    let writable = GuestWritable::default();
    let watcher = ListingWatcher::start(sources, &configuration, store, FileTrust::new(writable.clone())).await;
    let host = fixture.path().join("data");
    writable.add(&[Volume { host, guest: "/data".into(), access: Access::ReadWrite, allowed_root: None }]).unwrap();
    // The configuration itself is outside of the volume.
    fixture.write("ringfence.toml", "[servers.a]\ncommand = \"z\"\n");
    fixture.expect(&watcher, &["a=z"], &[]).await;
    fixture.write("ringfence.toml", "[hosting]\nfiles = [\"data/planted.json\"]\n[servers.a]\ncommand = \"w\"\n");
    watcher.refresh().await;
    let (servers, problems) = fixture.describe(&watcher.current());
    assert_eq!(servers, ["a=w"]);
    assert!(problems.len() == 1 && problems[0].contains("guests may write"), "{problems:?}");
}

#[tokio::test]
async fn refresh_returns_after_own_changes_are_listed() {
    let fixture = Fixture::new("");
    let watcher = fixture.start().await;
    fixture.add("a", "x").await;
    watcher.refresh().await;
    assert_eq!(fixture.describe(&watcher.current()).0, ["a=x"]);
    fixture.store.enable_server("a", false).await.unwrap();
    watcher.refresh().await;
    assert!(!watcher.current().servers[0].entry.enable);
}

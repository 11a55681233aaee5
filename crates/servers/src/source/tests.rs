//! What a running server knows of its servers, while people change them.

use std::path::Path;

use ringfence_core::{Access, Volume};
use serde_json::json;

use super::*;
use ringfence_config::Environment;
use ringfence_entries::entry_from_json;
use ringfence_store::OnConflict;

/// Far longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(60);

struct Stage {
    directory: tempfile::TempDir,
    store: Store,
    sources: Sources,
}

impl Stage {
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

    async fn start(&self) -> ServerSource {
        let configuration = ringfence_config::load(&self.sources).unwrap();
        ServerSource::start(self.sources.clone(), &configuration, self.store.clone(), Following::default()).await
    }

    /// `name=command` of each, and the problems, with no trace of this machine.
    fn shown(&self, listing: &Listing) -> (Vec<String>, Vec<String>) {
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

    /// Waits until the listing is this.
    async fn expect(&self, source: &ServerSource, servers: &[&str], problems: &[&str]) {
        let mut listings = source.subscribe();
        let matches = |listing: &Arc<Listing>| {
            let (found, told) = self.shown(listing);
            found == servers && told == problems
        };
        let came = tokio::time::timeout(DEADLINE, listings.wait_for(matches)).await.is_ok();
        assert!(came, "{servers:?} {problems:?} was expected; there is {:#?}", self.shown(&source.current()));
    }
}

#[tokio::test]
async fn the_first_definition_wins_and_the_rest_are_reported() {
    let stage = Stage::new(
        "[hosting]\nfiles = [\"one.json\", \"two.json\", \"none.json\"]\n\
         [servers.a]\ncommand = \"configuration\"\n[servers.b]\ncommand = \"configuration\"\n",
    );
    stage.write("one.json", r#"{"mcpServers": {"b": {"command": "one"}, "c": {"command": "one"}, "d": {}}}"#);
    stage.write("two.json", r#"{"c": {"command": "two"}, "e": {"command": "two", "colour": 1}}"#);
    stage.add("a", "store").await;
    let source = stage.start().await;
    let (servers, problems) = stage.shown(&source.current());
    assert_eq!(servers, ["a=store", "b=configuration", "c=one", "e=two"]);
    insta::assert_snapshot!(problems.join("\n"));
    let uuid = |name: &str| source.current().find(name).unwrap().entry.uuid.clone();
    assert_eq!(uuid("c"), ringfence_entries::derived_uuid("c"), "it stays the same from start to start");
    assert_ne!(uuid("a"), ringfence_entries::derived_uuid("a"));
}

#[tokio::test]
async fn changes_of_files_and_of_the_store_are_followed() {
    let stage = Stage::new("[hosting]\nfiles = [\"one.json\"]\n[servers.a]\ncommand = \"x\"\n");
    stage.write("one.json", r#"{"mcpServers": {"b": {"command": "one"}}}"#);
    let source = stage.start().await;
    stage.expect(&source, &["a=x", "b=one"], &[]).await;

    stage.write("one.json", r#"{"mcpServers": {"b": {"command": "one"}, "c": {"command": "more"}}}"#);
    stage.expect(&source, &["a=x", "b=one", "c=more"], &[]).await;
    // As editors do it.
    stage.write("new", r#"{"mcpServers": {"c": {"command": "replaced"}}}"#);
    std::fs::rename(stage.path().join("new"), stage.path().join("one.json")).unwrap();
    stage.expect(&source, &["a=x", "c=replaced"], &[]).await;

    stage.write("ringfence.toml", "[hosting]\nfiles = [\"two.json\"]\n[servers.a]\ncommand = \"y\"\n");
    stage.expect(&source, &["a=y"], &["two.json: there is no such file"]).await;
    stage.write("two.json", r#"{"mcpServers": {"d": {"command": "two"}}}"#);
    stage.expect(&source, &["a=y", "d=two"], &[]).await;

    // Another process of the same user.
    let other = Store::open(&stage.path().join("state")).unwrap();
    let entry = entry_from_json("s", &json!({"command": "stored"})).unwrap().0;
    other.add_server(entry, None, OnConflict::Refuse).await.unwrap();
    stage.expect(&source, &["a=y", "d=two", "s=stored"], &[]).await;
    other.remove_server("s").await.unwrap();
    stage.expect(&source, &["a=y", "d=two"], &[]).await;
}

#[tokio::test]
async fn what_breaks_keeps_what_it_had() {
    let stage = Stage::new("[hosting]\nfiles = [\"one.json\"]\n[servers.a]\ncommand = \"x\"\n");
    stage.write("one.json", r#"{"mcpServers": {"b": {"command": "one"}, "c": {"command": "one"}}}"#);
    let source = stage.start().await;
    stage.write("one.json", r#"{"mcpServers": {"b": {"comm"#);
    let broken = "one.json: it is not JSON: an error on line 1; what it had before stays";
    stage.expect(&source, &["a=x", "b=one", "c=one"], &[broken]).await;
    stage.write("one.json", r#"{"mcpServers": {"b": {"command": 5}, "c": {"command": "two"}}}"#);
    let wrong = "one.json: server `b`: `command` must be a string, not a number";
    stage.expect(&source, &["a=x", "b=one", "c=two"], &[wrong]).await;
    stage.write("ringfence.toml", "[servers.a]\ncomand = \"y\"\n");
    let refused = "ringfence.toml: ringfence.toml:2: unknown key `comand`; what it had before stays";
    stage.expect(&source, &["a=x", "b=one", "c=two"], &[refused, wrong]).await;
    stage.write("ringfence.toml", "[servers.a]\ncommand = \"z\"\n");
    stage.expect(&source, &["a=z"], &[]).await;
}

#[tokio::test]
async fn files_that_guests_may_write_decide_nothing_any_more() {
    let stage = Stage::new("[hosting]\nfiles = [\"one.json\"]\n[servers.a]\ncommand = \"x\"\n");
    stage.write("one.json", r#"{"mcpServers": {"b": {"command": "one"}}}"#);
    let configuration = ringfence_config::load(&stage.sources).unwrap();
    let (sources, store) = (stage.sources.clone(), stage.store.clone());
    let following = Following::default();
    let source = ServerSource::start(sources, &configuration, store, following.clone()).await;
    following.end();
    stage.write("ringfence.toml", "[servers.planted]\ncommand = \"y\"\n");
    stage.write("one.json", r#"{"mcpServers": {"planted": {"command": "two"}}}"#);
    source.refresh().await;
    assert_eq!(stage.shown(&source.current()).0, ["a=x", "b=one"]);
    // The store is ours.
    stage.add("s", "stored").await;
    stage.expect(&source, &["a=x", "b=one", "s=stored"], &[]).await;
}

#[tokio::test]
async fn nor_do_files_that_are_named_later_where_guests_may_write() {
    let stage = Stage::new("[servers.a]\ncommand = \"x\"\n");
    std::fs::create_dir(stage.path().join("data")).unwrap();
    stage.write("data/planted.json", r#"{"mcpServers": {"planted": {"command": "y"}}}"#);
    let configuration = ringfence_config::load(&stage.sources).unwrap();
    let (sources, store) = (stage.sources.clone(), stage.store.clone());
    let writable = GuestWritable::default();
    let source = ServerSource::start(sources, &configuration, store, Following::new(writable.clone())).await;
    let host = stage.path().join("data");
    writable.add(&[Volume { host, guest: "/data".into(), access: Access::ReadWrite, allowed_root: None }]).unwrap();
    // Of no concern to what lies elsewhere.
    stage.write("ringfence.toml", "[servers.a]\ncommand = \"z\"\n");
    stage.expect(&source, &["a=z"], &[]).await;
    stage.write("ringfence.toml", "[hosting]\nfiles = [\"data/planted.json\"]\n[servers.a]\ncommand = \"w\"\n");
    source.refresh().await;
    let (servers, problems) = stage.shown(&source.current());
    assert_eq!(servers, ["a=w"]);
    assert!(problems.len() == 1 && problems[0].contains("guests may write"), "{problems:?}");
}

#[tokio::test]
async fn what_this_process_changes_is_there_at_once() {
    let stage = Stage::new("");
    let source = stage.start().await;
    stage.add("a", "x").await;
    source.refresh().await;
    assert_eq!(stage.shown(&source.current()).0, ["a=x"]);
    stage.store.enable_server("a", false).await.unwrap();
    source.refresh().await;
    assert!(!source.current().servers[0].entry.enable);
}

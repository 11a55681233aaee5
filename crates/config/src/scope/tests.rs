use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::PathBuf;
use std::sync::Arc;

use ringfence_core::{Access, Volume};
use ringfence_testkit::skip;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;
use crate::configuration::SessionSettings;

/// A directory with a scope file and the root that the scope allows.
struct Fixture {
    directory: TempDir,
}

impl Fixture {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["root/project/work", "root/other", "elsewhere"] {
            std::fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        Self { directory }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.directory.path().canonicalize().unwrap().join(below)
    }

    fn scope(&self) -> Value {
        json!({
            "session_id": "s-1",
            "run_id": "r-1",
            "drain": true,
            "capabilities": ["code", "files.read"],
            "allowed_roots": [self.path("root")],
        })
    }

    fn write(&self, scope: &Value) -> PathBuf {
        self.write_text(&scope.to_string())
    }

    fn write_text(&self, text: &str) -> PathBuf {
        let path = self.path("scope.json");
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        path
    }

    fn load(&self, scope: &Value) -> Result<Scope, ScopeError> {
        Scope::load(&self.write(scope)).map(|(scope, _)| scope)
    }

    fn with(&self, changes: &Value) -> Result<Scope, ScopeError> {
        let mut scope = self.scope();
        for (key, value) in changes.as_object().unwrap() {
            scope[key] = value.clone();
        }
        self.load(&scope)
    }

    fn volume(&self, below: &str, access: Access) -> Volume {
        Volume { host: self.path(below), guest: PathBuf::from("/shown").join(below), access, allowed_root: None }
    }

    /// Returns the error and its hints as the user sees them, with a fixed name for the directory.
    fn message(&self, error: &ScopeError) -> String {
        let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
        let text = format!("{error}{source}; {}", error.hints().join("; "));
        text.replace(&*self.path("").to_string_lossy(), "[fixture]/")
    }
}

#[test]
fn all_fields_are_read() {
    let fixture = Fixture::new();
    let scope = fixture
        .with(&json!({
            "drain": 2.5,
            "parallel_worker": true,
            "worker_namespace": "w-1",
            "worker_artifact_dir": fixture.path("root/project/work"),
            "model_identity": {"provider": "p", "model_id": "m", "transport": "t"},
            "capability_profile": "code",
        }))
        .unwrap();
    assert_eq!(scope.capabilities, [Capability::Code, Capability::ReadFiles].into());
    assert!(scope.allows(Capability::Code) && !scope.allows(Capability::Command));
    assert_eq!(scope.drain_timeout, Duration::from_millis(2500));
    assert_eq!(scope.profile.as_deref(), Some("code"));
    assert_eq!(
        json!(scope.run),
        json!({
            "session_id": "s-1",
            "run_id": "r-1",
            "worker_namespace": "w-1",
            "model_identity": {"provider": "p", "model_id": "m", "transport": "t"},
        })
    );
    assert_eq!(scope.principal(Principal::local()).name(), "local@w-1");
}

#[test]
fn drain_is_a_switch_a_time_or_a_stage() {
    let fixture = Fixture::new();
    let drain = |drain: Value| fixture.with(&json!({"drain": drain})).unwrap();
    assert_eq!(drain(json!(false)).drain_timeout, Duration::ZERO);
    assert_eq!(drain(json!(0)).drain_timeout, Duration::ZERO);
    assert_eq!(drain(json!(30)).drain_timeout, Duration::from_secs(30));
    assert!(drain(json!(true)).drain_timeout > Duration::ZERO);
    let stage = drain(json!("review"));
    assert_eq!((stage.drain_timeout, stage.run.stage.as_deref()), (drain(json!(true)).drain_timeout, Some("review")));
}

#[test]
fn invalid_scopes_are_refused() {
    let fixture = Fixture::new();
    let mut without_run = fixture.scope();
    without_run.as_object_mut().unwrap().remove("run_id");
    let file = fixture.path("file");
    std::fs::write(&file, "").unwrap();
    let errors = [
        fixture.load(&without_run),
        fixture.with(&json!({"capabilites": []})),
        fixture.with(&json!({"capabilities": ["code", "comand"]})),
        fixture.with(&json!({"capabilities": ["everything"]})),
        fixture.with(&json!({"capabilities": "code"})),
        fixture.with(&json!({"drain": "x".repeat(257)})),
        fixture.with(&json!({"drain": -1})),
        fixture.with(&json!({"drain": [1]})),
        fixture.with(&json!({"run_id": ""})),
        fixture.with(&json!({"run_id": "a\nb"})),
        fixture.with(&json!({"allowed_roots": ["root"]})),
        fixture.with(&json!({"allowed_roots": [fixture.path("missing")]})),
        fixture.with(&json!({"allowed_roots": [&file]})),
        fixture.with(&json!({"worker_artifact_dir": fixture.path("root/other")})),
        fixture.with(&json!({"parallel_worker": true, "worker_artifact_dir": fixture.path("elsewhere")})),
        fixture.with(&json!({"parallel_worker": true, "worker_artifact_dir": "work"})),
        fixture.with(&json!({"parallel_worker": true, "worker_artifact_dir": fixture.path("root/missing")})),
        fixture.with(&json!({"parallel_worker": true, "worker_artifact_dir": file})),
        fixture.with(&json!({"worker_namespace": "a@b"})),
        fixture.with(&json!({"model_identity": {"provider": "p", "key": "k"}})),
        Scope::load(&fixture.write_text("{")).map(|(scope, _)| scope),
        Scope::load(&fixture.write_text("{} {}")).map(|(scope, _)| scope),
        Scope::load(&fixture.write_text(&" ".repeat(65 << 10))).map(|(scope, _)| scope),
        Scope::load(&fixture.path("missing.json")).map(|(scope, _)| scope),
    ];
    let messages: Vec<String> = errors.into_iter().map(|error| fixture.message(&error.unwrap_err())).collect();
    insta::assert_snapshot!(messages.join("\n"));
}

#[test]
fn file_that_others_can_read_or_write_is_refused() {
    let fixture = Fixture::new();
    let path = fixture.write(&fixture.scope());
    for mode in [0o644, 0o640, 0o604, 0o620, 0o602, 0o610, 0o666] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        let error = Scope::load(&path).unwrap_err();
        assert!(error.to_string().contains(&format!("can be read or written by others (mode {mode:04o})")), "{error}");
        assert!(error.hints()[0].starts_with("`chmod 600 "), "{error:?}");
    }
    for mode in [0o600, 0o400] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        assert!(Scope::load(&path).is_ok(), "{mode:o}");
    }
}

#[test]
fn only_regular_file_of_trusted_user_is_read() {
    let fixture = Fixture::new();
    let (path, link) = (fixture.write(&fixture.scope()), fixture.path("link.json"));
    symlink(&path, &link).unwrap();
    assert!(Scope::load(&link).unwrap_err().to_string().ends_with("is a symbolic link"));
    assert!(Scope::load(&fixture.path("root")).unwrap_err().to_string().ends_with("is not a regular file"));
    let pipe = fixture.path("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600), 0)
        .unwrap();
    assert!(Scope::load(&pipe).unwrap_err().to_string().ends_with("is not a regular file"));
    // Only root can give a file away.
    if rustix::process::geteuid().is_root() {
        chown(&path, Some(65_534), None).unwrap();
        assert!(Scope::load(&path).unwrap_err().to_string().contains("belongs to another user"));
    } else {
        skip("scope: file of another user", "the tests do not run as root");
    }
}

#[test]
fn file_that_others_could_have_replaced_is_refused() {
    let fixture = Fixture::new();
    let (path, other) = (fixture.write(&fixture.scope()), fixture.path("other.json"));
    std::fs::hard_link(&path, &other).unwrap();
    let message = fixture.message(&Scope::load(&path).unwrap_err());
    assert!(message.contains("has 2 hard links") && message.contains("a new file"), "{message}");
    std::fs::remove_file(&other).unwrap();
    let allow = |mode| std::fs::set_permissions(fixture.path(""), std::fs::Permissions::from_mode(mode)).unwrap();
    for mode in [0o777, 0o770, 0o707, 0o720] {
        allow(mode);
        let message = fixture.message(&Scope::load(&path).unwrap_err());
        assert!(message.contains(&format!("lies in a directory that others can write (mode {mode:04o})")), "{message}");
        assert!(message.contains("`chmod go-w "), "{message}");
    }
    for mode in [0o1777, 0o755, 0o700] {
        allow(mode);
        assert!(Scope::load(&path).is_ok(), "{mode:o}");
    }
    // Only root can give a directory away.
    if rustix::process::geteuid().is_root() {
        chown(fixture.path(""), Some(65_534), None).unwrap();
        let message = fixture.message(&Scope::load(&path).unwrap_err());
        assert!(message.contains("lies in a directory of another user (uid 65534)"), "{message}");
    } else {
        skip("scope: directory of another user", "the tests do not run as root");
    }
}

#[test]
fn changed_scope_is_refused() {
    let fixture = Fixture::new();
    let (first, _) = Scope::load(&fixture.write(&fixture.scope())).unwrap();
    let (again, file) = Scope::load(&fixture.write(&fixture.scope())).unwrap();
    assert!(again.check_digest(&first.digest, &file).is_ok());
    assert!(first.digest.len() == 64 && first.digest.starts_with(&first.tag));
    let (other, file) = Scope::load(&fixture.write_text(&format!("{} ", fixture.scope()))).unwrap();
    let message = fixture.message(&other.check_digest(&first.digest, &file).unwrap_err());
    assert!(message.contains("has changed since this endpoint was started"), "{message}");
}

#[test]
fn links_in_artifact_directory_are_resolved_only_in_its_root() {
    let fixture = Fixture::new();
    symlink(fixture.path("root"), fixture.path("named")).unwrap();
    symlink("work", fixture.path("root/project/planted")).unwrap();
    symlink("project", fixture.path("root/planted")).unwrap();
    let worker = |artifacts: &str| {
        let roots = json!([fixture.path("named"), fixture.path("root/project")]);
        fixture.with(
            &json!({"allowed_roots": roots, "parallel_worker": true, "worker_artifact_dir": fixture.path(artifacts)}),
        )
    };
    for artifacts in ["named/project/work", "root/project/work", "named/other"] {
        let volumes = worker(artifacts).unwrap().confinement.session_volumes(Vec::new()).unwrap();
        assert_eq!(volumes[0].host, fixture.path(&artifacts.replace("named", "root")), "{artifacts}");
    }
    for artifacts in ["root/project/planted", "named/planted/work", "named/../elsewhere", "elsewhere"] {
        assert!(matches!(worker(artifacts), Err(ScopeError::OutsideAllowedRoots(_))), "{artifacts}");
    }
}

#[test]
fn remove_deletes_only_the_file_that_was_read() {
    let fixture = Fixture::new();
    let path = fixture.write(&fixture.scope());
    let (_, file) = Scope::load(&path).unwrap();
    file.remove().unwrap();
    assert!(!path.exists());
    let (_, file) = Scope::load(&fixture.write(&fixture.scope())).unwrap();
    std::fs::rename(&path, fixture.path("renamed")).unwrap();
    std::fs::write(&path, "another").unwrap();
    file.remove().unwrap();
    assert!(path.exists() && fixture.path("renamed").exists());
}

#[test]
fn volumes_must_lie_in_allowed_roots() {
    let fixture = Fixture::new();
    symlink(fixture.path("elsewhere"), fixture.path("root/out")).unwrap();
    symlink("project", fixture.path("root/inside")).unwrap();
    let scope = fixture.with(&json!({})).unwrap();
    let bound = |below: &str| scope.confinement.session_volumes(vec![fixture.volume(below, Access::ReadWrite)]);
    for inside in ["root", "root/project", "root/project/work"] {
        let volumes = bound(inside).unwrap();
        assert!(volumes[0].allowed_root.is_some() && volumes[0].access == Access::ReadWrite, "{inside}");
    }
    let messages: Vec<String> = ["elsewhere", "root/out", "root/inside/work", "root/missing", "roo"]
        .map(|outside| bound(outside).unwrap_err().into())
        .map(|error: ScopeError| fixture.message(&error))
        .into();
    insta::assert_snapshot!(messages.join("\n"));
    let none = fixture.with(&json!({"allowed_roots": []})).unwrap();
    assert!(none.confinement.session_volumes(vec![fixture.volume("root", Access::ReadOnly)]).is_err());
    assert_eq!(none.confinement.session_volumes(Vec::new()).unwrap(), []);
}

#[test]
fn link_in_root_is_resolved_once() {
    let fixture = Fixture::new();
    symlink(fixture.path("root"), fixture.path("named")).unwrap();
    let scope = fixture.with(&json!({"allowed_roots": [fixture.path("named")]})).unwrap();
    std::fs::remove_file(fixture.path("named")).unwrap();
    symlink(fixture.path("elsewhere"), fixture.path("named")).unwrap();
    let bound = |below: &str| scope.confinement.session_volumes(vec![fixture.volume(below, Access::ReadOnly)]);
    assert!(bound("root/project").is_ok());
    assert!(bound("elsewhere").is_err() && bound("named").is_err());
}

#[test]
fn parallel_worker_writes_only_its_artifact_directory() {
    let fixture = Fixture::new();
    let work = fixture.path("root/project/work");
    let worker = |artifacts: Option<&PathBuf>| {
        fixture.with(&json!({"parallel_worker": true, "worker_artifact_dir": artifacts})).unwrap().confinement
    };
    let shown = |volumes: Vec<Volume>| -> Vec<(String, bool)> {
        let shown = |volume: Volume| (volume.guest.display().to_string(), volume.access == Access::ReadWrite);
        volumes.into_iter().map(shown).collect()
    };
    let given =
        || vec![fixture.volume("root/project", Access::ReadWrite), fixture.volume("root/other", Access::ReadWrite)];
    let with_artifacts = worker(Some(&work));
    assert_eq!(
        shown(with_artifacts.session_volumes(given()).unwrap()),
        [
            ("/shown/root/project".into(), false),
            ("/shown/root/other".into(), false),
            ("/shown/root/project/work".into(), true)
        ],
        "the artifacts are mounted where the volume shows them"
    );
    assert_eq!(
        shown(with_artifacts.session_volumes(Vec::new()).unwrap()),
        [("/workspace/artifacts".into(), true)],
        "the artifacts are mounted without a volume too"
    );
    let artifacts_volume = vec![fixture.volume("root/project/work", Access::ReadWrite)];
    assert_eq!(
        shown(with_artifacts.session_volumes(artifacts_volume).unwrap()),
        [("/shown/root/project/work".into(), true)]
    );
    let without_artifacts = worker(None).session_volumes(given()).unwrap();
    assert!(without_artifacts.iter().all(|volume| volume.access == Access::ReadOnly));
}

#[test]
fn scope_limits_the_network_of_sessions() {
    let fixture = Fixture::new();
    let rules =
        |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<ringfence_egress::Rule>>();
    let configured = SessionSettings {
        network: NetworkSettings { allow: rules(&["*.example", "db.corp+private"]), ..NetworkSettings::default() },
        ..SessionSettings::default()
    };
    let confined = |changes: &Value| {
        let scope = Arc::new(fixture.with(changes).unwrap());
        configured.clone().confined_to(&scope).unwrap().network
    };
    let without = confined(&json!({}));
    assert_eq!(without, NetworkSettings::none());
    assert_eq!(without.network("python"), ringfence_core::Network::None);
    let limited = confined(&json!({"network": {"allow": ["a.example", "db.corp", "other.test"], "packages": true}}));
    assert_eq!(limited.allow, rules(&["a.example", "db.corp"]));
    assert!(limited.packages && !limited.ask, "only the operator permits hosts in a scope");
    for invalid in [json!({"allow": ["https://a"]}), json!({"alow": []}), json!(["a.example"])] {
        assert!(fixture.with(&json!({"network": invalid})).is_err(), "{invalid}");
    }
}

use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::path::PathBuf;

use ringfence_core::{Access, Volume};
use ringfence_testkit::skip;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// A directory with a root in it, and a scope that allows that.
struct Desk {
    directory: TempDir,
}

impl Desk {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for made in ["root/project/work", "root/other", "elsewhere"] {
            std::fs::create_dir_all(directory.path().join(made)).unwrap();
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

    /// What a person reads, without the place that it is about.
    fn said(&self, error: &ScopeError) -> String {
        let source = std::error::Error::source(error).map(|source| format!(": {source}")).unwrap_or_default();
        let text = format!("{error}{source}; {}", error.hints().join("; "));
        text.replace(&*self.path("").to_string_lossy(), "[desk]/")
    }
}

#[test]
fn all_of_a_scope_is_read() {
    let desk = Desk::new();
    let scope = desk
        .with(&json!({
            "drain": 2.5,
            "parallel_worker": true,
            "worker_namespace": "w-1",
            "worker_artifact_dir": desk.path("root/project/work"),
            "model_identity": {"provider": "p", "model_id": "m", "transport": "t"},
            "capability_profile": "code",
        }))
        .unwrap();
    assert_eq!(scope.capabilities, [Capability::Code, Capability::ReadFiles].into());
    assert!(scope.has(Capability::Code) && !scope.has(Capability::Command));
    assert_eq!(scope.drain, Duration::from_millis(2500));
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
fn how_it_ends_is_a_switch_a_time_or_left_to_a_stage() {
    let desk = Desk::new();
    let drain = |drain: Value| desk.with(&json!({"drain": drain})).unwrap();
    assert_eq!(drain(json!(false)).drain, Duration::ZERO);
    assert_eq!(drain(json!(0)).drain, Duration::ZERO);
    assert_eq!(drain(json!(30)).drain, Duration::from_secs(30));
    assert!(drain(json!(true)).drain > Duration::ZERO);
    let stage = drain(json!("review"));
    assert_eq!((stage.drain, stage.run.drain.as_deref()), (drain(json!(true)).drain, Some("review")));
}

#[test]
fn what_a_scope_does_not_say_is_refused_with_the_reason() {
    let desk = Desk::new();
    let mut without_run = desk.scope();
    without_run.as_object_mut().unwrap().remove("run_id");
    let file = desk.path("file");
    std::fs::write(&file, "").unwrap();
    let errors = [
        desk.load(&without_run),
        desk.with(&json!({"capabilites": []})),
        desk.with(&json!({"capabilities": ["code", "comand"]})),
        desk.with(&json!({"capabilities": ["everything"]})),
        desk.with(&json!({"capabilities": "code"})),
        desk.with(&json!({"drain": "x".repeat(257)})),
        desk.with(&json!({"drain": -1})),
        desk.with(&json!({"drain": [1]})),
        desk.with(&json!({"run_id": ""})),
        desk.with(&json!({"run_id": "a\nb"})),
        desk.with(&json!({"allowed_roots": ["root"]})),
        desk.with(&json!({"allowed_roots": [desk.path("missing")]})),
        desk.with(&json!({"allowed_roots": [&file]})),
        desk.with(&json!({"worker_artifact_dir": desk.path("root/other")})),
        desk.with(&json!({"parallel_worker": true, "worker_artifact_dir": desk.path("elsewhere")})),
        desk.with(&json!({"parallel_worker": true, "worker_artifact_dir": "work"})),
        desk.with(&json!({"parallel_worker": true, "worker_artifact_dir": desk.path("root/missing")})),
        desk.with(&json!({"parallel_worker": true, "worker_artifact_dir": file})),
        desk.with(&json!({"worker_namespace": "a@b"})),
        desk.with(&json!({"model_identity": {"provider": "p", "key": "k"}})),
        Scope::load(&desk.write_text("{")).map(|(scope, _)| scope),
        Scope::load(&desk.write_text("{} {}")).map(|(scope, _)| scope),
        Scope::load(&desk.write_text(&" ".repeat(65 << 10))).map(|(scope, _)| scope),
        Scope::load(&desk.path("missing.json")).map(|(scope, _)| scope),
    ];
    let said: Vec<String> = errors.into_iter().map(|error| desk.said(&error.unwrap_err())).collect();
    insta::assert_snapshot!(said.join("\n"));
}

#[test]
fn a_file_that_others_can_read_or_write_is_refused() {
    let desk = Desk::new();
    let path = desk.write(&desk.scope());
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
fn only_a_file_of_its_own_is_read() {
    let desk = Desk::new();
    let (path, link) = (desk.write(&desk.scope()), desk.path("link.json"));
    symlink(&path, &link).unwrap();
    assert!(Scope::load(&link).unwrap_err().to_string().ends_with("is a link"));
    assert!(Scope::load(&desk.path("root")).unwrap_err().to_string().ends_with("is not a regular file"));
    let pipe = desk.path("pipe");
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
fn a_file_that_others_could_have_put_there_is_refused() {
    let desk = Desk::new();
    let (path, other) = (desk.write(&desk.scope()), desk.path("other.json"));
    std::fs::hard_link(&path, &other).unwrap();
    let said = desk.said(&Scope::load(&path).unwrap_err());
    assert!(said.contains("has 2 names") && said.contains("a new file of its own"), "{said}");
    std::fs::remove_file(&other).unwrap();
    let allow = |mode| std::fs::set_permissions(desk.path(""), std::fs::Permissions::from_mode(mode)).unwrap();
    for mode in [0o777, 0o770, 0o707, 0o720] {
        allow(mode);
        let said = desk.said(&Scope::load(&path).unwrap_err());
        assert!(said.contains(&format!("lies in a directory that others can write (mode {mode:04o})")), "{said}");
        assert!(said.contains("`chmod go-w "), "{said}");
    }
    for mode in [0o1777, 0o755, 0o700] {
        allow(mode);
        assert!(Scope::load(&path).is_ok(), "{mode:o}");
    }
    // Only root can give a directory away.
    if rustix::process::geteuid().is_root() {
        chown(desk.path(""), Some(65_534), None).unwrap();
        let said = desk.said(&Scope::load(&path).unwrap_err());
        assert!(said.contains("lies in a directory of another user, with the id 65534"), "{said}");
    } else {
        skip("scope: directory of another user", "the tests do not run as root");
    }
}

#[test]
fn another_in_the_place_of_a_scope_is_told_from_it() {
    let desk = Desk::new();
    let (first, _) = Scope::load(&desk.write(&desk.scope())).unwrap();
    let (again, file) = Scope::load(&desk.write(&desk.scope())).unwrap();
    assert!(again.check_digest(&first.digest, &file).is_ok());
    assert!(first.digest.len() == 64 && first.digest.starts_with(&first.tag));
    let (other, file) = Scope::load(&desk.write_text(&format!("{} ", desk.scope()))).unwrap();
    let said = desk.said(&other.check_digest(&first.digest, &file).unwrap_err());
    assert!(said.contains("is not the one that this endpoint was started for"), "{said}");
}

#[test]
fn a_workers_directory_is_named_through_its_root_and_through_no_other_link() {
    let desk = Desk::new();
    symlink(desk.path("root"), desk.path("named")).unwrap();
    symlink("work", desk.path("root/project/planted")).unwrap();
    symlink("project", desk.path("root/planted")).unwrap();
    let worker = |own: &str| {
        let roots = json!([desk.path("named"), desk.path("root/project")]);
        desk.with(&json!({"allowed_roots": roots, "parallel_worker": true, "worker_artifact_dir": desk.path(own)}))
    };
    for own in ["named/project/work", "root/project/work", "named/other"] {
        let volumes = worker(own).unwrap().confinement.session_volumes(Vec::new()).unwrap();
        assert_eq!(volumes[0].host, desk.path(&own.replace("named", "root")), "{own}");
    }
    for own in ["root/project/planted", "named/planted/work", "named/../elsewhere", "elsewhere"] {
        assert!(matches!(worker(own), Err(ScopeError::OutOfRoots(_))), "{own}");
    }
}

#[test]
fn a_file_is_removed_by_its_owner_and_only_itself() {
    let desk = Desk::new();
    let path = desk.write(&desk.scope());
    let (_, file) = Scope::load(&path).unwrap();
    file.remove().unwrap();
    assert!(!path.exists());
    let (_, file) = Scope::load(&desk.write(&desk.scope())).unwrap();
    std::fs::rename(&path, desk.path("kept")).unwrap();
    std::fs::write(&path, "another").unwrap();
    file.remove().unwrap();
    assert!(path.exists() && desk.path("kept").exists());
}

#[test]
fn volumes_lie_within_the_roots() {
    let desk = Desk::new();
    symlink(desk.path("elsewhere"), desk.path("root/out")).unwrap();
    symlink("project", desk.path("root/inside")).unwrap();
    let scope = desk.with(&json!({})).unwrap();
    let bound = |below: &str| scope.confinement.session_volumes(vec![desk.volume(below, Access::ReadWrite)]);
    for inside in ["root", "root/project", "root/project/work"] {
        let volumes = bound(inside).unwrap();
        assert!(volumes[0].allowed_root.is_some() && volumes[0].access == Access::ReadWrite, "{inside}");
    }
    let said: Vec<String> = ["elsewhere", "root/out", "root/inside/work", "root/missing", "roo"]
        .map(|outside| bound(outside).unwrap_err().into())
        .map(|error: ScopeError| desk.said(&error))
        .into();
    insta::assert_snapshot!(said.join("\n"));
    let none = desk.with(&json!({"allowed_roots": []})).unwrap();
    assert!(none.confinement.session_volumes(vec![desk.volume("root", Access::ReadOnly)]).is_err());
    assert_eq!(none.confinement.session_volumes(Vec::new()).unwrap(), []);
}

#[test]
fn a_root_may_be_named_through_a_link_which_is_resolved_at_once() {
    let desk = Desk::new();
    symlink(desk.path("root"), desk.path("named")).unwrap();
    let scope = desk.with(&json!({"allowed_roots": [desk.path("named")]})).unwrap();
    std::fs::remove_file(desk.path("named")).unwrap();
    symlink(desk.path("elsewhere"), desk.path("named")).unwrap();
    let bound = |below: &str| scope.confinement.session_volumes(vec![desk.volume(below, Access::ReadOnly)]);
    assert!(bound("root/project").is_ok());
    assert!(bound("elsewhere").is_err() && bound("named").is_err());
}

#[test]
fn a_parallel_worker_writes_only_its_own_directory() {
    let desk = Desk::new();
    let work = desk.path("root/project/work");
    let worker = |own: Option<&PathBuf>| {
        desk.with(&json!({"parallel_worker": true, "worker_artifact_dir": own})).unwrap().confinement
    };
    let shown = |volumes: Vec<Volume>| -> Vec<(String, bool)> {
        let shown = |volume: Volume| (volume.guest.display().to_string(), volume.access == Access::ReadWrite);
        volumes.into_iter().map(shown).collect()
    };
    let given = || vec![desk.volume("root/project", Access::ReadWrite), desk.volume("root/other", Access::ReadWrite)];
    let own = worker(Some(&work));
    assert_eq!(
        shown(own.session_volumes(given()).unwrap()),
        [
            ("/shown/root/project".into(), false),
            ("/shown/root/other".into(), false),
            ("/shown/root/project/work".into(), true)
        ],
        "it is where the project has it"
    );
    assert_eq!(
        shown(own.session_volumes(Vec::new()).unwrap()),
        [("/workspace/artifacts".into(), true)],
        "it is shown in any case"
    );
    let itself = vec![desk.volume("root/project/work", Access::ReadWrite)];
    assert_eq!(shown(own.session_volumes(itself).unwrap()), [("/shown/root/project/work".into(), true)]);
    let nothing = worker(None).session_volumes(given()).unwrap();
    assert!(nothing.iter().all(|volume| volume.access == Access::ReadOnly));
}

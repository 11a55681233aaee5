//! What a spec may say, and that it survives being written down.

use super::*;

fn spec() -> Spec {
    Spec {
        root: Root::Host,
        volumes: Vec::new(),
        protected_paths: Vec::new(),
        strict_volumes: None,
        files: BTreeMap::new(),
        workspace: Workspace { bytes: 256 * MIB, inodes: 10_000 },
        uid: 1000,
        limits: Limits { memory_bytes: 512 * MIB, pids: 64, cpus: 1.0, open_files: 256 },
        network: Network::None,
        environment: BTreeMap::new(),
        command: Some(Command { argv: vec!["true".into()], workdir: WORKSPACE.into() }),
        accept: BTreeSet::new(),
    }
}

fn volume(host: &str, guest: &str) -> Volume {
    Volume { host: host.into(), guest: guest.into(), access: Access::ReadOnly, allowed_root: None }
}

#[test]
fn a_spec_survives_being_written_down() {
    let mut spec = spec();
    spec.volumes.push(volume("/srv", "/data"));
    spec.environment.insert("A".into(), "b".into());
    spec.accept.insert(Weakness::OwnUid);
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
    let unknown = text.replacen("\"uid\"", "\"gid\":1,\"uid\"", 1);
    assert!(serde_json::from_str::<Spec>(&unknown).is_err(), "an unknown field is refused");
}

#[test]
fn guest_paths_are_plain_and_leave_the_sandboxs_own_places_alone() {
    for good in ["/data", "/workspace/project", "/home/me/.cache", "/usr/local/share/x", "/tmp/x", "/a:b"] {
        volume("/srv", good).validate().unwrap();
    }
    for bad in [
        "", "data", "/", "/data/..", "/a/../b", "/a/./b", "/proc", "/proc/1", "/dev/shm", "/dev", "/usr", "/etc",
        "/a\0b",
    ] {
        assert!(volume("/srv", bad).validate().is_err(), "{bad:?}");
    }
    assert!(volume("/srv/../etc", "/data").validate().is_err());
}

#[test]
fn limits_have_a_least_and_a_most() {
    type Change = fn(&mut Spec);
    let bad: [Change; 12] = [
        |spec| spec.limits.memory_bytes = 0,
        |spec| spec.limits.memory_bytes = 10 << 40,
        |spec| spec.limits.pids = 1,
        |spec| spec.limits.cpus = 0.0,
        |spec| spec.limits.cpus = f64::NAN,
        |spec| spec.limits.cpus = f64::INFINITY,
        |spec| spec.limits.open_files = 0,
        |spec| spec.workspace.bytes = 0,
        |spec| spec.workspace.bytes = 512 * MIB,
        |spec| spec.workspace.inodes = 0,
        |spec| spec.uid = 0,
        |spec| spec.command.as_mut().unwrap().argv.clear(),
    ];
    spec().validate().unwrap();
    for (index, change) in bad.iter().enumerate() {
        let mut spec = spec();
        change(&mut spec);
        assert!(spec.validate().is_err(), "number {index}");
    }
}

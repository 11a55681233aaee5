//! Valid and invalid specs, and their serialization.

use super::*;

fn spec() -> Spec {
    Spec {
        root: Root::Host,
        volumes: Vec::new(),
        protected_paths: Vec::new(),
        strict_volumes: None,
        files: BTreeMap::new(),
        workspace: Workspace { bytes: 256 * MIB, inodes: 10_000 },
        workspace_entries: Vec::new(),
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
fn spec_survives_a_round_trip() {
    let mut spec = spec();
    spec.volumes.push(volume("/srv", "/data"));
    spec.environment.insert("A".into(), "b".into());
    spec.accept.insert(Weakness::OwnUid);
    let text = serde_json::to_string(&spec).unwrap();
    assert_eq!(serde_json::from_str::<Spec>(&text).unwrap(), spec);
    let unknown = text.replacen("\"uid\"", "\"gid\":1,\"uid\"", 1);
    assert!(serde_json::from_str::<Spec>(&unknown).is_err(), "an unknown field is an error");
}

#[test]
fn guest_paths_are_absolute_and_not_reserved() {
    for valid in ["/data", "/workspace/project", "/home/me/.cache", "/usr/local/share/x", "/tmp/x", "/a:b"] {
        volume("/srv", valid).validate().unwrap();
    }
    for invalid in [
        "", "data", "/", "/data/..", "/a/../b", "/a/./b", "/proc", "/proc/1", "/dev/shm", "/dev", "/usr", "/etc",
        "/a\0b",
    ] {
        assert!(volume("/srv", invalid).validate().is_err(), "{invalid:?}");
    }
    assert!(volume("/srv/../etc", "/data").validate().is_err());
}

#[test]
fn limits_have_minimum_and_maximum() {
    type Change = fn(&mut Spec);
    let invalid: [Change; 12] = [
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
    for (index, change) in invalid.iter().enumerate() {
        let mut spec = spec();
        change(&mut spec);
        assert!(spec.validate().is_err(), "change {index}");
    }
}

#[test]
fn egress_ports_are_few_and_not_those_of_the_sandbox() {
    let validate = |ports: &[u16]| {
        let ports = ports.iter().copied().collect();
        Spec { network: Network::Egress { ports }, ..spec() }.validate()
    };
    let many: Vec<u16> = (1000..1016).collect();
    validate(&[]).unwrap();
    validate(&[22, 80, 443, 8443]).unwrap();
    validate(&[&many[..], &[80, 443]].concat()).unwrap();
    let refused = validate(&[&many[..], &[22]].concat());
    assert!(matches!(refused, Err(SpecError::TooManyEgressPorts(17))), "{refused:?}");
    for port in [0, 53, PROXY_PORT, MIRROR_PORT] {
        let refused = validate(&[port]);
        assert!(matches!(refused, Err(SpecError::EgressPort(found)) if found == port), "{refused:?}");
    }
}

#[test]
fn network_keeps_its_wire_format() {
    let json = |network: Network| serde_json::to_string(&network).unwrap();
    assert_eq!(json(Network::None), r#""none""#);
    assert_eq!(json(Network::Egress { ports: [22, 8443].into() }), r#"{"egress":{"ports":[22,8443]}}"#);
}

#[test]
fn workspace_entries_are_beneath_the_workspace() {
    let file = |path: &str| {
        let mut spec = spec();
        spec.workspace_entries.push(WorkspaceEntry::File { path: path.into(), text: String::new() });
        spec.validate().map_err(|error| error.to_string())
    };
    assert_eq!(file(".venv/pyvenv.cfg"), Ok(()));
    for invalid in ["/etc/passwd", "../x", "a/../../x", "a\0b"] {
        assert!(file(invalid).is_err(), "{invalid:?}");
    }
}

use ringfence_core::{Access, Volume};

use super::*;

#[test]
fn removes_credentials_from_urls_and_hosts() {
    for (url, clean, host) in [
        ("https://registry.example/", "https://registry.example/", "registry.example"),
        ("https://me:secret@registry.example:8443/a@b", "https://registry.example:8443/a@b", "registry.example:8443"),
        ("http://[::1]:4873", "http://[::1]:4873", "[::1]:4873"),
    ] {
        assert_eq!(without_credentials(url).as_deref(), Some(clean));
        assert_eq!(host_and_port(url).as_deref(), Some(host));
    }
    assert_eq!(host_and_port("files.example").as_deref(), Some("files.example"));
    assert_eq!(without_credentials("/opt/wheels"), None);
}

#[tokio::test]
async fn rule_of_private_registry_is_marked() {
    let mut registry = RegistryAccess::default();
    for url in ["http://127.0.0.1:4873/", "https://192.0.2.1/simple", "https://1.1.1.1/"] {
        registry.allow(url);
    }
    let rules: Vec<String> = registry.resolve().await.unwrap().rules.into_iter().collect();
    assert_eq!(rules, ["1.1.1.1", "127.0.0.1:4873+private", "192.0.2.1+private"]);
}

#[test]
fn registry_urls_have_no_credentials() {
    let settings = PythonIndexes {
        index_url: Some("https://u:p@own.example/simple".into()),
        extra_index_urls: vec!["https://one.example/a".into(), "https://two.example/b".into()],
        ..PythonIndexes::default()
    };
    let registry = RegistryAccess::for_python(&settings, &GuestWritable::default()).unwrap();
    assert_eq!(registry.rules.iter().collect::<Vec<_>>(), ["one.example", "own.example", "two.example"]);
    assert_eq!(registry.environment["PIP_INDEX_URL"], "https://own.example/simple");
    assert_eq!(registry.environment["PIP_EXTRA_INDEX_URL"], "https://one.example/a https://two.example/b");
    let settings = NpmRegistries {
        scopes: [("@s".to_owned(), "https://u:p@s.example/".to_owned())].into(),
        ..NpmRegistries::default()
    };
    let registry = RegistryAccess::for_npm(&settings, "https://main.example/", &GuestWritable::default()).unwrap();
    assert_eq!(registry.rules.iter().collect::<Vec<_>>(), ["main.example", "s.example"]);
    assert!(
        registry.files[Path::new(NPMRC)]
            .starts_with("registry=https://main.example/\n@s:registry=https://s.example/\n")
    );
}

#[test]
fn guest_writable_directories_and_certificates_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let host = directory.path().to_owned();
    let wheels = host.join("wheels");
    std::fs::create_dir(&wheels).unwrap();
    let volume = Volume { host, guest: "/shown".into(), access: Access::ReadWrite, allowed_root: None };
    let writable = GuestWritable::from_volumes(&[volume]);
    let links = PythonIndexes { find_links: vec![wheels.display().to_string()], ..PythonIndexes::default() };
    assert!(RegistryAccess::for_python(&links, &GuestWritable::default()).is_ok());
    assert!(RegistryAccess::for_python(&links, &writable).is_err());
    let cafile = NpmRegistries { cafile: Some(wheels.join("ca.pem")), ..NpmRegistries::default() };
    assert!(RegistryAccess::for_npm(&cafile, "https://main.example/", &writable).is_err());
}

use ringfence_core::{Access, Volume};

use super::*;

struct Machine {
    directory: tempfile::TempDir,
    variables: Variables,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let home = directory.path().join("home").display().to_string();
        Self { variables: [("HOME".to_owned(), home)].into(), directory }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        std::fs::write(self.at(name), text).unwrap();
    }

    fn set(&mut self, name: &str, value: &str) {
        self.variables.insert(name.into(), value.into());
    }

    fn load(&self, guest_writable: &[&str]) -> Result<PythonIndexes, SettingsError> {
        let volume = |name: &&str| Volume {
            host: self.at(name),
            guest: "/shown".into(),
            access: Access::ReadWrite,
            allowed_root: None,
        };
        let volumes: Vec<Volume> = guest_writable.iter().map(volume).collect();
        PythonIndexes::load(
            &self.variables,
            Some(&self.at("prefix")),
            &self.at("etc"),
            &GuestWritable::from_volumes(&volumes),
        )
    }

    fn index(&self) -> Option<String> {
        self.load(&[]).unwrap().index_url
    }
}

#[test]
fn later_files_and_sections_override_earlier_and_variables_override_all() {
    let mut machine = Machine::new();
    assert_eq!(machine.load(&[]), Ok(PythonIndexes::default()));
    for (file, name) in [
        ("etc/xdg/pip/pip.conf", "xdg"),
        ("etc/pip.conf", "etc"),
        ("home/.pip/pip.conf", "legacy"),
        ("home/.config/pip/pip.conf", "user"),
        ("prefix/pip.conf", "site"),
        ("named.conf", "named"),
    ] {
        if name == "named" {
            machine.set("PIP_CONFIG_FILE", &machine.at(file).display().to_string());
            assert_eq!(machine.index().as_deref(), Some("https://site.example/"), "the named file does not exist yet");
        }
        machine.write(file, &format!("[global]\nindex_url = https://{name}.example/\n"));
        assert_eq!(machine.index(), Some(format!("https://{name}.example/")));
    }
    machine.write("etc/pip.conf", "[install]\nindex-url = https://section.example/\n[download]\nindex-url = x\n");
    assert_eq!(machine.index().as_deref(), Some("https://section.example/"));
    machine.set("PIP_INDEX_URL", "https://variable.example/");
    assert_eq!(machine.index().as_deref(), Some("https://variable.example/"));
    machine.set("PIP_CONFIG_FILE", "/dev/null");
    machine.set("PIP_INDEX_URL", "");
    assert_eq!(machine.index(), None);
    machine.set("UV_DEFAULT_INDEX", "https://uv.example/");
    assert_eq!(machine.index().as_deref(), Some("https://uv.example/"));
}

#[test]
fn reads_all_settings_of_package_sources() {
    let mut machine = Machine::new();
    machine.write(
        "etc/pip.conf",
        "[global]\nextra-index-url =\n  https://one.example/\n  https://two.example/\ntrusted-host = one.example\n\
         cert = /ca.pem\nno-index = true\ntimeout = 5\n",
    );
    machine.set("PIP_FIND_LINKS", "/wheels https://files.example/");
    let found = machine.load(&[]).unwrap();
    assert!(!found.needs_default());
    assert_eq!(
        found,
        PythonIndexes {
            index_url: None,
            extra_index_urls: vec!["https://one.example/".into(), "https://two.example/".into()],
            find_links: vec!["/wheels".into(), "https://files.example/".into()],
            trusted_hosts: vec!["one.example".into()],
            cert: Some("/ca.pem".into()),
            no_index: true,
        }
    );
}

#[test]
fn settings_that_guests_may_write_are_refused() {
    let machine = Machine::new();
    machine.write("home/.config/pip/pip.conf", "[global]\nindex-url = http://127.0.0.1:9/evil\n");
    for volume in ["home", "home/.config", "home/.config/pip", "home/.config/pip/pip.conf"] {
        let refused = machine.load(&[volume]).unwrap_err();
        assert!(refused.to_string().contains("guests may write") && !refused.hint().is_empty(), "{volume}: {refused}");
    }
    assert!(machine.load(&["home/other"]).is_ok());
    // A file without settings of package sources is not refused.
    machine.write("home/.config/pip/pip.conf", "[global]\ntimeout = 60\n");
    assert_eq!(machine.load(&["home"]), Ok(PythonIndexes::default()));
    // A file that does not parse is an error, regardless of its author, as it is for pip.
    machine.write("home/.config/pip/pip.conf", "index-url = x\n");
    assert!(matches!(machine.load(&["home"]), Err(SettingsError::Unusable { .. })));
}

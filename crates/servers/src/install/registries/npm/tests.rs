use ringfence_core::{Access, Volume};

use super::*;

struct Machine(tempfile::TempDir);

impl Machine {
    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::create_dir_all(self.at(name).parent().unwrap()).unwrap();
        std::fs::write(self.at(name), text).unwrap();
    }

    fn load(&self, variables: &[(&str, &str)], guest_writable: &[&str]) -> Result<NpmRegistries, SettingsError> {
        let mut all: Variables = [("HOME".to_owned(), self.at("home").display().to_string())].into();
        all.extend(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
        let volume = |name: &&str| Volume {
            host: self.at(name),
            guest: "/shown".into(),
            access: Access::ReadWrite,
            allowed_root: None,
        };
        let volumes: Vec<Volume> = guest_writable.iter().map(volume).collect();
        let installation = Installation { package: Some(self.at("npm")), prefix: Some(self.at("prefix")) };
        NpmRegistries::load(&all, &installation, &GuestWritable::from_volumes(&volumes))
    }

    fn registry(&self, variables: &[(&str, &str)]) -> Option<String> {
        self.load(variables, &[]).unwrap().registry
    }
}

#[test]
fn user_overrides_global_settings_and_variables_override_all() {
    let machine = Machine(tempfile::tempdir().unwrap());
    assert_eq!(machine.load(&[], &[]), Ok(NpmRegistries::default()));
    for (file, name) in [("npm/npmrc", "builtin"), ("prefix/etc/npmrc", "global"), ("home/.npmrc", "user")] {
        machine.write(file, &format!("registry=https://{name}.example/\n"));
        assert_eq!(machine.registry(&[]), Some(format!("https://{name}.example/")));
    }
    let given = [("NPM_CONFIG_Registry", "https://variable.example/"), ("npm_config_loglevel", "error")];
    assert_eq!(machine.registry(&given).as_deref(), Some("https://variable.example/"));
    machine.write("other", "registry=https://other.example/\n@s:registry=https://s.example/\ncafile=~/ca.pem\n");
    let other = machine.at("other").display().to_string();
    let found = machine.load(&[("npm_config_userconfig", &other)], &[]).unwrap();
    assert_eq!(found.registry.as_deref(), Some("https://other.example/"));
    assert_eq!(found.scopes["@s"], "https://s.example/");
    assert_eq!(found.cafile, Some(machine.at("home/ca.pem")));
}

#[test]
fn other_settings_name_the_global_file() {
    let machine = Machine(tempfile::tempdir().unwrap());
    machine.write("elsewhere/etc/npmrc", "registry=https://elsewhere.example/\n");
    machine.write("home/.npmrc", &format!("prefix={}\n", machine.at("elsewhere").display()));
    assert_eq!(machine.registry(&[]).as_deref(), Some("https://elsewhere.example/"));
    machine.write("named", "registry=https://named.example/\n");
    let named = machine.at("named").display().to_string();
    assert_eq!(machine.registry(&[("npm_config_globalconfig", &named)]).as_deref(), Some("https://named.example/"));
    // A guest that may write the user's file must not choose the global file.
    assert_eq!(machine.load(&[], &["home"]), Ok(NpmRegistries::default()));
}

#[test]
fn settings_that_guests_may_write_are_refused() {
    let machine = Machine(tempfile::tempdir().unwrap());
    for text in ["registry=http://127.0.0.1:9/", "@s:registry=http://127.0.0.1:9/", "cafile=/evil.pem"] {
        machine.write("home/.npmrc", text);
        let refused = machine.load(&[], &["home"]).unwrap_err();
        assert!(refused.to_string().contains("guests may write") && !refused.hint().is_empty(), "{refused}");
    }
    machine.write("home/.npmrc", "audit=false\nfund=false\n");
    assert_eq!(machine.load(&[], &["home"]), Ok(NpmRegistries::default()));
    machine.write("prefix/etc/npmrc", "registry=http://127.0.0.1:9/");
    assert!(machine.load(&[], &["prefix/etc"]).is_err());
}

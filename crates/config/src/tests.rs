//! Tests of complete configurations and of error messages.

use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::sources::{KEYS, parse_file, values_from_environment};
use ringfence_entries::ProfileMode;

/// Loads a file with this text, with variables and flags. Returns errors as the user sees them.
fn load_text(text: &str, variables: &[(&str, &str)], flags: Vec<Flag>) -> Result<Configuration, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ringfence.toml");
    std::fs::write(&path, text).unwrap();
    let environment = Environment::new(variables.iter().copied().chain([("HOME", "/home/agent")]));
    let loaded = load(&Sources { file: Some(path), environment, flags });
    loaded.map_err(|error| {
        let hints = error.hints().iter().fold(String::new(), |text, hint| text + "\n  hint: " + hint);
        let source = std::error::Error::source(&error).map(|source| format!("\n  caused by: {source}"));
        let text = format!("{error}{}{hints}", source.unwrap_or_default());
        text.replace(&format!("{}/", directory.path().display()), "")
    })
}

fn without_directory(shown: &str) -> String {
    let file = shown.lines().next().unwrap().trim_start_matches("# ");
    let directory = file.trim_end_matches("ringfence.toml");
    if directory.is_empty() { shown.into() } else { shown.replace(directory, "") }
}

#[test]
fn default_file_matches_default_types() {
    let configuration = load_text("", &[], Vec::new()).unwrap();
    assert_eq!(configuration.sessions, SessionSettings::default());
    assert_eq!(configuration.code, CodeSettings::default());
    assert_eq!(configuration.packages, PackageSettings::default());
    assert_eq!(configuration.warnings, Vec::<String>::new());
    assert_eq!((configuration.server.host.to_string().as_str(), configuration.server.port), ("127.0.0.1", 8000));
    assert_eq!(configuration.state_directory().unwrap(), PathBuf::from("/home/agent/.local/state/ringfence"));
    insta::assert_snapshot!(without_directory(&configuration.show()));
}

#[test]
fn flags_override_variables_and_variables_override_file() {
    let text = "[server]\nhost = \"127.0.0.2\"\nport = 1\nenable_cors = true\n[sessions]\nidle_timeout_s = 60\n\
                volumes = [\"data:/data\"]\nmax_timeout_s = 20\n\
                [flavors.tiny]\ncpus = 0.5\nmemory = \"256M\"\n[flavors.small]\nmemory = \"512M\"\n\
                [server.tokens.ci]\nenv = \"CI_SECRET\"\n[server.tokens.gone]\nfile = \"nowhere\"\n";
    let variables = [
        ("MCP_SERVER_PORT", "2"),
        ("RINGFENCE_PORT", "3"),
        ("MSB_SESSION_TIMEOUT", "90"),
        ("MSB_MAX_TOTAL_MEMORY_MB", "4096"),
        ("RINGFENCE_SESSIONS_POOL", "python=2"),
        ("MCP_AUTH_TOKEN", "very secret"),
        ("CI_SECRET", "also secret"),
    ];
    let flags = vec![Flag::new("--port", "server.port", 4), Flag::new("--max-sessions", "sessions.max_sessions", 3)];
    let configuration = load_text(text, &variables, flags).unwrap();
    let shown = without_directory(&configuration.show());
    for printed in [&shown, &format!("{configuration:?}"), &configuration.show_json().to_string()] {
        assert!(!["very secret", "also secret"].iter().any(|value| printed.contains(value)), "{printed}");
    }
    insta::assert_snapshot!(shown);
    assert_eq!(configuration.sessions.timeout, Duration::from_secs(20));
    assert_eq!(configuration.sessions.pool["python"], 2);
    let names: Vec<&str> = configuration.sessions.flavors.iter().map(|flavor| &*flavor.name).collect();
    assert_eq!(names, ["tiny", "small", "medium", "large"]);
    let volume = &configuration.sessions.volumes[0];
    assert!(
        volume.host.is_absolute() && volume.host.ends_with("data"),
        "paths are relative to the directory of the file"
    );
}

#[test]
fn packages_of_a_built_in_template_do_not_apply_to_another_root_or_language() {
    let packages = |text: &str| {
        let configuration = load_text(text, &[], Vec::new()).unwrap();
        configuration.sessions.templates.find("data").unwrap().packages.clone()
    };
    assert!(packages("").contains(&"pandas".to_owned()));
    assert_eq!(packages("[templates.data]\npackages = [\"polars == 1.*\"]\n"), ["polars==1.*"]);
    for text in ["language = \"node\"", "root = \"/usr\""] {
        assert_eq!(packages(&format!("[templates.data]\n{text}\n")), [""; 0], "{text}");
    }
}

#[test]
fn tokens_are_read_from_files_and_variables() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("secret");
    std::fs::write(&file, "from-a-file\n").unwrap();
    let text = format!("[server.tokens.file]\nfile = {file:?}\n[server.tokens.var]\nenv = \"S\"\n");
    let tokens = load_text(&text, &[("S", "from-a-variable")], Vec::new()).unwrap().tokens().unwrap();
    let read: Vec<(&str, &str)> = tokens.iter().map(|token| (token.name.as_str(), token.secret.expose())).collect();
    assert_eq!(read, [("file", "from-a-file"), ("var", "from-a-variable")]);
    assert!(!format!("{tokens:?}").contains("from"));
    for (variables, problem) in
        [(vec![], "the environment variable S is not set"), (vec![("S", " ")], "the environment variable S is empty")]
    {
        let error = load_text(&text, &variables, Vec::new()).unwrap().tokens().unwrap_err();
        assert!(error.to_string().contains(problem), "{error}");
    }
}

#[test]
fn stored_secrets_behave_as_those_of_the_configuration() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let variables = [("RINGFENCE_STATE_DIR", state.to_str().unwrap()), ("NEW", "value-of-the-variable")];
    let text = "[sessions]\nsecrets = [\"hub\", \"new\"]\n[templates.python]\nsecrets = [\"hub\"]\n\
                [secrets.new]\nenv = \"NEW\"\nhosts = [\"new.test\"]\n";
    let error = load_text(text, &variables, Vec::new()).unwrap_err();
    assert!(error.contains("sessions.secrets has the unknown secret `hub`"), "{error}");
    let path = directory.path().join("ringfence.toml");
    std::fs::write(&path, text).unwrap();
    let sources = Sources { file: Some(path), environment: Environment::new(variables), flags: Vec::new() };
    let store = load_with_missing_secrets(&sources).unwrap().secret_store().unwrap();
    let add = |name: &str, value: &str| {
        let settings = SecretSettings {
            variable: "HUB".into(),
            hosts: vec!["hub.test".into()],
            methods: Vec::new(),
            paths: Vec::new(),
            locations: [ringfence_egress::Location::Header].into(),
        };
        let value = ringfence_egress::SecretValue::new(value).unwrap();
        store.add(name, StoredSecret { value, settings }, OnExisting::Replace).unwrap();
    };
    add("hub", "value-in-the-store");
    let configuration = load(&sources).unwrap();
    let names = ["hub".to_owned(), "new".to_owned()];
    let secrets = configuration.secrets().unwrap();
    let values = |secrets: &Secrets| {
        let selected = secrets.select(&names).map_err(|error| error.to_string())?;
        Ok::<_, String>(selected.iter().map(|secret| secret.value.expose().to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(values(&secrets).unwrap(), ["value-in-the-store", "value-of-the-variable"]);
    for printed in
        [configuration.show(), format!("{configuration:?} {secrets:?}"), configuration.show_json().to_string()]
    {
        assert!(!printed.contains("value-in") && !printed.contains("value-of"), "{printed}");
    }
    // Changes apply at once, and stored secrets take precedence.
    let revision = secrets.revision(&names);
    add("new", "replaced-value");
    assert_ne!(secrets.revision(&names), revision);
    assert_eq!(secrets.revision(&[]), secrets.revision(&[]));
    assert_eq!(values(&secrets).unwrap(), ["value-in-the-store", "replaced-value"]);
    store.remove("new").unwrap();
    store.remove("hub").unwrap();
    assert_eq!(values(&secrets).unwrap_err(), "the secret `hub` does not exist");
    assert!(load(&sources).is_err());
    // A file that others can read is not used, also if the secret is defined elsewhere.
    add("hub", "value-in-the-store");
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    std::fs::set_permissions(state.join("secrets.json"), permissions).unwrap();
    assert_eq!(values(&secrets).unwrap_err(), "the stored secrets cannot be read");
    assert!(load(&sources).unwrap_err().to_string().contains("can be read or written by others (mode 0644)"));
}

#[test]
fn servers_become_entries() {
    let text = "[hosting]\nfiles = [\"more.json\"]\n\
                [servers.git]\ncommand = \"uvx\"\nargs = [\"mcp-server-git\"]\ncwd = \"repo\"\nenv = { TOKEN = \"hush\", HOST = \"${HOST}\" }\n\
                [servers.git.box]\nmemory_mb = 512\nallow = [\"git.example\"]\nnetwork = \"off\"\ncolour = 1\n\
                [servers.far]\nurl = \"https://h/mcp?key=hush\"\nenable = false\ntimeout = 2.5\nheaders = { Authorization = \"Bearer hush\" }\n";
    let configuration = load_text(text, &[], Vec::new()).unwrap();
    let shown = without_directory(&configuration.show());
    assert!(!shown.contains("hush") && !configuration.show_json().to_string().contains("hush"), "{shown}");
    let shown: Vec<&str> =
        shown.lines().filter(|line| line.starts_with("servers") || line.starts_with("hosting")).collect();
    let entries = configuration.servers.iter().map(|server| {
        let warnings: Vec<String> = server.warnings.iter().map(ToString::to_string).collect();
        let entry = ringfence_entries::entry_to_json(&server.entry).to_string();
        format!("{}: {} {warnings:?}", server.entry.name, without_directory_in(&entry, &configuration))
    });
    insta::assert_snapshot!(shown.into_iter().map(Into::into).chain(entries).collect::<Vec<String>>().join("\n"));
    assert!(configuration.hosting.files[0].is_absolute());
    let overridden = load_text(text, &[("MCP_SERVERS_CONFIG", "/a.json")], Vec::new()).unwrap();
    assert_eq!(overridden.hosting.files, [PathBuf::from("/a.json")]);
}

fn without_directory_in(text: &str, configuration: &Configuration) -> String {
    let directory = configuration.file.as_ref().unwrap().parent().unwrap();
    text.replace(&format!("{}/", directory.display()), "DIRECTORY/")
}

#[test]
fn errors_in_files_name_problem_and_line() {
    let bad = [
        "[server]\nport = 8000\n[sesions]\n",
        "[sessions]\n\ntime_out_s = 3\n",
        "[sessions]\ncolour = 3\n",
        "[server]\nport = \"8000\"\n",
        "[server]\nport = 70000\n",
        "[server]\nhost = \"localhost:80\"\n",
        "[server\n",
        "[sessions]\ntimeout_s = 0\n",
        "[sessions]\nmax_sessions = -1\n",
        "[sessions]\ntimeout_s = 200\n",
        "[sessions]\nmax_total_memory = \"lots\"\n",
        "[sessions]\nmax_total_memory = \"512M\"\n",
        "[sessions]\nmax_sessions = 4\n[sessions.pool]\npython = 3\nnode = 2\n",
        "[sessions.pool]\nruby = 1\n",
        "[sessions]\ndefault_flavor = \"huge\"\n",
        "[sessions]\ndefault_template = \"ruby\"\n",
        "[sessions]\naccept = [\"everything\"]\n",
        "[sessions]\nvolumes = [\"/a\"]\n",
        "[sessions]\nvolumes = [\"/a:/usr\"]\n",
        "[flavors.small]\nworkspace = \"900M\"\n",
        "[flavors.tiny]\ncpus = 1.0\n",
        "[flavors.tiny]\ncpus = 1.0\nmemory = \"1M\"\n",
        "[templates.ruby]\nlanguage = \"ruby\"\n",
        "[templates.own]\nroot = \"/\"\n",
        "[templates.own]\nlanguage = \"python\"\nimage = \"registry.example/python:3\"\n",
        "[templates.own]\nlanguage = \"python\"\nimage = \"/usr\"\nroot = \"/usr\"\n",
        "[templates.own]\nlanguage = \"python\"\nroot = \"nowhere\"\n",
        "[templates.own]\nlanguage = \"python\"\nroot = \"/usr/..\"\n",
        "[templates.own]\nlanguage = \"node\"\npackages = [\"numpy\"]\n",
        "[templates.own]\nlanguage = \"python\"\nroot = \"/usr\"\npackages = [\"numpy\"]\n",
        "[templates.own]\nlanguage = \"python\"\npackages = [\"numpy\", \"--index-url=https://x.example\"]\n",
        "[server.tokens.ci]\n",
        "[server.tokens.ci]\nenv = \"A\"\nfile = \"b\"\n",
        "[server.tokens.local]\nenv = \"A\"\n",
        "[server.tokens.operator]\nenv = \"A\"\n",
        "[server.tokens.\"local@w-1\"]\nenv = \"A\"\n",
        "[server]\nmax_connections = 0\n",
        "[sessions]\nmax_timeout_s = 300\n[server]\nrequest_timeout_s = 200\n",
        "[server]\nrequest_timeout_s = 60\ndrain_timeout_s = 60\n",
        "[server]\ndrain_timeout_s = 100\nclient_timeout_s = 90\n",
        "[sessions]\nmax_timeout_s = 298\n[server]\nclient_timeout_s = 300\n",
        "[code]\nmax_timeout_s = 400\n[server]\nclient_timeout_s = 300\n",
        "[server]\nclient_timeout_s = 3\n",
        "[log]\nlevel = \"loud\"\n",
        "[server]\nprofile = \"cod\"\n",
        "[server]\nprofile = \"review\"\n",
        "[profiles.x]\nmode = \"indirect\"\n",
        "[code]\ntimeout_s = 121\n",
        "[code]\nmax_timeout_s = 300\n[sessions]\nmax_timeout_s = 200\n",
        "[code]\nmemory = \"2G\"\n[sessions]\nmax_total_memory = \"1G\"\n",
        "[code]\nmemory = \"1M\"\n",
        "[code]\npids = 1\n",
        "[code]\ncpus = -1.0\n",
        "[code]\ntemplate = \"node\"\n",
        "[code]\ntemplate = \"ruby\"\n",
        "[code]\noutput_mode = \"yaml\"\n",
        "[code]\ncalls_per_server = 0\n",
        "[code]\ncall_timeout = 5\n",
        "[flavors.code]\ncpus = 1.0\nmemory = \"1G\"\n",
        "[hosting]\nfiles = \"x\"\n",
        "[servers.x]\n",
        "[servers.x]\ncommand = \"x\"\n\ncolour = 1\n",
        "[servers.x]\ncommand = \"x\"\nargs = \"-y\"\n",
        "[servers.a__b]\ncommand = \"x\"\n",
        "[servers.x]\ncommand = \"x\"\n[servers.x.box]\nallow = [\"a b\"]\n",
        "[servers.x]\nurl = \"ftp://h\"\n",
    ];
    let errors: Vec<String> =
        bad.iter().map(|text| format!("{text}=> {}\n", load_text(text, &[], Vec::new()).expect_err(text))).collect();
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn errors_name_variable_or_flag() {
    let variables = [
        ("RINGFENCE_PORT", "many"),
        ("MCP_SERVER_PORT", "70000"),
        ("MCP_ENABLE_CORS", "perhaps"),
        ("MSB_SHARED_VOLUME_PATH", "[1]"),
        ("RINGFENCE_SESSIONS_POOL", "python"),
        ("MSB_DEFAULT_FLAVOR", "huge"),
        ("RINGFENCE_SESSIONS_ACCEPT", "cgroup,all"),
        ("MCP_BRIDGE_TIMEOUT", "soon"),
        ("MCP_BRIDGE_CPUS", "many"),
        ("MCP_BRIDGE_CPUS", "nan"),
        ("MCP_BRIDGE_MEMORY", "512 parsecs"),
        ("MCP_BRIDGE_OUTPUT_MODE", "yaml"),
        ("MCP_BRIDGE_LOG_LEVEL", "LOUD"),
        ("RINGFENCE_PROFILE", "none"),
    ];
    let mut errors: Vec<String> = variables
        .iter()
        .map(|variable| load_text("", std::slice::from_ref(variable), Vec::new()).expect_err(variable.0))
        .collect();
    let flag = Flag::new("--max-sessions", "sessions.max_sessions", 0);
    errors.push(load_text("", &[], vec![flag]).unwrap_err());
    insta::assert_snapshot!(errors.join("\n"));
}

#[test]
fn explicit_file_must_exist_and_default_file_need_not() {
    let home = tempfile::tempdir().unwrap();
    let home_path = home.path().to_str().unwrap();
    let explicit = Sources { file: Some(home.path().join("none.toml")), ..Sources::default() };
    assert!(matches!(load(&explicit), Err(ConfigError::Unreadable { .. })));
    let default = Sources { environment: Environment::new([("HOME", home_path)]), ..Sources::default() };
    assert_eq!(load(&default).unwrap().file, None);
    let directory = home.path().join(".config/ringfence");
    std::fs::create_dir_all(&directory).unwrap();
    std::fs::write(directory.join("ringfence.toml"), "[server]\nport = 9\n").unwrap();
    let found = load(&default).unwrap();
    assert_eq!((found.server.port, found.file), (9, Some(directory.join("ringfence.toml"))));
}

#[test]
fn code_mode_is_set_by_file_and_bridge_variables() {
    let text = "[code]\ntimeout_s = 5\npids = 64\ntemplate = \"python\"\n\
                [templates.science]\nlanguage = \"python\"\n\
                [profiles.review]\nmode = \"code\"\nservers = [\"git\"]\n[profiles.plain]\n";
    let variables = [
        ("MCP_BRIDGE_TIMEOUT", "10"),
        ("MCP_BRIDGE_MAX_TIMEOUT", "600"),
        ("MCP_BRIDGE_MEMORY", "256m"),
        ("MCP_BRIDGE_CPUS", "0.5"),
        ("MCP_BRIDGE_PIDS", ""),
        ("MCP_BRIDGE_OUTPUT_MODE", "TOON"),
        ("MCP_BRIDGE_STATE_DIR", "/srv/state"),
        ("MCP_BRIDGE_LOG_LEVEL", "WARNING"),
        ("MCP_BRIDGE_IMAGE", "science"),
        ("MCP_BRIDGE_RUNTIME", "native"),
    ];
    let flags = vec![Flag::new("--profile", "server.profile", "review")];
    let configuration = load_text(text, &variables, flags).unwrap();
    let expected = CodeSettings {
        timeout: Duration::from_secs(10),
        max_timeout: Duration::from_mins(10),
        memory_bytes: 256 << 20,
        pids: 64,
        cpus: 0.5,
        template: "science".into(),
        output_mode: OutputMode::Toon,
        ..CodeSettings::default()
    };
    assert_eq!(configuration.code, expected);
    assert_eq!(configuration.warnings, Vec::<String>::new());
    assert_eq!(configuration.sessions.max_timeout, expected.max_timeout, "the default is adjusted");
    assert_eq!(
        (configuration.state_directory().unwrap(), configuration.log.level),
        ("/srv/state".into(), LogLevel::Warn)
    );
    let flavor = configuration.code.flavor();
    assert_eq!((&*flavor.name, flavor.limits.memory_bytes, flavor.limits.pids), ("code", 256 << 20, 64));
    assert_eq!(configuration.server.profile.as_deref(), Some("review"));
    let modes: Vec<(&str, ProfileMode)> =
        configuration.profiles.iter().map(|(name, profile)| (name.as_str(), profile.mode)).collect();
    assert_eq!(modes, [("code", ProfileMode::Code), ("plain", ProfileMode::Direct), ("review", ProfileMode::Code)]);
    assert_eq!(configuration.profiles["code"].servers, None);
    let shown = configuration.show();
    assert!(shown.contains("code.template = \"science\"  # environment variable MCP_BRIDGE_IMAGE"), "{shown}");
}

#[test]
fn empty_variables_of_other_programs_are_ignored() {
    let variables = [
        ("MCP_SERVER_HOST", "localhost"),
        ("MCP_ENABLE_CORS", ""),
        ("MSB_MAX_TOTAL_MEMORY_MB", " "),
        ("MCP_AUTH_TOKEN", ""),
    ];
    let configuration = load_text("", &variables, Vec::new()).unwrap();
    assert_eq!(configuration.server.host, std::net::IpAddr::from([127, 0, 0, 1]));
    assert_eq!((configuration.server.enable_cors, configuration.sessions.max_total_memory_bytes), (false, None));
    let shown = configuration.show();
    assert!(!shown.contains("MCP_AUTH_TOKEN"), "{shown}");
    assert!(
        load_text("", &[("RINGFENCE_HOST", "")], Vec::new()).is_err(),
        "empty variables of ringfence are not ignored"
    );
}

#[test]
fn each_of_several_tokens_gets_share_of_sessions() {
    let one = "[server.tokens.one]\nenv = \"ONE\"\n";
    let two = "[server.tokens.one]\nenv = \"ONE\"\n[server.tokens.two]\nenv = \"TWO\"\n";
    let given = "[sessions]\nmax_sessions_per_principal = 64\n";
    let few = "[sessions]\nmax_sessions = 3\n";
    for (text, share) in [
        (String::new(), None),
        (one.to_owned(), None),
        (two.to_owned(), Some(48)),
        (format!("{two}{few}"), Some(2)),
        (format!("{two}{given}"), Some(64)),
    ] {
        let configuration = load_text(&text, &[], Vec::new()).unwrap();
        assert_eq!(configuration.sessions.max_sessions_per_principal, share, "{text}");
        let shown = share.map_or("(not set)".to_owned(), |share| share.to_string());
        let line = format!("sessions.max_sessions_per_principal = {shown}  #");
        assert!(configuration.show().contains(&line), "{}", configuration.show());
    }
}

#[test]
fn profile_code_can_be_replaced() {
    let configuration = load_text("[profiles.code]\nservers = []\n", &[], Vec::new()).unwrap();
    assert_eq!((configuration.profiles.len(), configuration.profiles["code"].mode), (1, ProfileMode::Direct));
}

#[test]
fn ignored_and_misspelt_variables_cause_warnings() {
    let warnings = |variables: &[(&str, &str)]| load_text("", variables, Vec::new()).unwrap().warnings;
    let docker = [("MCP_BRIDGE_IMAGE", "docker.io/python:3.14"), ("MCP_BRIDGE_RUNTIME", "podman")];
    let node = [("MCP_BRIDGE_IMAGE", "node")];
    insta::assert_snapshot!([warnings(&docker), warnings(&node)].concat().join("\n"), @r#"
    MCP_BRIDGE_IMAGE is ignored: ringfence does not pull container images; set it to the name of a Python template, which may use an image on disk (image = "PATH" in [templates.NAME])
    MCP_BRIDGE_RUNTIME is ignored: sandboxes need no container runtime
    MCP_BRIDGE_IMAGE is ignored: the template `node` is not a Python template
    "#);
    assert_eq!(warnings(&[("MCP_BRIDGE_IMAGE", " "), ("MCP_BRIDGE_RUNTIME", "")]), Vec::<String>::new());
    let misspelt =
        [("RINGFENCE_SESSIONS_MAX_SESSION", "1"), ("RINGFENCE_CI_TOKEN", "x"), ("RINGFENCE_CACHE_DIR", "/c")];
    insta::assert_snapshot!(warnings(&misspelt).join("\n"), @"RINGFENCE_SESSIONS_MAX_SESSION is ignored: did you mean RINGFENCE_SESSIONS_MAX_SESSIONS?");
    let both = [("MCP_BRIDGE_IMAGE", "science"), ("RINGFENCE_CODE_TEMPLATE", "python")];
    let science = "[templates.science]\nlanguage = \"python\"\n";
    assert_eq!(
        load_text(science, &both, Vec::new()).unwrap().code.template,
        "python",
        "the variable of the key takes precedence"
    );
    assert_eq!(load_text(science, &both[..1], Vec::new()).unwrap().code.template, "science");
}

#[test]
fn key_of_another_server_is_not_a_token() {
    let key = ("MSB_API_KEY", "a-key-of-another-server");
    let configuration = load_text("", &[key], Vec::new()).unwrap();
    assert_eq!(configuration.tokens().unwrap(), []);
    insta::assert_snapshot!(configuration.warnings.join("\n"), @"MSB_API_KEY is ignored, because it is the key of another server; to require a token, set RINGFENCE_AUTH_TOKEN");
    let configuration = load_text("", &[key, ("MCP_AUTH_TOKEN", "a-token")], Vec::new()).unwrap();
    assert_eq!((configuration.tokens().unwrap().len(), configuration.warnings.len()), (1, 0));
    assert_eq!(load_text("", &[("MSB_API_KEY", " ")], Vec::new()).unwrap().warnings, Vec::<String>::new());
}

#[test]
fn defaults_of_code_mode_are_adjusted_to_set_values() {
    let text = "[sessions]\nmax_timeout_s = 20\nmax_total_memory = \"256M\"\ndefault_flavor = \"tiny\"\n\
                [flavors.tiny]\ncpus = 1.0\nmemory = \"64M\"\n";
    let code = load_text(text, &[], Vec::new()).unwrap().code;
    let times = (code.timeout.as_secs(), code.max_timeout.as_secs());
    assert_eq!((times, code.memory_bytes), ((20, 20), 256 << 20));
}

#[test]
fn default_timeouts_are_adjusted_to_set_values() {
    let times = |text: &str, variables: &[(&str, &str)]| {
        let configuration = load_text(text, variables, Vec::new()).unwrap();
        let Timeouts { request, drain, client } = configuration.server.timeouts;
        let call = configuration.sessions.max_timeout;
        assert!(configuration.code.max_timeout <= call && configuration.sessions.timeout <= call);
        [call, request, drain, client].map(|time| time.as_secs())
    };
    assert_eq!(times("", &[]), [120, 150, 180, 300]);
    assert_eq!(times("[sessions]\nmax_timeout_s = 900\n", &[]), [900, 930, 960, 990]);
    assert_eq!(times("", &[("MCP_BRIDGE_MAX_TIMEOUT", "600")]), [600, 630, 660, 690]);
    assert_eq!(times("[server]\nclient_timeout_s = 60\n", &[]), [43, 48, 54, 60]);
    assert_eq!(times("[server]\nrequest_timeout_s = 20\n", &[]), [18, 20, 180, 300]);
}

#[test]
fn every_key_has_variable() {
    let schema = schema();
    for section in ["Server", "Sessions", "Code", "Hosting", "Log"] {
        let definition = &schema["$defs"][format!("{section}Config")]["properties"];
        for name in definition.as_object().unwrap().keys().filter(|name| *name != "tokens") {
            let key = format!("{}.{name}", section.to_lowercase());
            assert!(KEYS.iter().any(|known| known.name == key), "{key}");
        }
    }
}

#[test]
fn registries_of_packages_are_checked() {
    let packages = |text: &str| load_text(text, &[], Vec::new()).map(|configuration| configuration.packages);
    let settings =
        packages("[packages]\nenabled = false\nregistries = { python = 'https://a.example/simple' }").unwrap();
    let python_index = Some("https://a.example/simple".to_owned());
    assert_eq!(settings, PackageSettings { is_enabled: false, python_index, ..PackageSettings::default() });
    for (key, url) in
        [("npm", "https://me:hidden@a.example"), ("python", "/srv/simple"), ("npm", "https://"), ("npm", "http://a/?x")]
    {
        let error = packages(&format!("packages.registries.{key} = '{url}'")).unwrap_err();
        assert!(error.contains(&format!("packages.registries.{key} ")) && !error.contains("hidden"), "{error}");
    }
    assert!(packages("packages.max_size = '1M'").is_err());
}

#[test]
fn checked_in_schema_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/ringfence.schema.json");
    let checked_in = std::fs::read_to_string(path).unwrap_or_default();
    let current = format!("{}\n", serde_json::to_string_pretty(&schema()).unwrap());
    assert!(checked_in == current, "update it with: ringfence config schema > docs/ringfence.schema.json");
}

proptest! {
    #[test]
    fn parsing_never_panics(text in "\\PC*|(\\[?[a-z_.]{1,12}\\]?( = [0-9\"\\[\\]a-z]{0,8})?\n){0,8}") {
        let _ = parse_file(&text, std::path::Path::new("ringfence.toml"));
    }

    #[test]
    fn loading_changed_defaults_never_panics(at in 0..3000_usize, byte in any::<u8>()) {
        let mut bytes = include_bytes!("defaults.toml").to_vec();
        let length = bytes.len();
        bytes[at % length] = byte;
        if let Ok(text) = String::from_utf8(bytes) {
            let _ = load_text(&text, &[], Vec::new());
        }
    }

    #[test]
    fn parsing_variables_never_panics(key in 0..KEYS.len(), text in "\\PC*|[0-9,=\\[\\]\"a-z]{0,12}") {
        let name = KEYS[key].variables().next().unwrap();
        let _ = values_from_environment(&Environment::new([(name.as_str(), text.as_str())]));
    }
}

#[test]
fn allow_lists_of_sessions_and_templates_are_merged() {
    let text = "[sessions]\nallow = [\"api.example.com\", \"git.example.com:2222\"]\nask = false\n\
                [templates.web]\nlanguage = \"node\"\nallow = [\"*.web.example:8443\", \"db+private\"]\n";
    let network = load_text(text, &[], Vec::new()).unwrap().sessions.network;
    let rules = |template: &str| network.rules(template).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    assert_eq!(rules("python"), "api.example.com git.example.com:2222");
    assert_eq!(rules("web"), "api.example.com git.example.com:2222 *.web.example:8443 db+private");
    assert_eq!(network.network("web"), ringfence_core::Network::Egress { ports: [2222, 8443].into() });
    assert!(network.packages && !network.ask);
    let overridden = load_text(text, &[("RINGFENCE_SESSIONS_ALLOW", "other.example")], Vec::new()).unwrap();
    assert_eq!(overridden.sessions.network.allow, ["other.example".parse().unwrap()]);
    let flags = vec![Flag::new("--allow", "sessions.allow", vec!["flag.example".to_owned()])];
    let flagged = load_text(text, &[("RINGFENCE_SESSIONS_ALLOW", "other.example")], flags).unwrap();
    assert_eq!(flagged.sessions.network.allow, ["flag.example".parse().unwrap()]);
    let many: Vec<String> = (1000..1017).map(|port| format!("\"h:{port}\"")).collect();
    let many = load_text(&format!("[sessions]\nallow = [{}]\n", many.join(", ")), &[], Vec::new()).unwrap_err();
    assert!(many.contains("the rules name more than 16 ports"), "{many}");
}

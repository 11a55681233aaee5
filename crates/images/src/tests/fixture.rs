//! Builds images: a layout directory, and archives of it.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tar::{EntryType, Header};
use tempfile::TempDir;

use crate::layout::{Digest, host_architecture};

pub(super) const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(super) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
pub(super) const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
pub(super) const TAR: &str = "application/vnd.oci.image.layer.v1.tar";
pub(super) const GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
pub(super) const ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";

/// Modification time of all entries.
pub(super) const MODIFIED: i64 = 1_000_000_000;

/// An entry of a layer.
pub(super) enum Entry<'a> {
    Directory(u32),
    File(u32, &'a str),
    Symlink(&'a str),
    HardLink(&'a str),
    Other(EntryType),
}

/// Builds a layer with these entries. Paths may be invalid.
pub(super) fn tar(entries: &[(&str, Entry<'_>)]) -> Vec<u8> {
    let mut archive = tar::Builder::new(Vec::new());
    for (path, entry) in entries {
        let (kind, mode, content, target) = match entry {
            Entry::Directory(mode) => (EntryType::Directory, *mode, "", ""),
            Entry::File(mode, content) => (EntryType::Regular, *mode, *content, ""),
            Entry::Symlink(target) => (EntryType::Symlink, 0o777, "", *target),
            Entry::HardLink(target) => (EntryType::Link, 0o644, "", *target),
            Entry::Other(kind) => (*kind, 0o644, "", ""),
        };
        let mut header = Header::new_gnu();
        let gnu = header.as_gnu_mut().unwrap();
        // The methods of `Header` would refuse some of them.
        gnu.name[..path.len()].copy_from_slice(path.as_bytes());
        gnu.linkname[..target.len()].copy_from_slice(target.as_bytes());
        header.set_entry_type(kind);
        header.set_mode(mode);
        header.set_mtime(MODIFIED.unsigned_abs());
        header.set_size(content.len() as u64);
        header.set_cksum();
        archive.append(&header, content.as_bytes()).unwrap();
    }
    archive.into_inner().unwrap()
}

pub(super) fn gzip(content: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(content).unwrap();
    encoder.finish().unwrap()
}

/// A layout directory.
pub(super) struct LayoutFixture {
    directory: TempDir,
    path: PathBuf,
    /// The descriptors in its index.
    pub(super) manifests: Vec<Value>,
}

impl LayoutFixture {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("layout");
        fs::create_dir_all(path.join("blobs/sha256")).unwrap();
        let layout = Self { directory, path, manifests: Vec::new() };
        fs::write(layout.path().join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
        layout
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn blob_path(&self, descriptor: &Value) -> PathBuf {
        let digest = descriptor["digest"].as_str().unwrap().strip_prefix("sha256:").unwrap();
        self.path().join("blobs/sha256").join(digest)
    }

    /// Adds a blob; returns its descriptor.
    pub(super) fn add_blob(&self, media_type: &str, content: &[u8]) -> Value {
        let digest = Digest::of(content).to_string();
        let descriptor = json!({"mediaType": media_type, "digest": digest, "size": content.len()});
        fs::write(self.blob_path(&descriptor), content).unwrap();
        descriptor
    }

    /// Adds a manifest for an architecture; returns its descriptor.
    pub(super) fn add_manifest(&self, architecture: &str, layers: &[(&str, Vec<u8>)]) -> Value {
        let environment = ["PATH=/opt/bin:/bin", "GREETING=hello", "HOME=/root"];
        let config = json!({"os": "linux", "architecture": architecture, "config": {"Env": environment}});
        let config = self.add_blob(CONFIG, config.to_string().as_bytes());
        let layers: Vec<Value> = layers.iter().map(|(media_type, layer)| self.add_blob(media_type, layer)).collect();
        let manifest = json!({"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers});
        self.add_blob(MANIFEST, manifest.to_string().as_bytes())
    }

    /// Adds an image for this machine to the index.
    pub(super) fn add_image(&mut self, layers: &[(&str, Vec<u8>)]) {
        self.manifests.push(self.add_manifest(host_architecture(), layers));
        self.write_index();
    }

    pub(super) fn write_index(&self) {
        let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": self.manifests});
        fs::write(self.path().join("index.json"), index.to_string()).unwrap();
    }

    /// Creates an archive of the layout, with a prefix before each name; returns its path.
    pub(super) fn create_archive(&self, prefix: &str) -> PathBuf {
        let path = self.directory.path().join(format!("archive{}.tar", prefix.len()));
        let mut archive = tar::Builder::new(fs::File::create(&path).unwrap());
        let blobs = fs::read_dir(self.path().join("blobs/sha256")).unwrap();
        let blobs = blobs.map(|blob| format!("blobs/sha256/{}", blob.unwrap().file_name().display()));
        for name in blobs.chain(["index.json".into(), "oci-layout".into()]) {
            let mut header = Header::new_ustar();
            let content = fs::read(self.path().join(&name)).unwrap();
            let name = format!("{prefix}{name}");
            header.as_ustar_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_cksum();
            archive.append(&header, &*content).unwrap();
        }
        archive.finish().unwrap();
        path
    }
}

//! The document of an npm package: its versions, with the URLs and hashes of their tarballs.
//!
//! The mirror passes the fields of a version on unchanged, except for `dist`, in which it writes its own URL. Versions
//! without a hash that the mirror can check are left out.

use std::collections::BTreeMap;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::hash::FileHash;
use super::names::{NpmName, is_npm_version};
use super::python_index::MalformedIndex;

/// The URL of the mirror inside of a sandbox, with which documents are stored.
pub(super) const STORED_BASE: &str = "http://127.0.0.1:3129";

/// Maximum number of versions of a package.
const MAX_VERSIONS: usize = 50_000;

/// The selection of fields of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PackumentForm {
    /// The fields that an installation needs.
    Abbreviated,
    Full,
}

impl PackumentForm {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Abbreviated => "abbreviated",
            Self::Full => "full",
        }
    }
}

/// The tarball of one version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Tarball {
    /// The URL at the registry. Guests never see it.
    pub(super) url: String,
    pub(super) hash: FileHash,
}

/// The document that is served, and the tarballs by version.
#[derive(Debug)]
pub(super) struct Packument {
    pub(super) document: Vec<u8>,
    pub(super) tarballs: BTreeMap<String, Tarball>,
}

/// Fields of a version in the abbreviated form.
const VERSION_FIELDS: [&str; 20] = [
    "name",
    "version",
    "deprecated",
    "dependencies",
    "optionalDependencies",
    "devDependencies",
    "bundleDependencies",
    "bundledDependencies",
    "peerDependencies",
    "peerDependenciesMeta",
    "acceptDependencies",
    "bin",
    "directories",
    "engines",
    "os",
    "cpu",
    "libc",
    "funding",
    "hasInstallScript",
    "_hasShrinkwrap",
];

/// Fields of the document that are left out of the full form. The mirror has no attachments.
const DROPPED_FIELDS: [&str; 3] = ["_attachments", "_rev", "versions"];

/// Fields of `dist` that are passed on.
const DIST_FIELDS: [&str; 5] = ["integrity", "shasum", "fileCount", "unpackedSize", "signatures"];

type RawFields = BTreeMap<String, Box<RawValue>>;

/// Parses the document of a registry. `base` is the URL of the response.
pub(super) fn parse(name: &NpmName, body: &[u8], base: &Url, form: PackumentForm) -> Result<Packument, MalformedIndex> {
    let malformed = |error: serde_json::Error| MalformedIndex(error.to_string());
    let fields: RawFields = serde_json::from_slice(body).map_err(malformed)?;
    let given = fields.get("name").and_then(|given| serde_json::from_str::<String>(given.get()).ok());
    if given.as_deref() != Some(name.as_str()) {
        return Err(MalformedIndex("it has the name of another package".into()));
    }
    let versions = fields.get("versions").ok_or_else(|| MalformedIndex("it has no versions".into()))?;
    let versions: BTreeMap<String, &RawValue> = serde_json::from_str(versions.get()).map_err(malformed)?;
    let mut tarballs = BTreeMap::new();
    let mut served = BTreeMap::new();
    for (version, raw) in versions.into_iter().take(MAX_VERSIONS) {
        if let Some((entry, tarball)) = parse_version(name, &version, raw, base, form) {
            served.insert(version.clone(), entry);
            tarballs.insert(version, tarball);
        }
    }
    let mut document: BTreeMap<&str, Box<RawValue>> = BTreeMap::new();
    for (key, value) in &fields {
        let is_kept = match form {
            PackumentForm::Abbreviated => matches!(key.as_str(), "name" | "modified"),
            PackumentForm::Full => !DROPPED_FIELDS.contains(&key.as_str()),
        };
        if is_kept {
            document.insert(key, value.clone());
        }
    }
    let tags = fields.get("dist-tags").and_then(|tags| serde_json::from_str::<Map<String, Value>>(tags.get()).ok());
    let mut tags = tags.unwrap_or_default();
    tags.retain(|_, version| version.as_str().is_some_and(|version| tarballs.contains_key(version)));
    document.insert("dist-tags", serde_json::value::to_raw_value(&tags).map_err(malformed)?);
    document.insert("versions", serde_json::value::to_raw_value(&served).map_err(malformed)?);
    Ok(Packument { document: serde_json::to_vec(&document).map_err(malformed)?, tarballs })
}

/// Returns the entry of a version as it is served, and its tarball.
fn parse_version(
    name: &NpmName,
    version: &str,
    raw: &RawValue,
    base: &Url,
    form: PackumentForm,
) -> Option<(RawFields, Tarball)> {
    if !is_npm_version(version) {
        return None;
    }
    let mut fields: RawFields = serde_json::from_str(raw.get()).ok()?;
    let dist: Map<String, Value> = serde_json::from_str(fields.remove("dist")?.get()).ok()?;
    let text = |key: &str| dist.get(key).and_then(Value::as_str);
    let hash = text("integrity")
        .and_then(FileHash::from_integrity)
        .or_else(|| text("shasum").and_then(|hex| FileHash::parse("sha1", hex)))?;
    let url = base.join(text("tarball")?).ok()?;
    let is_web = matches!(url.scheme(), "http" | "https") && url.host().is_some();
    if !is_web || !url.username().is_empty() || url.password().is_some() {
        return None;
    }
    let mut served: Map<String, Value> = Map::new();
    for key in DIST_FIELDS {
        if let Some(value) = dist.get(key) {
            served.insert(key.into(), value.clone());
        }
    }
    // npm and pnpm need either; a document without `integrity` may have a `shasum` of another case.
    served.insert("tarball".into(), json!(format!("{STORED_BASE}/npm/{name}/-/{}-{version}.tgz", name.base())));
    if form == PackumentForm::Abbreviated {
        let scripts =
            fields.get("scripts").and_then(|scripts| serde_json::from_str::<Map<String, Value>>(scripts.get()).ok());
        let has_install_script = scripts.is_some_and(|scripts| {
            ["preinstall", "install", "postinstall"].iter().any(|key| scripts.contains_key(*key))
        });
        fields.retain(|key, _| VERSION_FIELDS.contains(&key.as_str()));
        if has_install_script && !fields.contains_key("hasInstallScript") {
            fields.insert("hasInstallScript".into(), serde_json::value::to_raw_value(&true).ok()?);
        }
    }
    fields.insert("dist".into(), serde_json::value::to_raw_value(&served).ok()?);
    Some((fields, Tarball { url: url.to_string(), hash }))
}

/// Returns the document with the URL of the listener that serves it.
pub(super) fn with_base(document: Vec<u8>, base: &str) -> Vec<u8> {
    if base == STORED_BASE {
        return document;
    }
    match String::from_utf8(document) {
        Ok(text) => text.replace(STORED_BASE, base).into_bytes(),
        Err(error) => error.into_bytes(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHA1: &str = "da39a3ee5e6b4b0d3255bfef95601890afd80709";

    fn parse_document(document: &Value, form: PackumentForm) -> Result<Packument, MalformedIndex> {
        let base = Url::parse("https://registry.example/@a%2fb").unwrap();
        parse(&NpmName::parse("@a/b").unwrap(), document.to_string().as_bytes(), &base, form)
    }

    #[test]
    fn tarballs_are_rewritten_and_fields_abbreviated() {
        let tarball = "https://files.example/x/y.tgz";
        let document = json!({
            "name": "@a/b", "_attachments": {}, "readme": "long", "dist-tags": {"latest": "1.0.0", "gone": "9.9.9"},
            "versions": {"1.0.0": {
                "name": "@a/b", "version": "1.0.0", "description": "d", "dependencies": {"c": "^1"},
                "scripts": {"postinstall": "x"},
                "dist": {"tarball": tarball, "shasum": SHA1, "attestations": {"url": "https://registry.example/x"}}
            }}
        });
        let packument = parse_document(&document, PackumentForm::Abbreviated).unwrap();
        let hash = FileHash::parse("sha1", SHA1).unwrap();
        assert_eq!(packument.tarballs["1.0.0"], Tarball { url: tarball.into(), hash });
        let served: Value = serde_json::from_slice(&with_base(packument.document, "http://127.0.0.1:1")).unwrap();
        assert_eq!(
            served,
            json!({"name": "@a/b", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": {
                "name": "@a/b", "version": "1.0.0", "dependencies": {"c": "^1"}, "hasInstallScript": true,
                "dist": {"shasum": SHA1, "tarball": "http://127.0.0.1:1/npm/@a/b/-/b-1.0.0.tgz"}
            }}})
        );
        let full = parse_document(&document, PackumentForm::Full).unwrap();
        let served: Value = serde_json::from_slice(&full.document).unwrap();
        assert_eq!(served["readme"], "long");
        assert_eq!(served["versions"]["1.0.0"]["description"], "d");
        assert_eq!(served.get("_attachments"), None);
        assert!(!served.to_string().contains("files.example"), "{served}");
    }

    #[test]
    fn versions_that_cannot_be_checked_are_left_out() {
        let dist = |tarball: &str, hash: Value| json!({"dist": {"tarball": tarball, "shasum": hash}});
        let good = "https://registry.example/b.tgz";
        let document = json!({"name": "@a/b", "dist-tags": {"latest": "1.0.0"}, "versions": {
            "1.0.0": dist(good, Value::Null),
            "1.0.1": dist(good, json!("zz")),
            "1.0.2": dist("file:///etc/passwd", json!(SHA1)),
            "1.0.3": dist("https://user:secret@registry.example/b.tgz", json!(SHA1)),
            "../x": dist(good, json!(SHA1)),
            "1.0.4": {},
            "1.0.5": 3,
        }});
        let packument = parse_document(&document, PackumentForm::Abbreviated).unwrap();
        assert!(packument.tarballs.is_empty(), "{:?}", packument.tarballs);
        let served: Value = serde_json::from_slice(&packument.document).unwrap();
        assert_eq!(served, json!({"name": "@a/b", "dist-tags": {}, "versions": {}}));
    }

    #[test]
    fn document_of_another_package_is_refused() {
        for document in
            [json!({"name": "@a/c", "versions": {}}), json!({"name": "@a/b"}), json!([]), json!({"versions": {}})]
        {
            assert!(parse_document(&document, PackumentForm::Full).is_err(), "{document}");
        }
    }
}

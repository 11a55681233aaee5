//! The files of a Python project, as an index lists them (PEP 503, 658, 691, 700 and 714).
//!
//! A registry may respond with JSON or HTML, whichever was requested. Files without a hash that the mirror can check, with
//! a malformed name, or with a URL of another kind are left out.

mod html;

use std::fmt::Write as _;

use reqwest::Url;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::hash::{Algorithm, FileHash};
use super::names::{PythonName, is_python_file_name};
use super::route::decode;

/// Maximum number of files of a project.
const MAX_FILES: usize = 50_000;
/// Maximum length of a requirement or reason.
const MAX_TEXT: usize = 512;

/// A file of a project.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PythonFile {
    pub(super) file_name: String,
    /// The URL at the registry. Guests never see it.
    pub(super) url: String,
    pub(super) hash: FileHash,
    pub(super) requires_python: Option<String>,
    /// The reason, which may be empty, if the file is yanked.
    pub(super) yanked: Option<String>,
    /// The hash of the metadata at `URL.metadata`, if the registry has them.
    pub(super) metadata: Option<FileHash>,
    pub(super) size: Option<u64>,
    pub(super) upload_time: Option<String>,
}

/// A document that is not an index.
#[derive(Debug, thiserror::Error)]
#[error("the index of the registry is malformed: {0}")]
pub(super) struct MalformedIndex(pub(super) String);

/// Parses the response of an index. `base` is the URL of the response.
pub(super) fn parse(content_type: &str, body: &[u8], base: &Url) -> Result<Vec<PythonFile>, MalformedIndex> {
    let is_json = content_type.to_ascii_lowercase().contains("json");
    let mut files = if is_json { parse_json(body, base)? } else { parse_html(body, base)? };
    files.truncate(MAX_FILES);
    Ok(files)
}

#[derive(Deserialize)]
struct JsonIndex {
    meta: JsonMeta,
    files: Vec<JsonFile>,
}

#[derive(Deserialize)]
struct JsonMeta {
    #[serde(rename = "api-version")]
    api_version: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct JsonFile {
    filename: String,
    url: String,
    #[serde(default)]
    hashes: serde_json::Map<String, Value>,
    #[serde(default)]
    requires_python: Option<String>,
    #[serde(default)]
    yanked: Value,
    #[serde(default)]
    core_metadata: Value,
    #[serde(default)]
    dist_info_metadata: Value,
    #[serde(default)]
    size: Option<u64>,
    #[serde(default)]
    upload_time: Option<String>,
}

fn parse_json(body: &[u8], base: &Url) -> Result<Vec<PythonFile>, MalformedIndex> {
    let index: JsonIndex = serde_json::from_slice(body).map_err(|error| MalformedIndex(error.to_string()))?;
    if !index.meta.api_version.starts_with("1.") {
        return Err(MalformedIndex("its API version is not 1".into()));
    }
    let file = |file: JsonFile| {
        let hashes = |value: &serde_json::Map<String, Value>| {
            let hashes = value.iter().filter_map(|(name, hex)| FileHash::parse(name, hex.as_str()?));
            preferred(hashes)
        };
        let metadata = [&file.core_metadata, &file.dist_info_metadata].into_iter().find_map(Value::as_object);
        let yanked = match &file.yanked {
            Value::Bool(true) => Some(String::new()),
            Value::String(reason) => Some(reason.clone()),
            _ => None,
        };
        checked(
            PythonFile {
                file_name: file.filename.clone(),
                url: file.url.clone(),
                hash: hashes(&file.hashes)?,
                requires_python: file.requires_python.clone(),
                yanked,
                metadata: metadata.and_then(hashes),
                size: file.size,
                upload_time: file.upload_time.clone(),
            },
            base,
        )
    };
    Ok(index.files.into_iter().filter_map(file).collect())
}

fn parse_html(body: &[u8], base: &Url) -> Result<Vec<PythonFile>, MalformedIndex> {
    let text = String::from_utf8_lossy(body);
    let document = html::parse(&text);
    if !document.is_html {
        return Err(MalformedIndex("it is neither JSON nor HTML".into()));
    }
    let base = document.base.and_then(|base_element| base.join(&base_element).ok()).unwrap_or_else(|| base.clone());
    let file = |anchor: html::Anchor| {
        let url = base.join(&anchor.href).ok()?;
        let file_name = decode(url.path_segments()?.next_back()?)?;
        let hash_of = |text: &str| text.split_once('=').and_then(|(name, hex)| FileHash::parse(name, hex));
        let fragment = url.fragment().unwrap_or_default().to_owned();
        let hash = preferred(fragment.split('&').filter_map(hash_of))?;
        checked(
            PythonFile {
                file_name,
                url: url.to_string(),
                hash,
                requires_python: anchor.requires_python,
                yanked: anchor.yanked,
                metadata: anchor.metadata.as_deref().and_then(hash_of),
                size: None,
                upload_time: anchor.upload_time,
            },
            &base,
        )
    };
    Ok(document.anchors.into_iter().filter_map(file).collect())
}

/// Returns SHA-256 if it is among the hashes, because uv and pip know it best, else the strongest.
fn preferred(hashes: impl Iterator<Item = FileHash>) -> Option<FileHash> {
    let rank = |hash: &FileHash| (hash.algorithm() == Algorithm::Sha256, hash.algorithm());
    // SHA-1 is not collision-resistant, and no index of Python packages needs it.
    hashes.filter(|hash| hash.algorithm() != Algorithm::Sha1).max_by_key(rank)
}

/// Returns the file with its absolute URL, or `None` if its name or URL is refused.
fn checked(mut file: PythonFile, base: &Url) -> Option<PythonFile> {
    let mut url = base.join(&file.url).ok()?;
    url.set_fragment(None);
    let is_web = matches!(url.scheme(), "http" | "https") && url.host().is_some();
    if !is_web || !url.username().is_empty() || url.password().is_some() || !is_python_file_name(&file.file_name) {
        return None;
    }
    file.url = url.to_string();
    let is_plain = |text: &String| text.len() <= MAX_TEXT && !text.chars().any(char::is_control);
    // A file whose requirement is unknown could be installed for the wrong Python.
    if !file.requires_python.as_ref().is_none_or(is_plain) {
        return None;
    }
    file.yanked = file.yanked.map(|reason| if is_plain(&reason) { reason } else { String::new() });
    file.upload_time = file
        .upload_time
        .filter(|text| text.len() <= 40 && text.bytes().all(|byte| byte.is_ascii_digit() || b"-:.TZ+".contains(&byte)));
    Some(file)
}

impl PythonFile {
    /// Returns the path of the file at the mirror.
    fn path(&self, project: &PythonName) -> String {
        // `+` and `!` are valid in a path, but some clients decode `+` as a space.
        let file_name = self.file_name.replace('+', "%2B");
        format!("/pypi/files/{project}/{}/{file_name}", self.hash.hex())
    }
}

/// Returns the index as JSON (PEP 691).
pub(super) fn to_json(project: &PythonName, files: &[PythonFile]) -> Vec<u8> {
    let file = |file: &PythonFile| {
        let hashes = |hash: &FileHash| json!({ hash.algorithm().name(): hash.hex() });
        let mut entry = json!({
            "filename": file.file_name,
            "url": file.path(project),
            "hashes": hashes(&file.hash),
        });
        let metadata = file.metadata.as_ref().map(hashes);
        let optional = [
            ("requires-python", file.requires_python.clone().map(Value::from)),
            ("yanked", file.yanked.clone().map(|reason| if reason.is_empty() { true.into() } else { reason.into() })),
            ("core-metadata", metadata.clone()),
            ("dist-info-metadata", metadata),
            ("size", file.size.map(Value::from)),
            ("upload-time", file.upload_time.clone().map(Value::from)),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                entry[name] = value;
            }
        }
        entry
    };
    let files: Vec<Value> = files.iter().map(file).collect();
    json!({"meta": {"api-version": "1.0"}, "name": project.as_str(), "files": files}).to_string().into_bytes()
}

/// Returns the index as HTML (PEP 503).
pub(super) fn to_html(project: &PythonName, files: &[PythonFile]) -> Vec<u8> {
    let mut text = format!(
        "<!DOCTYPE html>\n<html>\n<head><meta name=\"pypi:repository-version\" content=\"1.0\">\
         <title>Links for {project}</title></head>\n<body>\n"
    );
    for file in files {
        let hash = |hash: &FileHash| format!("{}={}", hash.algorithm().name(), hash.hex());
        let _ = write!(text, "<a href=\"{}#{}\"", html::escape(&file.path(project)), hash(&file.hash));
        let metadata = file.metadata.as_ref().map(hash);
        let attributes = [
            ("data-requires-python", file.requires_python.as_ref()),
            ("data-yanked", file.yanked.as_ref()),
            ("data-core-metadata", metadata.as_ref()),
            ("data-dist-info-metadata", metadata.as_ref()),
            ("data-upload-time", file.upload_time.as_ref()),
        ];
        for (name, value) in attributes {
            if let Some(value) = value {
                let _ = write!(text, " {name}=\"{}\"", html::escape(value));
            }
        }
        let _ = writeln!(text, ">{}</a><br>", html::escape(&file.file_name));
    }
    text.push_str("</body>\n</html>\n");
    text.into_bytes()
}

#[cfg(test)]
mod tests;

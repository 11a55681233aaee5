//! Requests and their responses.

use std::collections::BTreeMap;
use std::fs::File;
use std::sync::Arc;

use reqwest::Url;
use tokio::sync::watch;

use super::Inner;
use super::byte_range::RequestedRange;
use super::downloads::{Progress, RemoteFile};
use super::error::MirrorError;
use super::guest::Guest;
use super::hash::FileHash;
use super::indexes::{Document, Parsed, Query, blocking, read_part};
use super::names::{NpmName, PythonName};
use super::packument::{self, PackumentForm, Tarball};
use super::python_index::{self, MalformedIndex, PythonFile};
use super::registries::{Connected, NpmRegistries};
use super::response::{Body, NOT_MODIFIED, Response};
use super::route::Route;
use super::upstream::Upstream;

const PYTHON_ACCEPT: &str =
    "application/vnd.pypi.simple.v1+json, application/vnd.pypi.simple.v1+html;q=0.2, text/html;q=0.1";
const ABBREVIATED: &str = "application/vnd.npm.install-v1+json";
const ABBREVIATED_ACCEPT: &str = "application/vnd.npm.install-v1+json; q=1.0, application/json; q=0.8, */*";
const JSON: &str = "application/json";

/// The pages of a stored Python index.
const JSON_PAGE: usize = 0;
const HTML_PAGE: usize = 1;

/// Files of at least this size are sent while they are downloaded, so that clients do not time out.
const STREAMED_BYTES: u64 = 4 << 20;

/// The parts of a request that the mirror uses.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request<'a> {
    pub(super) target: &'a str,
    pub(super) accept: &'a str,
    pub(super) range: Option<&'a str>,
    pub(super) if_none_match: Option<&'a str>,
}

/// A file that can be served.
pub(super) enum FoundFile {
    Complete(File, u64),
    Running(watch::Receiver<Progress>, Arc<File>, u64),
}

impl FoundFile {
    /// Returns the file if no download of it is running.
    pub(super) fn complete(self) -> Option<File> {
        match self {
            Self::Complete(file, _) => Some(file),
            Self::Running(..) => None,
        }
    }
}

impl Inner {
    /// Returns the response to a request. `base` is the URL of the mirror for the guest.
    pub(super) async fn respond(self: &Arc<Self>, guest: &Arc<Guest>, request: &Request<'_>, base: &str) -> Response {
        let route = Route::parse(request.target);
        if !matches!(route, Route::Ping | Route::NotFound | Route::Unsupported(_))
            && let Err(error) = self.prepare_cache().await
        {
            return Response::error(&error);
        }
        let result = match route {
            Route::Ping => Ok(Response::ok(JSON, b"{}".to_vec())),
            Route::NotFound => Ok(not_found()),
            Route::Unsupported(text) => Ok(Response::text("404 Not Found", "unsupported", text)),
            Route::PythonIndex(project) => self.python_page(guest, &project, request).await,
            Route::PythonFile { project, hash, file_name, is_metadata } => {
                let file = self.python_file(guest, &project, &hash, &file_name, is_metadata, request).await;
                file.map(|file| file_response(file, request.range))
            }
            Route::Packument(name) => self.packument_page(guest, &name, request, base).await,
            Route::Uv => self.uv(guest).await,
            Route::Tarball { name, version } => {
                let file = self.tarball(guest, &name, &version, request).await;
                file.map(|file| file_response(file, request.range))
            }
        };
        result.unwrap_or_else(|error| Response::error(&error))
    }

    /// Makes the directories of the cache, if they do not exist.
    async fn prepare_cache(&self) -> Result<(), MirrorError> {
        let create = async || {
            let cache = self.cache.clone();
            let created = tokio::task::spawn_blocking(move || cache.create()).await;
            created.map_err(std::io::Error::other).flatten().map_err(|error| MirrorError::Cache(error.kind()))
        };
        self.prepared.get_or_try_init(create).await?;
        Ok(())
    }

    async fn python_page(
        &self,
        guest: &Guest,
        project: &PythonName,
        request: &Request<'_>,
    ) -> Result<Response, MirrorError> {
        let document = self.python_index(guest, project).await?;
        let is_json = ["application/vnd.pypi.simple.v1+json", "application/vnd.pypi.simple.latest+json"]
            .iter()
            .any(|kind| request.accept.contains(kind));
        let content_type = if is_json { "application/vnd.pypi.simple.v1+json" } else { "text/html; charset=utf-8" };
        let etag = format!("\"{}-{}\"", document.digest(), if is_json { "json" } else { "html" });
        let (file, range) = document.page(if is_json { JSON_PAGE } else { HTML_PAGE });
        Ok(page(content_type, etag, request, Body::File(file, range)))
    }

    async fn packument_page(
        &self,
        guest: &Guest,
        name: &NpmName,
        request: &Request<'_>,
        base: &str,
    ) -> Result<Response, MirrorError> {
        let form = if request.accept.contains(ABBREVIATED) { PackumentForm::Abbreviated } else { PackumentForm::Full };
        let document = self.packument(guest, name, form).await?;
        let content_type = if form == PackumentForm::Abbreviated { ABBREVIATED } else { JSON };
        let etag = format!("\"{}\"", document.digest());
        let (file, range) = document.page(0);
        let body = if base == packument::STORED_BASE {
            Body::File(file, range)
        } else {
            let base = base.to_owned();
            Body::Bytes(blocking(move || Ok(packument::with_base(read_part(&file, range)?, &base))).await?)
        };
        Ok(page(content_type, etag, request, body))
    }

    /// Returns the document of a Python project from the first index that has it.
    async fn python_index(&self, guest: &Guest, project: &PythonName) -> Result<Document, MirrorError> {
        let registry = self.registries.python().await?;
        for index in &registry.settings.urls {
            let query = Query {
                upstream: &registry.upstream,
                url: url_below(index, &format!("{project}/"))?,
                package: format!("pypi/{project}"),
                accept: PYTHON_ACCEPT,
                form: "simple",
            };
            let name = project.clone();
            let parse = move |content_type: &str, body: &[u8], base: &Url| {
                let files = python_index::parse(content_type, body, base)?;
                let stored = serde_json::to_vec(&files).map_err(|error| MalformedIndex(error.to_string()))?;
                let pages = vec![python_index::to_json(&name, &files), python_index::to_html(&name, &files)];
                Ok(Parsed { pages, files: stored })
            };
            match self.indexes.document(guest, &self.admission, &query, parse).await {
                Err(MirrorError::Missing) => {}
                result => return result,
            }
        }
        Err(MirrorError::Missing)
    }

    async fn packument(&self, guest: &Guest, name: &NpmName, form: PackumentForm) -> Result<Document, MirrorError> {
        let registry = self.registries.npm().await?;
        let query = packument_query(&registry, name, form)?;
        let name = name.clone();
        let parse = move |_: &str, body: &[u8], base: &Url| {
            let parsed = packument::parse(&name, body, base, form)?;
            let files = serde_json::to_vec(&parsed.tarballs).map_err(|error| MalformedIndex(error.to_string()))?;
            Ok(Parsed { pages: vec![parsed.document], files })
        };
        self.indexes.document(guest, &self.admission, &query, parse).await
    }

    /// Returns the document of a package in any form, preferably one that needs no request.
    async fn any_packument(&self, guest: &Guest, name: &NpmName) -> Result<Document, MirrorError> {
        let registry = self.registries.npm().await?;
        for form in [PackumentForm::Abbreviated, PackumentForm::Full] {
            if let Some(document) = self.indexes.fresh(&packument_query(&registry, name, form)?).await? {
                return Ok(document);
            }
        }
        match self.packument(guest, name, PackumentForm::Abbreviated).await {
            // npm may have requested only the other form.
            Err(error) if error.allows_stale() => {
                self.packument(guest, name, PackumentForm::Full).await.map_err(|_| error)
            }
            result => result,
        }
    }

    pub(super) async fn python_file(
        self: &Arc<Self>,
        guest: &Arc<Guest>,
        project: &PythonName,
        hash: &FileHash,
        file_name: &str,
        is_metadata: bool,
        request: &Request<'_>,
    ) -> Result<FoundFile, MirrorError> {
        // The URL of metadata has the hash of its distribution, so the index is needed to find it.
        if !is_metadata && let Some(found) = self.cached_file(hash).await? {
            return Ok(found);
        }
        let document = self.python_index(guest, project).await?;
        let (wanted, file_name) = (hash.clone(), file_name.to_owned());
        let select = move |files: Vec<PythonFile>| {
            files.into_iter().find(|file| file.hash == wanted && file.file_name == file_name)
        };
        let file = self.indexes.files(&document, select).await?.ok_or(MirrorError::Missing)?;
        let mut url = Url::parse(&file.url).map_err(|_| MirrorError::Missing)?;
        let mut hash = file.hash;
        if is_metadata {
            hash = file.metadata.ok_or(MirrorError::Missing)?;
            let path = format!("{}.metadata", url.path());
            url.set_path(&path);
        }
        let registry = self.registries.python().await?;
        let package = format!("pypi/{project}");
        self.file(guest, RemoteFile { url, hash, package }, registry, request).await
    }

    async fn tarball(
        self: &Arc<Self>,
        guest: &Arc<Guest>,
        name: &NpmName,
        version: &str,
        request: &Request<'_>,
    ) -> Result<FoundFile, MirrorError> {
        let document = self.any_packument(guest, name).await?;
        let version = version.to_owned();
        let select = move |mut tarballs: BTreeMap<String, Tarball>| tarballs.remove(&version);
        let tarball = self.indexes.files(&document, select).await?.ok_or(MirrorError::Missing)?;
        let url = Url::parse(&tarball.url).map_err(|_| MirrorError::Missing)?;
        let registry = self.registries.npm().await?;
        let package = format!("npm/{name}");
        self.file(guest, RemoteFile { url, hash: tarball.hash, package }, registry, request).await
    }

    async fn cached_file(&self, hash: &FileHash) -> Result<Option<FoundFile>, MirrorError> {
        let (cache, hash) = (self.cache.clone(), hash.clone());
        let opened = blocking(move || cache.open_file(&hash)).await?;
        Ok(opened.map(|(file, length)| FoundFile::Complete(file, length)))
    }

    /// Returns a file from the cache, and downloads it first if needed.
    async fn file<U>(
        self: &Arc<Self>,
        guest: &Arc<Guest>,
        mut remote: RemoteFile,
        upstream: Arc<U>,
        request: &Request<'_>,
    ) -> Result<FoundFile, MirrorError>
    where
        U: AsRef<Upstream> + Send + Sync + 'static,
    {
        if let Some(found) = self.cached_file(&remote.hash).await? {
            return Ok(found);
        }
        let hash = remote.hash.clone();
        let mut progress = if let Some(progress) = self.downloads.running(&hash) {
            progress
        } else {
            // Old entries of npm have URLs without TLS.
            let is_secure_registry = (*upstream).as_ref().is_secure();
            if is_secure_registry && remote.url.scheme() == "http" && remote.url.port().is_none() {
                let _ = remote.url.set_scheme("https");
            }
            if is_secure_registry && remote.url.scheme() != "https" {
                return Err(MirrorError::Destination(remote.url.host_str().unwrap_or_default().to_owned()));
            }
            let permit = guest.begin_download().await?;
            drop(guest.admit(&self.admission).await?);
            self.downloads.start(remote, upstream, Arc::clone(guest), Arc::clone(&self.admission), permit)?
        };
        loop {
            let now = progress.borrow_and_update().clone();
            match now {
                Progress::Failed(error) => return Err(error),
                Progress::Complete => break,
                Progress::Running { file, length: Some(length), .. }
                    if length >= STREAMED_BYTES && request.range.is_none() =>
                {
                    return Ok(FoundFile::Running(progress, file, length));
                }
                Progress::Waiting | Progress::Running { .. } => {}
            }
            // The download has a deadline, so this wait has one too.
            progress.changed().await.map_err(|_| MirrorError::Interrupted)?;
        }
        self.cached_file(&hash).await?.ok_or(MirrorError::Interrupted)
    }
}

fn packument_query<'a>(
    registry: &'a Connected<NpmRegistries>,
    name: &NpmName,
    form: PackumentForm,
) -> Result<Query<'a>, MirrorError> {
    let scoped = name.scope().and_then(|scope| registry.settings.scopes.get(scope));
    Ok(Query {
        upstream: &registry.upstream,
        url: url_below(scoped.unwrap_or(&registry.settings.url), &name.path_segment())?,
        package: format!("npm/{name}"),
        accept: if form == PackumentForm::Abbreviated { ABBREVIATED_ACCEPT } else { JSON },
        form: form.name(),
    })
}

fn not_found() -> Response {
    let text = "the package mirror has only /pypi/simple/NAME/ and /npm/NAME, with well-formed names";
    Response::text("404 Not Found", "not-found", text)
}

/// Returns the response with a document, or without it if the guest has it already.
fn page(content_type: &'static str, etag: String, request: &Request<'_>, body: Body) -> Response {
    let is_known = request.if_none_match.is_some_and(|known| known.contains(&etag));
    let fields = vec![("ETag", etag), ("Vary", "Accept".into()), ("Cache-Control", "max-age=60".into())];
    if is_known {
        return Response { status: NOT_MODIFIED, content_type, fields, body: Body::Bytes(Vec::new()) };
    }
    Response { status: "200 OK", content_type, fields, body }
}

fn file_response(file: FoundFile, range: Option<&str>) -> Response {
    let mut response = Response {
        status: "200 OK",
        content_type: "application/octet-stream",
        fields: vec![("Accept-Ranges", "bytes".into()), ("Cache-Control", "max-age=31536000, immutable".into())],
        body: Body::Bytes(Vec::new()),
    };
    let (file, length) = match file {
        FoundFile::Complete(file, length) => (Arc::new(file), length),
        FoundFile::Running(progress, file, length) => {
            response.body = Body::Download(progress, file, length);
            return response;
        }
    };
    match RequestedRange::parse(range, length) {
        RequestedRange::Whole => response.body = Body::File(file, 0..length),
        RequestedRange::Part(part) => {
            response.status = "206 Partial Content";
            let last = part.end - 1;
            response.fields.push(("Content-Range", format!("bytes {}-{last}/{length}", part.start)));
            response.body = Body::File(file, part);
        }
        RequestedRange::Unsatisfiable => {
            response.status = "416 Range Not Satisfiable";
            response.fields.push(("Content-Range", format!("bytes */{length}")));
        }
    }
    response
}

/// Appends segments to the URL of a registry.
fn url_below(registry: &str, path: &str) -> Result<Url, MirrorError> {
    let url = format!("{}/{path}", registry.trim_end_matches('/'));
    Url::parse(&url).map_err(|_| MirrorError::NoRegistry("its URL is invalid".into()))
}

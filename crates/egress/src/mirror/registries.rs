//! The registries that fill the mirror. They come from the operator; a guest cannot choose one.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;

use super::error::MirrorError;
use super::upstream::Upstream;

/// After a failure, the settings are not read again for this time.
const RETRY_DELAY: Duration = Duration::from_secs(30);

/// The indexes of Python packages. URLs have no credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PythonIndexes {
    /// URLs of the simple API. A project comes from the first index that has it.
    pub urls: Vec<String>,
    /// Certificate authorities as PEM, besides those of the system.
    pub certificates: Vec<Vec<u8>>,
}

/// The registries of npm packages. URLs have no credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NpmRegistries {
    pub url: String,
    /// Registries of single scopes (`@scope`).
    pub scopes: BTreeMap<String, String>,
    /// Certificate authorities as PEM, besides those of the system.
    pub certificates: Vec<Vec<u8>>,
}

type Load<T> = Box<dyn Fn() -> Pin<Box<dyn Future<Output = Result<T, String>> + Send>> + Send + Sync>;

/// Determines the registries when a package is first requested.
pub struct RegistrySource {
    python: Load<PythonIndexes>,
    npm: Load<NpmRegistries>,
}

impl RegistrySource {
    /// Creates a source from functions that determine the registries. A function that fails is called again later.
    pub fn new<P, N>(
        python: impl Fn() -> P + Send + Sync + 'static,
        npm: impl Fn() -> N + Send + Sync + 'static,
    ) -> Self
    where
        P: Future<Output = Result<PythonIndexes, String>> + Send + 'static,
        N: Future<Output = Result<NpmRegistries, String>> + Send + 'static,
    {
        Self { python: Box::new(move || Box::pin(python())), npm: Box::new(move || Box::pin(npm())) }
    }

    /// Creates a source of registries that are known already.
    pub fn known(python: PythonIndexes, npm: NpmRegistries) -> Self {
        Self::new(move || std::future::ready(Ok(python.clone())), move || std::future::ready(Ok(npm.clone())))
    }
}

impl fmt::Debug for RegistrySource {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("RegistrySource").finish_non_exhaustive()
    }
}

/// Registries with the client that sends requests to them.
#[derive(Debug)]
pub(super) struct Connected<T> {
    pub(super) settings: T,
    pub(super) upstream: Upstream,
}

impl<T> AsRef<Upstream> for Connected<T> {
    fn as_ref(&self) -> &Upstream {
        &self.upstream
    }
}

/// The registries of this process, once they are known.
pub(super) struct Registries {
    source: RegistrySource,
    python: Mutex<State<PythonIndexes>>,
    npm: Mutex<State<NpmRegistries>>,
}

enum State<T> {
    Unknown,
    Known(Arc<Connected<T>>),
    Failed(String, Instant),
}

impl Registries {
    pub(super) fn new(source: RegistrySource) -> Self {
        Self { source, python: Mutex::new(State::Unknown), npm: Mutex::new(State::Unknown) }
    }

    pub(super) async fn python(&self) -> Result<Arc<Connected<PythonIndexes>>, MirrorError> {
        let connect =
            |settings: &PythonIndexes| Upstream::new(settings.urls.iter().map(String::as_str), &settings.certificates);
        load(&self.python, &self.source.python, connect).await
    }

    pub(super) async fn npm(&self) -> Result<Arc<Connected<NpmRegistries>>, MirrorError> {
        let connect = |settings: &NpmRegistries| {
            let urls = std::iter::once(&settings.url).chain(settings.scopes.values());
            Upstream::new(urls.map(String::as_str), &settings.certificates)
        };
        load(&self.npm, &self.source.npm, connect).await
    }
}

async fn load<T>(
    state: &Mutex<State<T>>,
    load: &Load<T>,
    connect: impl Fn(&T) -> Result<Upstream, String>,
) -> Result<Arc<Connected<T>>, MirrorError> {
    // The lock makes concurrent first requests wait for one result.
    let mut state = state.lock().await;
    match &*state {
        State::Known(known) => return Ok(Arc::clone(known)),
        State::Failed(error, at) if at.elapsed() < RETRY_DELAY => return Err(MirrorError::NoRegistry(error.clone())),
        _ => {}
    }
    let loaded = load().await.and_then(|settings| {
        let upstream = connect(&settings)?;
        Ok(Arc::new(Connected { settings, upstream }))
    });
    match loaded {
        Ok(known) => {
            *state = State::Known(Arc::clone(&known));
            Ok(known)
        }
        Err(error) => {
            tracing::warn!(error, "the package mirror has no registry");
            *state = State::Failed(error.clone(), Instant::now());
            Err(MirrorError::NoRegistry(error))
        }
    }
}

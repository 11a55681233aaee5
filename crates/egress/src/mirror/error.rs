//! Reasons why the mirror cannot serve a request.

/// The reason why a package cannot be served. Guests see its text, which has neither paths nor credentials.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum MirrorError {
    #[error("the registry has no such package or file")]
    Missing,
    #[error("the registry refuses access (HTTP {0})")]
    Forbidden(u16),
    #[error("the registry responded with HTTP {0}")]
    Status(u16),
    #[error("the registry {host} cannot be reached: {cause}")]
    Unreachable { host: String, cause: String },
    #[error("the registry did not respond in time")]
    Timeout,
    #[error("the registry redirects to {0}, which the index does not name")]
    Redirect(String),
    #[error("the registry redirects more than {0} times")]
    TooManyRedirects(usize),
    #[error("the index names the host {0}, which has a private or reserved address")]
    Destination(String),
    #[error("the response of the registry is larger than the mirror accepts")]
    TooLarge,
    #[error("{0}")]
    Malformed(String),
    #[error("the file of the registry does not have the hash in its index")]
    WrongHash,
    #[error("the download from the registry was interrupted")]
    Interrupted,
    #[error("this sandbox has requested too many packages that are not in the cache; retry later")]
    Budget,
    #[error("no registry can be used: {0}")]
    NoRegistry(String),
    #[error("the cache of the mirror cannot be used: {0}")]
    Cache(std::io::ErrorKind),
}

impl MirrorError {
    /// The stable code for decisions and the `X-Ringfence-Reason` field.
    pub(super) fn code(&self) -> &'static str {
        match self {
            Self::Missing => "package-missing",
            Self::Forbidden(_) => "package-forbidden",
            Self::Status(_) => "registry-status",
            Self::Unreachable { .. } => "registry-unreachable",
            Self::Timeout => "registry-timeout",
            Self::Redirect(_) | Self::TooManyRedirects(_) => "registry-redirect",
            Self::Destination(_) => "registry-destination",
            Self::TooLarge => "package-too-large",
            Self::Malformed(_) => "registry-malformed",
            Self::WrongHash => "package-wrong-hash",
            Self::Interrupted => "registry-interrupted",
            Self::Budget => "package-budget",
            Self::NoRegistry(_) => "no-registry",
            Self::Cache(_) => "package-cache",
        }
    }

    pub(super) fn status(&self) -> &'static str {
        match self {
            Self::Missing => "404 Not Found",
            Self::Forbidden(_) => "403 Forbidden",
            Self::Budget => "429 Too Many Requests",
            Self::Timeout => "504 Gateway Timeout",
            Self::Cache(_) => "500 Internal Server Error",
            _ => "502 Bad Gateway",
        }
    }

    /// Whether an older copy may be served instead.
    pub(super) fn allows_stale(&self) -> bool {
        !matches!(self, Self::Missing)
    }
}

impl From<std::io::Error> for MirrorError {
    fn from(error: std::io::Error) -> Self {
        Self::Cache(error.kind())
    }
}

//! Validated paths beneath the workspace of a guest.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use ringfence_core::WORKSPACE;

const MAX_PATH_BYTES: usize = 4096;
const MAX_NAME_BYTES: usize = 255;
const MAX_COMPONENTS: usize = 64;

/// A path beneath the workspace, as a list of names without `.`, `..`, NUL or slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestPath(Vec<OsString>);

/// The reason why a path is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the path is outside of /workspace")]
    Outside,
    #[error("the path contains `..`")]
    Parent,
    #[error("the path contains a NUL byte")]
    Nul,
    #[error(
        "the path is too long (at most {MAX_PATH_BYTES} bytes in {MAX_COMPONENTS} names of at most {MAX_NAME_BYTES} bytes)"
    )]
    TooLong,
}

impl GuestPath {
    /// The workspace itself.
    pub(crate) fn workspace() -> Self {
        Self(Vec::new())
    }

    /// Parses a path relative to the workspace, or an absolute path beneath it.
    pub fn parse(path: &OsStr) -> Result<Self, PathError> {
        let bytes = path.as_bytes();
        if bytes.len() > MAX_PATH_BYTES {
            return Err(PathError::TooLong);
        }
        if bytes.contains(&0) {
            return Err(PathError::Nul);
        }
        let relative = match bytes.strip_prefix(WORKSPACE.as_bytes()) {
            Some(rest) if rest.is_empty() || rest.starts_with(b"/") => rest,
            _ if bytes.starts_with(b"/") => return Err(PathError::Outside),
            _ => bytes,
        };
        let names = relative.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".");
        let names: Vec<OsString> = names.map(|name| OsString::from_vec(name.to_vec())).collect();
        if names.iter().any(|name| name == "..") {
            return Err(PathError::Parent);
        }
        if names.len() > MAX_COMPONENTS || names.iter().any(|name| name.len() > MAX_NAME_BYTES) {
            return Err(PathError::TooLong);
        }
        Ok(Self(names))
    }

    pub(crate) fn components(&self) -> &[OsString] {
        &self.0
    }

    /// Whether `name` is a valid component. The init checks what the host sends, too.
    pub(crate) fn is_name(name: &OsStr) -> bool {
        let bytes = name.as_bytes();
        !matches!(bytes, b"" | b"." | b"..") && bytes.len() <= MAX_NAME_BYTES && !bytes.contains(&b'/')
    }
}

/// Formats the absolute path in the sandbox; invalid UTF-8 is replaced.
impl fmt::Display for GuestPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(WORKSPACE)?;
        self.0.iter().try_for_each(|name| write!(formatter, "/{}", name.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_to_string(path: &[u8]) -> Result<String, PathError> {
        GuestPath::parse(OsStr::from_bytes(path)).map(|path| path.to_string())
    }

    #[test]
    fn paths_beneath_the_workspace_are_normalized() {
        for (path, expected) in [
            (b"a/b".as_slice(), "/workspace/a/b"),
            (b"/workspace/a", "/workspace/a"),
            (b"/workspace", "/workspace"),
            (b".", "/workspace"),
            (b"", "/workspace"),
            (b"./a//b/./", "/workspace/a/b"),
            (b"workspace/a", "/workspace/workspace/a"),
            (b"a\nb", "/workspace/a\nb"),
            (b"...", "/workspace/..."),
            (b"a\xff", "/workspace/a\u{fffd}"),
        ] {
            assert_eq!(parse_to_string(path).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn paths_outside_of_the_workspace_and_invalid_paths_are_refused() {
        for (path, expected) in [
            (b"/etc/passwd".as_slice(), PathError::Outside),
            (b"/", PathError::Outside),
            (b"/workspaces/a", PathError::Outside),
            (b"//workspace/a", PathError::Outside),
            (b"..", PathError::Parent),
            (b"a/../../etc", PathError::Parent),
            (b"/workspace/..", PathError::Parent),
            (b"a\0b", PathError::Nul),
            (&[b'a'; 256], PathError::TooLong),
            (&b"a/".repeat(65), PathError::TooLong),
            (&b"a/".repeat(3000), PathError::TooLong),
        ] {
            assert_eq!(parse_to_string(path), Err(expected), "{}", String::from_utf8_lossy(path));
        }
    }

    proptest::proptest! {
        #[test]
        fn every_component_is_a_valid_name(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..60)) {
            if let Ok(path) = GuestPath::parse(OsStr::from_bytes(&bytes)) {
                proptest::prop_assert!(path.components().iter().all(|name| GuestPath::is_name(name)));
            }
        }
    }
}

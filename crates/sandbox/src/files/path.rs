//! Paths of a guest's files, taken apart before anything is done with them.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use ringfence_core::WORKSPACE;

const MOST_BYTES: usize = 4096;
const MOST_NAME_BYTES: usize = 255;
const MOST_COMPONENTS: usize = 64;

/// A place beneath the workspace: names only, without `.`, `..`, NUL or slashes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GuestPath(Vec<OsString>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PathError {
    #[error("the path lies outside of /workspace")]
    Outside,
    #[error("the path has `..` in it")]
    Parent,
    #[error("the path has a NUL in it")]
    Nul,
    #[error("the path is too long (at most {MOST_BYTES} bytes, {MOST_COMPONENTS} names of {MOST_NAME_BYTES})")]
    TooLong,
}

impl GuestPath {
    /// The workspace itself.
    pub(crate) fn workspace() -> Self {
        Self(Vec::new())
    }

    /// Takes a path relative to the workspace, or an absolute one beneath it.
    pub fn parse(path: &OsStr) -> Result<Self, PathError> {
        let bytes = path.as_bytes();
        if bytes.len() > MOST_BYTES {
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
        if names.len() > MOST_COMPONENTS || names.iter().any(|name| name.len() > MOST_NAME_BYTES) {
            return Err(PathError::TooLong);
        }
        Ok(Self(names))
    }

    pub(crate) fn components(&self) -> &[OsString] {
        &self.0
    }

    /// Whether a name that was sent is one: the init believes no more than the host does.
    pub(crate) fn is_name(name: &OsStr) -> bool {
        let bytes = name.as_bytes();
        !matches!(bytes, b"" | b"." | b"..") && bytes.len() <= MOST_NAME_BYTES && !bytes.contains(&b'/')
    }
}

/// As the guest would write it; bytes that are no UTF-8 are replaced.
impl fmt::Display for GuestPath {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(WORKSPACE)?;
        self.0.iter().try_for_each(|name| write!(formatter, "/{}", name.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &[u8]) -> Result<String, PathError> {
        GuestPath::parse(OsStr::from_bytes(path)).map(|path| path.to_string())
    }

    #[test]
    fn a_path_is_names_beneath_the_workspace() {
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
            assert_eq!(shown(path).as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_leads_elsewhere_is_refused() {
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
            assert_eq!(shown(path), Err(expected), "{}", String::from_utf8_lossy(path));
        }
    }

    proptest::proptest! {
        #[test]
        fn every_part_of_a_path_is_a_name(bytes in proptest::collection::vec(proptest::num::u8::ANY, 0..60)) {
            if let Ok(path) = GuestPath::parse(OsStr::from_bytes(&bytes)) {
                proptest::prop_assert!(path.components().iter().all(|name| GuestPath::is_name(name)));
            }
        }
    }
}

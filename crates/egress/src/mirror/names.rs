//! Names of packages, versions and files, as guests request them and as registries write them.
//!
//! Only well-formed names exist here, so that nothing else can reach a registry, a URL or a path.

use std::fmt;

const MAX_PYTHON_NAME: usize = 100;
const MAX_NPM_NAME: usize = 214;
const MAX_VERSION: usize = 256;
const MAX_FILE_NAME: usize = 255;

/// File names of Python distributions end with one of these.
const DISTRIBUTIONS: [&str; 5] = [".whl", ".tar.gz", ".zip", ".tar.bz2", ".tgz"];

/// A normalized name of a Python project (PEP 503).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct PythonName(String);

impl PythonName {
    /// Parses a name, and normalizes it: `Foo__Bar` is `foo-bar`.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let is_end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let is_separator = |byte: u8| matches!(byte, b'-' | b'_' | b'.');
        let bytes = text.as_bytes();
        let is_valid = bytes.len() <= MAX_PYTHON_NAME
            && is_end(bytes.first())
            && is_end(bytes.last())
            && bytes.iter().all(|&byte| byte.is_ascii_alphanumeric() || is_separator(byte));
        if !is_valid {
            return None;
        }
        let mut name = String::with_capacity(text.len());
        for byte in text.bytes() {
            if !is_separator(byte) {
                name.push(char::from(byte.to_ascii_lowercase()));
            } else if !name.ends_with('-') {
                name.push('-');
            }
        }
        Some(Self(name))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for PythonName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// The name of an npm package: `name` or `@scope/name`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct NpmName(String);

impl NpmName {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_NPM_NAME {
            return None;
        }
        let is_valid = match text.strip_prefix('@') {
            Some(scoped) => scoped.split_once('/').is_some_and(|(scope, name)| is_npm_part(scope) && is_npm_part(name)),
            None => is_npm_part(text),
        };
        is_valid.then(|| Self(text.to_owned()))
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the scope with `@`, if the name has one.
    pub(crate) fn scope(&self) -> Option<&str> {
        self.0.split_once('/').map(|(scope, _)| scope)
    }

    /// Returns the name without its scope.
    pub(crate) fn base(&self) -> &str {
        self.0.rsplit('/').next().unwrap_or(&self.0)
    }

    /// Returns the name as one path segment of a URL: `@scope%2fname`.
    pub(crate) fn path_segment(&self) -> String {
        self.0.replace('/', "%2f")
    }

    /// Returns the version in the name of a tarball: `name-1.2.3.tgz`.
    pub(crate) fn version_in(&self, file_name: &str) -> Option<String> {
        let rest = file_name.strip_prefix(self.base())?.strip_prefix('-')?;
        let version = rest.strip_suffix(".tgz")?;
        is_npm_version(version).then(|| version.to_owned())
    }
}

impl fmt::Display for NpmName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

fn is_npm_part(text: &str) -> bool {
    // Old packages have names in upper case.
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~');
    !text.is_empty() && !text.starts_with(['.', '-']) && text.bytes().all(is_allowed)
}

/// Whether the text can be the version of an npm package.
pub(crate) fn is_npm_version(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'+');
    text.len() <= MAX_VERSION && text.starts_with(|c: char| c.is_ascii_digit()) && text.bytes().all(is_allowed)
}

/// Whether the text can be the file name of a Python distribution.
pub(crate) fn is_python_file_name(text: &str) -> bool {
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'+' | b'!');
    text.len() <= MAX_FILE_NAME
        && text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.bytes().all(is_allowed)
        && DISTRIBUTIONS.iter().any(|ending| text.len() > ending.len() && text.ends_with(ending))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_names_are_normalized_or_refused() {
        for (text, expected) in
            [("Foo__Bar", "foo-bar"), ("a", "a"), ("zope.interface", "zope-interface"), ("A.-_b", "a-b")]
        {
            assert_eq!(PythonName::parse(text).unwrap().as_str(), expected);
        }
        let long = "a".repeat(101);
        for text in ["", ".", "..", "-a", "a-", "a/b", "a%2fb", "a b", "ä", "a\0", "../a", long.as_str()] {
            assert_eq!(PythonName::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn npm_names_are_parsed_or_refused() {
        for (text, scope, base) in
            [("left-pad", None, "left-pad"), ("@a/b.c", Some("@a"), "b.c"), ("JSONStream", None, "JSONStream")]
        {
            let name = NpmName::parse(text).unwrap();
            assert_eq!((name.scope(), name.base()), (scope, base));
        }
        let long = "a".repeat(215);
        for text in
            ["", ".", "..", "-", ".a", "@a", "@/b", "@a/", "@a/../b", "a/b", "@a/b/c", "a?b", "a#b", long.as_str()]
        {
            assert_eq!(NpmName::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn tarball_names_contain_versions() {
        let name = NpmName::parse("@types/node").unwrap();
        assert_eq!(name.version_in("node-20.1.0-rc.1+x.tgz").as_deref(), Some("20.1.0-rc.1+x"));
        for text in ["node-.tgz", "node-../1.tgz", "other-1.0.0.tgz", "node-1.0.0.tar", "node-1%2f.tgz"] {
            assert_eq!(name.version_in(text), None, "{text:?}");
        }
    }

    #[test]
    fn python_file_names_are_checked() {
        for text in ["requests-2.0-py3-none-any.whl", "a-1.tar.gz", "torch-2.0+cpu-cp311-cp311-linux_x86_64.whl"] {
            assert!(is_python_file_name(text), "{text}");
        }
        for text in ["", ".whl", "../a.whl", "a/b.whl", "a.exe", "a.whl\0", "a b.whl", "-a.whl", "a.whl\r\n"] {
            assert!(!is_python_file_name(text), "{text:?}");
        }
    }
}

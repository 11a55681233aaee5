//! Requirements of Python packages: a name, extras and versions.
//!
//! Options, URLs, paths and environment markers are refused: they would change what the package manager does.

const MAX_BYTES: usize = 200;

const OPERATORS: [&str; 8] = ["===", "==", "~=", "!=", ">=", "<=", ">", "<"];

/// Returns a requirement without white space, or `None` if it is invalid.
pub(super) fn parse(text: &str) -> Option<String> {
    let text = text.trim();
    if text.is_empty() || text.len() > MAX_BYTES || text.contains(|c: char| c.is_control() || !c.is_ascii()) {
        return None;
    }
    let name_end = text.find(|c: char| !is_name_char(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(name_end);
    let rest = rest.trim_start();
    let (extras, versions) = match rest.strip_prefix('[') {
        Some(rest) => rest.split_once(']').map(|(extras, versions)| (Some(extras), versions))?,
        None => (None, rest),
    };
    let extras: Vec<&str> = extras.iter().flat_map(|extras| extras.split(',')).map(str::trim).collect();
    let versions = versions.trim();
    let versions: Vec<String> =
        if versions.is_empty() { Vec::new() } else { versions.split(',').map(version).collect::<Option<_>>()? };
    if !is_name(name) || !extras.iter().all(|extra| is_name(extra)) {
        return None;
    }
    let extras = if extras.is_empty() { String::new() } else { format!("[{}]", extras.join(",")) };
    Some(format!("{name}{extras}{}", versions.join(",")))
}

/// Parses one clause, such as `>= 2.0`.
fn version(text: &str) -> Option<String> {
    let text = text.trim();
    let operator = OPERATORS.iter().find(|operator| text.starts_with(**operator))?;
    let version = text[operator.len()..].trim();
    let is_version_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '*' | '+' | '!' | '-' | '_');
    let is_valid = version.starts_with(|c: char| c.is_ascii_alphanumeric()) && version.chars().all(is_version_char);
    is_valid.then(|| format!("{operator}{version}"))
}

fn is_name_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_')
}

fn is_name(name: &str) -> bool {
    let is_alphanumeric = |c: char| c.is_ascii_alphanumeric();
    name.starts_with(is_alphanumeric) && name.ends_with(is_alphanumeric) && name.chars().all(is_name_char)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_extras_and_versions_are_accepted_and_normalized() {
        for (text, normalized) in [
            ("numpy", "numpy"),
            (" pandas == 2.* ", "pandas==2.*"),
            ("pandas[excel, html] >= 2, < 3", "pandas[excel,html]>=2,<3"),
            ("zope.interface~=6.1", "zope.interface~=6.1"),
            ("a===1!2.0+local.1", "a===1!2.0+local.1"),
        ] {
            assert_eq!(parse(text).as_deref(), Some(normalized), "{text}");
        }
    }

    #[test]
    fn options_urls_paths_and_markers_are_refused() {
        let long = "a".repeat(MAX_BYTES + 1);
        for text in [
            "",
            "-r file",
            "--index-url=http://127.0.0.1",
            "a @ https://example.com/a.whl",
            "https://example.com/a.whl",
            "git+https://example.com/a",
            "./a",
            "/a",
            "a/b",
            "..",
            "a;python_version<'4'",
            "a b",
            "a==1 --pre",
            "a==--pre",
            "a==",
            "a==1,",
            "a[",
            "a[]",
            "a[-x]",
            "a\n-r b",
            "a=1",
            "ä",
            &long,
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}

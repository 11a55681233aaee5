//! The programs of installed packages.

use std::path::Path;

use serde_json::Value;

use crate::phase::{Phase, StartFailure};
use crate::plan::ManifestDirectory;

const MAX_MANIFEST_BYTES: u64 = 1 << 20;

/// Returns the default program of an installed npm package, as npx chooses it: the only program, or the one with the
/// name of the package.
pub(crate) fn default_npm_program(prefix: &Path, package: &str) -> Result<String, StartFailure> {
    let failed = |message: String| StartFailure::permanent(Phase::DepInstall, message);
    let package_manifest =
        |name: &str| read_manifest(prefix, &Path::new("node_modules").join(name).join("package.json"));
    // If the package was given as a URL, npm has written its name into the manifest of the prefix.
    let from_url = || {
        let prefix_manifest = read_manifest(prefix, Path::new("package.json"))?;
        let name = prefix_manifest["dependencies"].as_object()?.keys().next()?.clone();
        package_manifest(&name).map(|manifest| (name, manifest))
    };
    let found = package_manifest(package).map(|manifest| (package.to_owned(), manifest)).or_else(from_url);
    let (name, manifest) =
        found.ok_or_else(|| failed(format!("npm installed {package}, but its package.json was not found")))?;
    let short_name = name.rsplit('/').next().unwrap_or(&name);
    let program = match &manifest["bin"] {
        Value::String(_) => Some(short_name),
        Value::Object(programs) if programs.len() == 1 => programs.keys().next().map(String::as_str),
        Value::Object(programs) => programs.contains_key(short_name).then_some(short_name),
        _ => None,
    };
    match program {
        Some(program) if is_file_name(program) => Ok(program.into()),
        _ => {
            let programs = manifest["bin"].as_object().into_iter().flat_map(|programs| programs.keys());
            let listed: Vec<&str> = programs.map(String::as_str).take(20).collect();
            Err(failed(format!("the npm package {name} has no default program"))
                .hint(format!("name one of its programs ({}): `npx -y -p {name} PROGRAM`", listed.join(", "))))
        }
    }
}

/// Checks that the installed packages contain a program.
pub(crate) fn check_program_exists(directory: &Path, program: &str) -> Result<(), StartFailure> {
    if program.contains('/') || directory.join(program).symlink_metadata().is_ok() {
        return Ok(());
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_from_package = |name: &String| !name.to_lowercase().starts_with("activate") && !name.starts_with("python");
    let mut names: Vec<String> = names.filter(is_from_package).take(20).collect();
    names.sort();
    Err(StartFailure::permanent(Phase::DepInstall, format!("the installed packages have no program `{program}`"))
        .hint(format!("their programs are: {}; write `uvx --from PACKAGE PROGRAM`", names.join(", "))))
}

fn read_manifest(prefix: &Path, path: &Path) -> Option<Value> {
    serde_json::from_slice(&ManifestDirectory::new(prefix.to_owned(), None).read(path, MAX_MANIFEST_BYTES).ok()??).ok()
}

fn is_file_name(name: &str) -> bool {
    !name.is_empty() && !name.contains(['/', '\0']) && name != "." && name != ".."
}

#[cfg(test)]
mod tests {
    use super::*;

    fn program(package: &str, bin: &str) -> Result<String, StartFailure> {
        let prefix = tempfile::tempdir().unwrap();
        let directory = prefix.path().join("node_modules/@a/b");
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(directory.join("package.json"), format!("{{\"bin\": {bin}}}")).unwrap();
        std::fs::write(prefix.path().join("package.json"), r#"{"dependencies": {"@a/b": "1"}}"#).unwrap();
        default_npm_program(prefix.path(), package)
    }

    #[test]
    fn finds_default_program_of_npm_package() {
        assert_eq!(program("@a/b", r#""x.js""#).unwrap(), "b");
        assert_eq!(program("@a/b", r#"{"only": "x.js"}"#).unwrap(), "only");
        assert_eq!(program("@a/b", r#"{"other": "x.js", "b": "y.js"}"#).unwrap(), "b");
        assert_eq!(program("github:a/b", r#""x.js""#).unwrap(), "b");
        let unclear = program("@a/b", r#"{"one": "x.js", "two": "y.js"}"#).unwrap_err();
        assert!(unclear.hints[0].contains("one, two"), "{unclear:?}");
        assert!(program("@a/b", r#"{"../../x": "x.js"}"#).is_err());
    }

    #[test]
    fn missing_program_is_an_error_with_the_available_ones() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["python3", "activate", "real"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        assert!(check_program_exists(directory.path(), "real").is_ok());
        let missing = check_program_exists(directory.path(), "other").unwrap_err();
        assert!(missing.hints[0].contains("their programs are: real;"), "{missing:?}");
    }
}

//! The programs that installed packages bring.

use std::path::Path;

use serde_json::Value;

use super::manifests::Manifests;
use super::phase::{Phase, StartFailure};

/// More than any manifest has.
const MOST_BYTES: u64 = 1 << 20;

/// The name of the program that a package of npm is made for: its only one, or the one that is called as it is.
pub(crate) fn of_npm_package(prefix: &Path, package: &str) -> Result<String, StartFailure> {
    let failed = |why: String| StartFailure::lasting(Phase::DepInstall, why);
    let own = |name: &str| manifest(prefix, &Path::new("node_modules").join(name).join("package.json"));
    // A package that is named by an address is known by what npm wrote down.
    let written = || {
        let wanted = manifest(prefix, Path::new("package.json"))?;
        let name = wanted["dependencies"].as_object()?.keys().next()?.clone();
        own(&name).map(|manifest| (name, manifest))
    };
    let found = own(package).map(|manifest| (package.to_owned(), manifest)).or_else(written);
    let (name, manifest) = found.ok_or_else(|| failed(format!("{package} was not installed as expected")))?;
    let own_name = name.rsplit('/').next().unwrap_or(&name);
    let program = match &manifest["bin"] {
        Value::String(_) => Some(own_name),
        Value::Object(programs) if programs.len() == 1 => programs.keys().next().map(String::as_str),
        Value::Object(programs) => programs.contains_key(own_name).then_some(own_name),
        _ => None,
    };
    match program {
        Some(program) if is_name(program) => Ok(program.into()),
        _ => {
            let programs = manifest["bin"].as_object().into_iter().flat_map(|programs| programs.keys());
            let listed: Vec<&str> = programs.map(String::as_str).take(20).collect();
            Err(failed(format!("{name} does not say which program it is made for"))
                .hint(format!("name one of its programs ({}): `npx -y -p {name} PROGRAM`", listed.join(", "))))
        }
    }
}

/// Refuses a program that its package does not bring.
pub(crate) fn check_brought(directory: &Path, program: &str) -> Result<(), StartFailure> {
    if program.contains('/') || directory.join(program).symlink_metadata().is_ok() {
        return Ok(());
    }
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
    let is_own = |name: &String| !name.to_lowercase().starts_with("activate") && !name.starts_with("python");
    let mut names: Vec<String> = names.filter(is_own).take(20).collect();
    names.sort();
    Err(StartFailure::lasting(Phase::DepInstall, format!("its packages bring no program `{program}`"))
        .hint(format!("they bring: {}; write `uvx --from PACKAGE PROGRAM`", names.join(", "))))
}

fn manifest(prefix: &Path, path: &Path) -> Option<Value> {
    serde_json::from_slice(&Manifests::new(prefix.to_owned(), None).read(path, MOST_BYTES).ok()??).ok()
}

fn is_name(name: &str) -> bool {
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
        of_npm_package(prefix.path(), package)
    }

    #[test]
    fn the_program_of_a_package() {
        assert_eq!(program("@a/b", r#""x.js""#).unwrap(), "b");
        assert_eq!(program("@a/b", r#"{"only": "x.js"}"#).unwrap(), "only");
        assert_eq!(program("@a/b", r#"{"other": "x.js", "b": "y.js"}"#).unwrap(), "b");
        assert_eq!(program("github:a/b", r#""x.js""#).unwrap(), "b");
        let unclear = program("@a/b", r#"{"one": "x.js", "two": "y.js"}"#).unwrap_err();
        assert!(unclear.hints[0].contains("one, two"), "{unclear:?}");
        assert!(program("@a/b", r#"{"../../x": "x.js"}"#).is_err());
    }

    #[test]
    fn a_program_that_is_not_brought() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["python3", "activate", "real"] {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        assert!(check_brought(directory.path(), "real").is_ok());
        let missing = check_brought(directory.path(), "other").unwrap_err();
        assert!(missing.hints[0].contains("they bring: real;"), "{missing:?}");
    }
}

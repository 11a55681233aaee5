//! What Python sessions are forked from: the same interpreter that a session would start, warm.

use std::path::{Path, PathBuf};

use ringfence_sandbox::ZygoteConfig;
use serde_json::json;

use crate::interpreter;
use ringfence_config::{GuestWritable, GuestWritten};
use ringfence_core::{Language, PATH};
use ringfence_guest::sources;

/// The sandbox crate as a shared library, for the zygote to load.
pub static ZYGOTE_LIBRARY: &[u8] = include_bytes!(env!("RINGFENCE_ZYGOTE_LIBRARY"));

/// Threads would not survive a fork, so libraries must not start any while they are imported.
const ONE_THREAD: [&str; 5] =
    ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"];

/// A zygote of the Python that sessions have.
pub fn python_zygote(python: &Path, preload: &[String]) -> Option<ZygoteConfig> {
    let environment = ONE_THREAD.map(|name| (name, "1")).into_iter().chain([
        ("LANG", "C.UTF-8"),
        ("MPLBACKEND", "Agg"),
        ("PATH", PATH),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ]);
    Some(ZygoteConfig {
        command: vec![python.to_str()?.to_owned(), "-I".into(), "-c".into(), sources::ZYGOTE_PROGRAM.into()],
        environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        input: json!({ "sources": sources::python_modules(), "preload": preload }).to_string(),
    })
}

/// The Python of sessions, if the host may execute it: guests must not have been able to write it.
pub fn host_python(writable: &GuestWritable) -> Option<PathBuf> {
    let directory = interpreter::find(Language::Python.interpreter()).map(|found| found.directory);
    let python = find_program(Language::Python.interpreter(), directory.as_deref())?;
    match writable.register_executed(&interpreter::executed_parts(&python)) {
        Ok(()) => Some(python),
        Err(error) => {
            tracing::warn!(
                "{} is not executed on the host, so Python sessions start cold: {error}; hint: {}",
                python.display(),
                GuestWritten::HINT
            );
            None
        }
    }
}

/// Finds the program where a session would: the host's directories are at the same places inside.
pub fn find_program(program: &str, first: Option<&Path>) -> Option<PathBuf> {
    let directories = first.into_iter().chain(PATH.split(':').map(Path::new));
    directories.map(|directory| directory.join(program)).find(|path| path.is_file())
}

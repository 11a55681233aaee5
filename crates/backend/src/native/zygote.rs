//! The zygote, from which the launcher forks Python sandboxes: the interpreter of sessions, with its modules imported.

use ringfence_core::PATH;
use ringfence_guest::sources;
use ringfence_sandbox::ZygoteConfig;
use serde_json::json;

use crate::config::WarmPython;

/// The sandbox crate as a shared library, which the zygote loads.
pub(super) static LIBRARY: &[u8] = include_bytes!(env!("RINGFENCE_ZYGOTE_LIBRARY"));

/// Threads would not survive a fork, so libraries must not start any while they are imported.
const ONE_THREAD: [&str; 5] =
    ["OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"];

/// Returns the configuration of the zygote. `None` if the path of the interpreter is not UTF-8.
pub(super) fn python_zygote(python: &WarmPython) -> Option<ZygoteConfig> {
    let environment = ONE_THREAD.map(|name| (name, "1")).into_iter().chain([
        ("LANG", "C.UTF-8"),
        ("MPLBACKEND", "Agg"),
        ("PATH", PATH),
        ("PYTHONDONTWRITEBYTECODE", "1"),
    ]);
    let program = python.program.to_str()?.to_owned();
    Some(ZygoteConfig {
        command: vec![program, "-I".into(), "-c".into(), sources::ZYGOTE_PROGRAM.into()],
        environment: environment.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        input: json!({ "sources": sources::python_modules(), "preload": python.preload }).to_string(),
    })
}

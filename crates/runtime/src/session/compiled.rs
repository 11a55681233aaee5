//! The Python kernel, compiled by the interpreter that sessions have.
//!
//! Made on the host, from the text in this program, when it is first of use, and again when the interpreter has been
//! replaced. Until then the kernel starts from its text. Nothing here ever comes from a guest.

use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{language, warmth};

const PROGRAM: &str = include_str!("../../../../guest/compile.py");

/// Far more than it takes.
const DEADLINE: Duration = Duration::from_secs(10);

/// Compiled, it is about as long as its text.
const MOST_BYTES: usize = 256 << 10;

static LATEST: Mutex<Option<Compiled>> = Mutex::new(None);

struct Compiled {
    by: Interpreter,
    /// Not there yet while it is being made, or for good if that failed.
    code: Option<Arc<str>>,
}

/// A file that is another once it has been replaced.
#[derive(Clone, PartialEq, Eq)]
struct Interpreter {
    path: PathBuf,
    identity: (u64, u64, i64, i64),
}

impl Interpreter {
    fn look(path: PathBuf) -> Option<Self> {
        let found = std::fs::metadata(&path).ok()?;
        let identity = (found.dev(), found.ino(), found.ctime(), found.ctime_nsec());
        Some(Self { path, identity })
    }
}

/// What has been compiled; begins with it where it has not.
pub(super) fn python(interpreter_directory: Option<&Path>) -> Option<Arc<str>> {
    let by = Interpreter::look(warmth::find("python3", interpreter_directory)?)?;
    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(compiled) = &*latest
        && compiled.by == by
    {
        return compiled.code.clone();
    }
    *latest = Some(Compiled { by: by.clone(), code: None });
    // Detached: it ends by itself within its deadline, and nobody waits for it.
    std::thread::spawn(move || {
        let code = compile(&by.path).map(Arc::from);
        let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
        // Unless it was replaced meanwhile.
        if Interpreter::look(by.path.clone()).as_ref() == Some(&by) {
            *latest = Some(Compiled { by, code });
        }
    });
    None
}

fn compile(python: &Path) -> Option<String> {
    let sources = language::python_sources();
    let mut process = Command::new(python)
        // Columns of tracebacks, which nobody sees, would be half of it.
        .args(["-I", "-S", "-X", "no_debug_ranges", "-c", PROGRAM])
        .args(sources.iter().flat_map(|(name, text)| [*name, *text]))
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let output = process.stdout.take()?;
    let reader = std::thread::spawn(move || std::io::read_to_string(output));
    let deadline = Instant::now() + DEADLINE;
    while matches!(process.try_wait(), Ok(None)) && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
    }
    let _ = process.kill();
    let has_succeeded = process.wait().is_ok_and(|status| status.success());
    let text = reader.join().ok()?.ok()?;
    (has_succeeded && text.len() <= MOST_BYTES).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_compiled_for_the_interpreter_that_did_it() {
        let Some(python) = warmth::find("python3", None) else { return };
        let compiled = compile(&python).unwrap();
        let check = "import sys, marshal, binascii, zlib; made_for, now, later = sys.argv[1].split('\\n'); \
                     assert made_for == repr(sys.version); \
                     now, later = (binascii.a2b_base64(part) for part in (now, later)); \
                     now, later = (marshal.loads(part) for part in (now, zlib.decompress(later))); \
                     assert len(later) == 8 and all(name.startswith('mcp_bridge') for name in later); \
                     print(*(code.co_filename for code in now.values()))";
        let output = Command::new(python).args(["-I", "-S", "-c", check, &compiled]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "/run/ringfence/kernel.py /run/ringfence/kernel_output.py\n",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

//! The Python kernel, compiled by the interpreter that sessions have.
//!
//! Made on the host, from the text in this program, once in the life of a server and when it is first of use. Until
//! then, and wherever a session has another interpreter, the kernel starts from its text. Nothing here ever comes from
//! a guest.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{language, warmth};

const PROGRAM: &str = include_str!("../../../../guest/compile.py");

/// Far more than it takes.
const DEADLINE: Duration = Duration::from_secs(10);

/// Compiled, it is about as long as its text.
const MOST_BYTES: usize = 256 << 10;

static COMPILED: OnceLock<String> = OnceLock::new();
static IS_BEGUN: AtomicBool = AtomicBool::new(false);

/// What has been compiled; begins with it where it has not.
pub(super) fn python(interpreter_directory: Option<&Path>) -> Option<&'static str> {
    if !IS_BEGUN.swap(true, Ordering::Relaxed)
        && let Some(python) = warmth::find("python3", interpreter_directory)
    {
        // Detached: it ends by itself within its deadline, and nobody waits for it.
        std::thread::spawn(move || compile(&python).map(|code| COMPILED.set(code)));
    }
    COMPILED.get().map(String::as_str)
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
        let check = "import sys, marshal, binascii; made_for, code = sys.argv[1].split('\\n'); \
                     assert made_for == repr(sys.version); \
                     modules = marshal.loads(binascii.a2b_base64(code)); \
                     print(*(code.co_filename for code in modules.values()))";
        let output = Command::new(python).args(["-I", "-S", "-c", check, &compiled]).output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "/run/ringfence/kernel.py /run/ringfence/kernel_output.py\n",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

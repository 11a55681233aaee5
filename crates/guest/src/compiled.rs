//! The Python kernel as an interpreter gets it that is started without a zygote: as its first frame, compiled by the
//! interpreter that sessions have.
//!
//! The host compiles it from the text in this program when a session first needs it, and again when the interpreter has
//! been replaced. Until then the kernel is sent as text. The interpreter is one that no guest could have written; where
//! there is none, nothing is compiled.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::language;

const PROGRAM: &str = include_str!("../kernels/compile.py");

/// What the interpreter is to do with all that comes with it.
const LOADER: (&str, &str) = ("load", include_str!("../kernels/load.py"));

/// Far more than it takes.
const DEADLINE: Duration = Duration::from_secs(10);

/// Compiled, it is about as long as its text.
const MOST_BYTES: u64 = 256 << 10;

/// A frame of the kernel's socket.
pub type KernelFrame = Arc<[u8]>;

/// Names and sources, with zeros between them.
static TEXT: LazyLock<String> = LazyLock::new(|| {
    let sources = std::iter::once(LOADER).chain(language::python_sources());
    sources.flat_map(|(name, source)| [name, source]).collect::<Vec<_>>().join("\0")
});

static TEXT_FRAME: LazyLock<KernelFrame> = LazyLock::new(|| language::framed(&[b"\n", TEXT.as_bytes()]).into());

/// The Python that the host may execute.
static INTERPRETER: Mutex<Option<PathBuf>> = Mutex::new(None);

static LATEST: Mutex<Option<Compiled>> = Mutex::new(None);

struct Compiled {
    by: Interpreter,
    /// Not there yet while it is being made, or for good if that failed.
    frame: Option<KernelFrame>,
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

/// What has been compiled, which is begun with where it has not been. An interpreter that is not the host's finds the text
/// in it.
pub fn python() -> KernelFrame {
    compiled().unwrap_or_else(|| KernelFrame::clone(&TEXT_FRAME))
}

/// Names the Python that may be executed on the host; without one nothing is compiled.
pub fn set_interpreter(python: Option<PathBuf>) {
    *INTERPRETER.lock().unwrap_or_else(PoisonError::into_inner) = python;
}

fn compiled() -> Option<KernelFrame> {
    let python = INTERPRETER.lock().unwrap_or_else(PoisonError::into_inner).clone()?;
    let by = Interpreter::look(python)?;
    let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(compiled) = &*latest
        && compiled.by == by
    {
        return compiled.frame.clone();
    }
    *latest = Some(Compiled { by: by.clone(), frame: None });
    // Detached: it ends by itself within its deadline, and nobody waits for it.
    let compiling = thread::Builder::new().spawn(move || {
        let frame = compile(&by.path).map(|code| language::framed(&[&code]).into());
        let mut latest = LATEST.lock().unwrap_or_else(PoisonError::into_inner);
        // Unless it was replaced meanwhile.
        if Interpreter::look(by.path.clone()).as_ref() == Some(&by) {
            *latest = Some(Compiled { by, frame });
        }
    });
    if compiling.is_err() {
        *latest = None;
    }
    None
}

fn compile(python: &Path) -> Option<Vec<u8>> {
    let mut process = Command::new(python)
        // Columns of tracebacks, which nobody sees, would be half of it.
        .args(["-I", "-S", "-X", "no_debug_ranges", "-c", PROGRAM])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let (mut input, output) = (process.stdin.take()?, process.stdout.take()?);
    let writer = thread::Builder::new().spawn(move || input.write_all(TEXT.as_bytes()));
    let reader = thread::Builder::new().spawn(move || {
        let mut code = Vec::new();
        output.take(MOST_BYTES + 1).read_to_end(&mut code).map(|_| code)
    });
    let deadline = Instant::now() + DEADLINE;
    while matches!(process.try_wait(), Ok(None)) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
    let _ = process.kill();
    let has_succeeded = process.wait().is_ok_and(|status| status.success());
    let was_told = writer.ok()?.join().is_ok_and(|written| written.is_ok());
    let code = reader.ok()?.join().ok()?.ok()?;
    (has_succeeded && was_told && code.len() as u64 <= MOST_BYTES).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes the frame apart as start.py would.
    const CHECK: &str = "import sys, marshal, zlib; \
        made_for, _, parts = sys.stdin.buffer.read().partition(b'\\n'); \
        assert made_for == repr(sys.version).encode(); \
        program, now, later, text = marshal.loads(parts); \
        program, now, later = marshal.loads(program), marshal.loads(now), marshal.loads(zlib.decompress(later)); \
        assert program.co_filename == '/run/ringfence/load.py'; \
        assert len(later) == 8 and all(name.startswith('mcp_bridge') for name in later); \
        assert zlib.decompress(text).count(b'\\0') == 31; \
        assert all(code.co_filename == f'/run/ringfence/{name}.py' for name, code in now.items()); \
        print(*now)";

    #[test]
    fn the_kernel_is_compiled_for_the_interpreter_that_did_it() {
        let mut directories = ringfence_core::PATH.split(':').map(|directory| Path::new(directory).join("python3"));
        let python = directories.find(|path| path.is_file()).expect("the tests need python3");
        let compiled = compile(&python).unwrap();
        let mut check = Command::new(python);
        check.args(["-I", "-S", "-c", CHECK]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut check = check.spawn().unwrap();
        check.stdin.take().unwrap().write_all(&compiled).unwrap();
        let output = check.wait_with_output().unwrap();
        assert_eq!(
            String::from_utf8_lossy(&output.stdout),
            "kernel_imports kernel_channel kernel_compile kernel_output kernel_stdio kernel_warmth kernel\n",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

//! The first frame for a Python kernel that is started without a zygote: the kernel itself, compiled.
//!
//! The host compiles the embedded sources with the interpreter of the sessions when a session first needs them, and again
//! when the interpreter has been replaced. Until that is done, and if the host has no interpreter that it may execute, the
//! frame contains the sources. The host executes only an interpreter that no guest could have written.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use ringfence_core::sync::Mutex;

use crate::protocol::encode_frame;
use crate::sources;

const PRECOMPILE_PROGRAM: &str = include_str!("../kernels/python/precompile.py");

/// The program that `bootstrap.py` executes to load the other modules.
const LOADER: (&str, &str) = ("loader", include_str!("../kernels/python/loader.py"));

/// Far more time than the compilation needs.
const COMPILE_TIMEOUT: Duration = Duration::from_secs(10);

/// Maximum size of the compiled kernel, which is a little longer than its sources.
const MAX_COMPILED_BYTES: u64 = 256 << 10;

/// A frame for a kernel's socket.
pub type KernelFrame = Arc<[u8]>;

/// Names and sources of the loader and all modules, separated by zero bytes.
static SOURCES: LazyLock<String> = LazyLock::new(|| {
    let sources = std::iter::once(&LOADER).chain(sources::python_modules());
    sources.flat_map(|(name, source)| [*name, *source]).collect::<Vec<_>>().join("\0")
});

/// The frame with an empty first line: not compiled.
static SOURCE_FRAME: LazyLock<KernelFrame> = LazyLock::new(|| encode_frame(&[b"\n", SOURCES.as_bytes()]).into());

/// The Python that the host may execute.
static INTERPRETER: Mutex<Option<PathBuf>> = Mutex::new(None);

static LATEST: Mutex<Option<Compilation>> = Mutex::new(None);

struct Compilation {
    interpreter: Interpreter,
    /// `None` while the compilation runs, and for good if it failed.
    frame: Option<KernelFrame>,
}

/// The file of an interpreter; it compares unequal once the file has been replaced.
#[derive(Clone, PartialEq, Eq)]
struct Interpreter {
    path: PathBuf,
    identity: (u64, u64, i64, i64),
}

impl Interpreter {
    fn inspect(path: PathBuf) -> Option<Self> {
        let metadata = std::fs::metadata(&path).ok()?;
        let identity = (metadata.dev(), metadata.ino(), metadata.ctime(), metadata.ctime_nsec());
        Some(Self { path, identity })
    }
}

/// Returns the first frame for a cold Python kernel, and starts the compilation if it is needed. The compiled frame
/// contains the sources too, for an interpreter in the sandbox that differs from the host's.
pub fn python_start_frame() -> KernelFrame {
    compiled_frame().unwrap_or_else(|| KernelFrame::clone(&SOURCE_FRAME))
}

/// Sets the Python that may be executed on the host; without one nothing is compiled.
pub fn set_interpreter(python: Option<PathBuf>) {
    *INTERPRETER.lock() = python;
}

fn compiled_frame() -> Option<KernelFrame> {
    let python = INTERPRETER.lock().clone()?;
    let interpreter = Interpreter::inspect(python)?;
    let mut latest = LATEST.lock();
    if let Some(compilation) = &*latest
        && compilation.interpreter == interpreter
    {
        return compilation.frame.clone();
    }
    *latest = Some(Compilation { interpreter: interpreter.clone(), frame: None });
    // Detached: the thread ends within its timeout, and no caller waits for it.
    let thread = thread::Builder::new().spawn(move || {
        let frame = compile(&interpreter.path).map(|code| encode_frame(&[&code]).into());
        let mut latest = LATEST.lock();
        // Unless the interpreter was replaced meanwhile.
        if Interpreter::inspect(interpreter.path.clone()).as_ref() == Some(&interpreter) {
            *latest = Some(Compilation { interpreter, frame });
        }
    });
    if thread.is_err() {
        *latest = None;
    }
    None
}

fn compile(python: &Path) -> Option<Vec<u8>> {
    let mut process = Command::new(python)
        // Tracebacks leave out the kernel's frames, and column positions would double the size.
        .args(["-I", "-S", "-X", "no_debug_ranges", "-c", PRECOMPILE_PROGRAM])
        .env_clear()
        .current_dir("/")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .ok()?;
    let (mut input, output) = (process.stdin.take()?, process.stdout.take()?);
    let writer = thread::Builder::new().spawn(move || input.write_all(SOURCES.as_bytes()));
    let reader = thread::Builder::new().spawn(move || {
        let mut code = Vec::new();
        output.take(MAX_COMPILED_BYTES + 1).read_to_end(&mut code).map(|_| code)
    });
    let deadline = Instant::now() + COMPILE_TIMEOUT;
    while matches!(process.try_wait(), Ok(None)) && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(2));
    }
    let _ = process.kill();
    let has_succeeded = process.wait().is_ok_and(|status| status.success());
    let has_read_sources = writer.ok()?.join().is_ok_and(|written| written.is_ok());
    let code = reader.ok()?.join().ok()?.ok()?;
    (has_succeeded && has_read_sources && code.len() as u64 <= MAX_COMPILED_BYTES).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses the frame as bootstrap.py and loader.py do.
    const CHECK: &str = "import sys, marshal, zlib; \
        version, _, parts = sys.stdin.buffer.read().partition(b'\\n'); \
        assert version == repr(sys.version).encode(); \
        loader, kernel, bridge, sources = marshal.loads(parts); \
        loader, kernel, bridge = marshal.loads(loader), marshal.loads(kernel), marshal.loads(zlib.decompress(bridge)); \
        assert loader.co_filename == '/run/ringfence/loader.py'; \
        assert len(bridge) == 8 and all(name.startswith('mcp_bridge') for name in bridge); \
        assert zlib.decompress(sources).count(b'\\0') == 41; \
        assert all(code.co_filename == f'/run/ringfence/{name}.py' for name, code in kernel.items()); \
        print(*kernel)";

    #[test]
    fn kernel_is_compiled_for_the_interpreter_that_compiles_it() {
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
            "kernel_imports kernel_paths kernel_missing kernel_channel kernel_cells kernel_traceback kernel_output kernel_display kernel_stdio kernel_fork kernel_background kernel\n",
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

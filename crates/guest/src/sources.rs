//! The source files of the kernels, embedded in this program, and the commands that start them.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use ringfence_core::Language;

/// Directory of the kernel files inside a session.
const DIRECTORY: &str = "/run/ringfence";

/// The descriptor that a kernel gets for its control channel.
const CONTROL_FD: &str = "3";

const BASH_KERNEL: &str =
    "exec bash --noprofile --rcfile /run/ringfence/kernel.sh --noediting -i <&3 3<&- 252>&2 2<>/dev/null";

/// Starts the Python kernel where no zygote does: reads the first frame and executes the loader in it.
const PYTHON_BOOTSTRAP: &str = include_str!("../kernels/python/bootstrap.py");

/// Program of the warm interpreter on the host from which Python sessions are forked.
pub const ZYGOTE_PROGRAM: &str = include_str!("../kernels/python/zygote.py");

/// The modules of the Python kernel in load order: each imports only modules before it.
const PYTHON_MODULES: [(&str, &str); 20] = [
    ("kernel_imports", include_str!("../kernels/python/kernel_imports.py")),
    ("kernel_paths", include_str!("../kernels/python/kernel_paths.py")),
    ("kernel_missing", include_str!("../kernels/python/kernel_missing.py")),
    ("kernel_channel", include_str!("../kernels/python/kernel_channel.py")),
    ("kernel_cells", include_str!("../kernels/python/kernel_cells.py")),
    ("kernel_traceback", include_str!("../kernels/python/kernel_traceback.py")),
    ("kernel_output", include_str!("../kernels/python/kernel_output.py")),
    ("kernel_display", include_str!("../kernels/python/kernel_display.py")),
    ("kernel_stdio", include_str!("../kernels/python/kernel_stdio.py")),
    ("kernel_fork", include_str!("../kernels/python/kernel_fork.py")),
    ("kernel_background", include_str!("../kernels/python/kernel_background.py")),
    ("kernel", include_str!("../kernels/python/kernel.py")),
    ("mcp_bridge_calls", include_str!("../kernels/python/mcp_bridge_calls.py")),
    ("mcp_bridge_results", include_str!("../kernels/python/mcp_bridge_results.py")),
    ("mcp_bridge_functions", include_str!("../kernels/python/mcp_bridge_functions.py")),
    ("mcp_bridge_servers", include_str!("../kernels/python/mcp_bridge_servers.py")),
    ("mcp_bridge_source", include_str!("../kernels/python/mcp_bridge_source.py")),
    ("mcp_bridge_saved", include_str!("../kernels/python/mcp_bridge_saved.py")),
    ("mcp_bridge_runtime", include_str!("../kernels/python/mcp_bridge_runtime.py")),
    ("mcp_bridge", include_str!("../kernels/python/mcp_bridge.py")),
];

const NODE_FILES: &[(&str, &str)] = &[
    ("kernel.mjs", include_str!("../kernels/javascript/kernel.mjs")),
    ("kernel_controller.mjs", include_str!("../kernels/javascript/kernel_controller.mjs")),
    ("kernel_modules.mjs", include_str!("../kernels/javascript/kernel_modules.mjs")),
    ("kernel_output.mjs", include_str!("../kernels/javascript/kernel_output.mjs")),
    ("kernel_sigint.mjs", include_str!("../kernels/javascript/kernel_sigint.mjs")),
    ("kernel_source.mjs", include_str!("../kernels/javascript/kernel_source.mjs")),
    ("mcp_bridge.mjs", include_str!("../kernels/javascript/mcp_bridge.mjs")),
    ("mcp_discovery.mjs", include_str!("../kernels/javascript/mcp_discovery.mjs")),
    ("mcp_global.mjs", include_str!("../kernels/javascript/mcp_global.mjs")),
    ("mcp_results.mjs", include_str!("../kernels/javascript/mcp_results.mjs")),
    ("mcp_saved.mjs", include_str!("../kernels/javascript/mcp_saved.mjs")),
    ("mcp_servers.mjs", include_str!("../kernels/javascript/mcp_servers.mjs")),
];

const BASH_FILES: &[(&str, &str)] =
    &[("cell.sh", include_str!("../kernels/bash/cell.sh")), ("kernel.sh", include_str!("../kernels/bash/kernel.sh"))];

/// Returns the files that a session needs for its kernel, by path. Python needs none: its kernel comes over its socket.
pub fn kernel_files(language: Language) -> BTreeMap<PathBuf, String> {
    let files = match language {
        Language::Python => &[],
        Language::Node => NODE_FILES,
        Language::Bash => BASH_FILES,
    };
    files.iter().map(|(name, text)| (PathBuf::from(DIRECTORY).join(name), (*text).to_owned())).collect()
}

/// The file of `pip` in a session, with its text. It is the program and the module.
pub const PIP: (&str, &str) = ("/run/ringfence/pip.py", include_str!("../kernels/python/pip.py"));

/// Returns names and sources of the Python kernel's modules in load order.
pub fn python_modules() -> &'static [(&'static str, &'static str)] {
    &PYTHON_MODULES
}

/// Returns the command that starts the kernel of a language.
pub fn start_command(language: Language) -> Vec<OsString> {
    let arguments: &[&str] = match language {
        Language::Python => &["python3", "-I", "-S", "-c", PYTHON_BOOTSTRAP, CONTROL_FD],
        Language::Node => &["node", "/run/ringfence/kernel.mjs", CONTROL_FD],
        Language::Bash => &["bash", "--norc", "--noprofile", "-c", BASH_KERNEL],
    };
    arguments.iter().map(Into::into).collect()
}

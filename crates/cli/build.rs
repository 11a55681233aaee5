//! Makes the program start fast: links it statically and at a fixed address.
//!
//! A position-independent program of this size has tens of thousands of relocations: the dynamic linker writes to
//! 150 pages before `main`, and every process of a sandbox copies and frees them. Loading the shared libraries takes
//! another half of a millisecond. See docs/decisions/0013-static-program.md.

use std::path::Path;
use std::process::Command;

/// If it is set, the C library is linked dynamically, for hosts that need its name service modules.
const SHARED_VARIABLE: &str = "RINGFENCE_SHARED_LIBC";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed={SHARED_VARIABLE}");
    let target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    let is_static = target("FEATURE").split(',').any(|feature| feature == "crt-static");
    if target("OS") == "linux" && target("ENV") == "gnu" && !is_static {
        println!("cargo:rustc-link-arg-bin=ringfence=-no-pie");
        if std::env::var_os(SHARED_VARIABLE).is_none() {
            link_statically();
        }
    }
}

/// Links the program statically, if the C compiler has the static libraries (on Fedora, package glibc-static).
///
/// `target-feature=+crt-static` would also apply to build scripts and procedural macros, so linker scripts with the
/// names of the shared libraries are put before these in the search path.
fn link_statically() {
    let Some(directory) = std::env::var_os("OUT_DIR") else { return };
    let directory = Path::new(&directory);
    let names = ["libc.a", "libm.a", "libgcc_eh.a", "libgcc.a"];
    let [Some(c), Some(m), Some(unwinder), Some(gcc)] = names.map(static_library) else { return };
    let c = format!("GROUP({c} {unwinder} {gcc})\n");
    let scripts = [("libgcc_s.so", &c), ("libc.so", &c), ("libm.so", &format!("INPUT({m})\n"))];
    for (name, text) in scripts {
        if std::fs::write(directory.join(name), text).is_err() {
            return;
        }
    }
    println!("cargo:rustc-link-arg-bin=ringfence=-static");
    // An argument of this program alone: `rustc-link-search` would apply to the tests too, which are not linked with
    // `-static` and would crash before `main`.
    println!("cargo:rustc-link-arg-bin=ringfence=-L{}", directory.display());
}

/// Returns the path of a static library of the C compiler, if it has it.
fn static_library(name: &str) -> Option<String> {
    // Another target has another compiler.
    if std::env::var("HOST") != std::env::var("TARGET") {
        return None;
    }
    let output = Command::new("cc").arg(format!("-print-file-name={name}")).output().ok()?;
    let path = String::from_utf8(output.stdout).ok()?;
    // The compiler prints the name alone if it does not find the file.
    let path = path.trim();
    (path.contains('/') && Path::new(path).exists()).then(|| path.to_owned())
}

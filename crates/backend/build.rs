//! Builds the sandbox crate once more, as the shared library that zygotes load.
#![allow(clippy::print_stdout)] // it is how a build script talks to cargo

use std::env;
use std::path::PathBuf;
use std::process::Command;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sandbox = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("../sandbox");
    for part in ["src", "build", "profiles", "Cargo.toml", "../core/src", "../core/Cargo.toml"] {
        println!("cargo::rerun-if-changed={}", sandbox.join(part).display());
    }
    let output = PathBuf::from(env::var("OUT_DIR")?);
    let target = env::var("TARGET")?;
    // Always optimised: a slow zygote would make every session slow. In a directory of its own, since cargo holds the
    // lock of the other one while this runs; beside those of the profiles, which share it.
    let directory = output.ancestors().nth(4).ok_or("OUT_DIR is not where cargo puts it")?.join("zygote");
    let mut command = Command::new(env::var("CARGO")?);
    command
        .args(["rustc", "--release", "--lib", "--crate-type", "cdylib", "--frozen", "--quiet", "--target", &target])
        .arg("--manifest-path")
        .arg(sandbox.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&directory);
    // Meant for the build that this is a part of: clippy's wrapper checks, and makes no library.
    for variable in ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "CARGO_ENCODED_RUSTFLAGS", "RUSTFLAGS", "CLIPPY_ARGS"]
    {
        command.env_remove(variable);
    }
    if !command.status()?.success() {
        return Err("the zygote's library could not be built".into());
    }
    let built = directory.join(&target).join("release/libringfence_sandbox.so");
    let library = output.join("zygote.so");
    std::fs::copy(built, &library)?;
    println!("cargo::rustc-env=RINGFENCE_ZYGOTE_LIBRARY={}", library.display());
    Ok(())
}

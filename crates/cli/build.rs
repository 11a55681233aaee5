//! Links the program at a fixed address.
//!
//! A position-independent program of this size has tens of thousands of relocations: the dynamic linker writes to
//! 150 pages before `main`, and every process of a sandbox copies and frees them. See docs/decisions/0013-fixed-address.md.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let target = |key: &str| std::env::var(format!("CARGO_CFG_TARGET_{key}")).unwrap_or_default();
    let is_static = target("FEATURE").split(',').any(|feature| feature == "crt-static");
    if target("OS") == "linux" && target("ENV") == "gnu" && !is_static {
        println!("cargo:rustc-link-arg-bin=ringfence=-no-pie");
    }
}

//! Compresses the tool data of the `search` and `tokens` benchmarks to a sixth of its size, to be embedded.

#![allow(clippy::print_stdout)] // cargo reads instructions from standard output

use std::path::Path;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

const DATA: &str = "../../tests/data/tools.json";

fn main() {
    println!("cargo::rerun-if-changed={DATA}");
    let text = std::fs::read(DATA).unwrap_or_else(|error| panic!("cannot read {DATA}: {error}"));
    let directory = std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR");
    let compressed = compress_to_vec(&text[..], CompressionLevel::Fastest);
    std::fs::write(Path::new(&directory).join("tools.json.zst"), compressed).expect("OUT_DIR is writable");
}

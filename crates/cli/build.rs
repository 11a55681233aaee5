//! Packs the data of `ringfence bench search` and `ringfence bench tokens`, which is a sixth of its size that way.

#![allow(clippy::print_stdout)] // it is how a build script talks to cargo

use std::path::Path;

use ruzstd::encoding::{CompressionLevel, compress_to_vec};

const DATA: &str = "../../tests/data/tools.json";

fn main() {
    println!("cargo::rerun-if-changed={DATA}");
    let text = std::fs::read(DATA).unwrap_or_else(|error| panic!("{DATA} cannot be read: {error}"));
    let directory = std::env::var_os("OUT_DIR").expect("cargo says where to put it");
    let packed = compress_to_vec(&text[..], CompressionLevel::Fastest);
    std::fs::write(Path::new(&directory).join("tools.json.zst"), packed).expect("it can be written");
}

//! Built beside the fuzz targets by `scripts/fuzz`: because of a test target, cargo chooses the features of a test
//! build, and takes dependencies from `cargo test` instead of compiling them again.

fn main() {}

//! An empty test target that `scripts/fuzz` builds with the fuzz targets: it makes cargo select the features of a test
//! build, so that dependencies are reused from `cargo test` instead of being compiled again.

fn main() {}

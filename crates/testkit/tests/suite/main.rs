//! What tests of other crates rely on. That these are here also makes `cargo test --workspace` build the fixture
//! server, which those tests may start.

mod bad_server;
mod fixture;
mod talk;

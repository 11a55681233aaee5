//! Tests of the fixtures on which tests of other crates rely. They also make `cargo test --workspace` build the
//! conformance server, which those tests may start.

mod bad_server;
mod conformance_server;
mod stdio_client;

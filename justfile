# The usual commands. `just` lists them.

_list:
    @just --list --unsorted

# Build the program.
build:
    cargo build

# Serve MCP at http://127.0.0.1:8000/mcp.
serve *ARGS:
    cargo run --release -- serve {{ARGS}}

# Run all tests, or some suites: `just test lint unit`.
test *SUITES:
    scripts/test {{SUITES}}

# Run the unit tests of one crate: `just unit store`.
unit CRATE:
    cargo test -p {{ if CRATE == "cli" { "ringfence" } else { "ringfence-" + CRATE } }} --lib

# Run integration tests by name: `just suite rest::`.
suite FILTER:
    cargo test -p ringfence --test suite -- {{FILTER}}

# Format the Rust code.
format:
    cargo fmt --all

# Check format, clippy, architecture, documents and dependencies.
lint:
    scripts/test format lint deny

# Build the documentation of all crates, and open it.
doc:
    cargo doc --workspace --no-deps --document-private-items --open

# Run fuzz targets: `just fuzz 60 tar_layers`.
fuzz SECONDS="10" *TARGETS:
    scripts/fuzz {{SECONDS}} {{TARGETS}}

# Measure, compared with other programs.
bench *ARGS:
    cargo build --release -p ringfence -p ringfence-bench
    target/release/ringfence bench {{ARGS}}

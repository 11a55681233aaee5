//! Fuzz targets for everything that reads hostile input. See `docs/testing.md`.
//!
//! The entry points and their assertions are in the `fuzzing` modules of the crates, which exist only with
//! `cfg(fuzzing)`: `cargo fuzz` and `scripts/fuzz` set it.

#[cfg(fuzzing)]
pub use libfuzzer_sys;

/// Defines the fuzz target for an entry point, or an empty `main` without `cfg(fuzzing)`.
#[macro_export]
macro_rules! target {
    ($entry:path) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| $entry(data));

        #[cfg(not(fuzzing))]
        fn main() {}
    };
}

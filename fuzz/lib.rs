//! Fuzz targets for everything that reads hostile input. See `docs/testing.md`.
//!
//! The entry points, with what must hold of their results, are in the modules `fuzzing` of the crates; they exist only
//! where `cfg(fuzzing)` is set, by `cargo fuzz` or by `scripts/fuzz`.

#[cfg(fuzzing)]
pub use libfuzzer_sys;

/// Makes a program of an entry point, or one that does nothing where `cfg(fuzzing)` is not set.
#[macro_export]
macro_rules! target {
    ($entry:path) => {
        #[cfg(fuzzing)]
        $crate::libfuzzer_sys::fuzz_target!(|data: &[u8]| $entry(data));

        #[cfg(not(fuzzing))]
        fn main() {}
    };
}

//! Starts this program again in another role: as a launcher or as a worker.

/// The program that runs. Its path may name another file by now, for example after an upgrade, and may be inside a
/// volume that a guest writes: a file that the host replaces there loses its protection in running sandboxes.
pub(crate) const SELF_EXE: &str = "/proc/self/exe";

/// Restores the name in process listings: the kernel sets it to `exe`, the last part of [`SELF_EXE`].
pub(crate) fn set_process_name() {
    let _ = rustix::thread::set_name(c"ringfence");
}

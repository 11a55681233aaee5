//! Starts this program again in another role: as a launcher or as a worker.

/// The image that runs, whatever file its path names by now. The path may be inside a volume that a guest writes, and a
/// file that the host replaces there loses its protection in running sandboxes.
pub(crate) const OWN_PROGRAM: &str = "/proc/self/exe";

/// Restores the name in process listings: the kernel sets it to `exe`, the last part of [`OWN_PROGRAM`].
pub(crate) fn set_process_name() {
    let _ = rustix::thread::set_name(c"ringfence");
}

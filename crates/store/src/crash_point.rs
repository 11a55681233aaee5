//! Points at which tests kill the process, to prove that an interrupted backup or recovery loses nothing.

#[cfg(not(test))]
pub(crate) fn crash_point(_name: &str) {}

/// Variable that names the point at which a child process of a test kills itself.
#[cfg(test)]
pub(crate) const CRASH_AT: &str = "RINGFENCE_TEST_CRASH_AT";

#[cfg(test)]
pub(crate) fn crash_point(name: &str) {
    if std::env::var_os(CRASH_AT).is_some_and(|wanted| wanted == name) {
        let _ = rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::KILL);
    }
}

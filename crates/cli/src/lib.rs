//! `ringfence up` as a library: a supervised MCP endpoint for Rust programs that embed it.
//!
//! The program `ringfence` serves in a separate process. This library replaces that process if it dies or hangs, behind
//! an endpoint that never changes and never refuses a connection. Sessions keep their variables when the process is
//! replaced. A call that was in progress fails with an error which says that it may have run: repeat only calls that may
//! run twice.
//!
//! ```no_run
//! use ringfence::{Health, Options, StartError, Supervisor};
//!
//! fn main() -> Result<(), StartError> {
//!     let supervisor = Supervisor::start(Options {
//!         expected_tools: vec!["execute_code".into()],
//!         ..Options::new("ringfence")
//!     })?;
//!     // The endpoint that agents use.
//!     assert!(supervisor.endpoint().starts_with("http://127.0.0.1:"));
//!     // All methods may be called from any thread.
//!     std::thread::scope(|scope| {
//!         scope.spawn(|| assert_eq!(supervisor.health(), Health::Healthy));
//!         scope.spawn(|| assert_eq!(supervisor.restart_count(), 0));
//!     });
//!     supervisor.stop();
//!     Ok(())
//! }
//! ```

pub use ringfence_supervisor::{
    Ending, GaveUp, Health, Listen, Options, Reason, StartError, Status, Supervisor, TokenSource, WorkerLog,
};

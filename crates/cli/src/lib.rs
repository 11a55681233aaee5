//! An MCP endpoint that stays up, for Rust programs that embed it: `ringfence up` as a library.
//!
//! The program `ringfence` does the serving, in a process of its own; this library keeps it alive behind an endpoint
//! that never changes and never refuses a connection. Sessions keep their variables when the process is replaced. A
//! call that was under way is answered with an error that says that it may have run: ask again only what may run twice.
//!
//! ```no_run
//! use ringfence::{Health, Options, StartError, Supervisor};
//!
//! fn main() -> Result<(), StartError> {
//!     let supervisor = Supervisor::start(Options {
//!         expected_tools: vec!["execute_code".into()],
//!         ..Options::new("ringfence")
//!     })?;
//!     // Give this to an agent.
//!     assert!(supervisor.endpoint().starts_with("http://127.0.0.1:"));
//!     // All of it works from any thread.
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

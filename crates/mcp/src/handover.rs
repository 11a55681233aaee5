//! Lets connections outlive the process that serves them.
//!
//! A supervisor accepts connections and passes each to its worker over a `channel`. It keeps a descriptor of each
//! connection, and reads nothing from it. For every connection the worker keeps a record in shared memory
//! (`crash_replies`) that says what to do if the worker dies: pass the connection to the next worker if no request is
//! unanswered, else send the client a reply that the worker has prepared.

mod channel;
mod crash_replies;
mod worker_end;

pub use channel::{Channel, Report, pair};
pub use crash_replies::{CrashAction, CrashReplies, CrashReply, MAX_REPLY_BYTES};
pub use worker_end::{CrashReplySlot, HandedConnections, WorkerSetup};

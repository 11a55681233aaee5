//! How connections outlive the process that serves them.
//!
//! A supervisor accepts them and hands each to its worker, over a `channel` between the two; it keeps a descriptor of
//! each too, and reads nothing of what is said on it. For every connection the worker leaves word what is to become of it
//! without it, in memory that both share (`crash_replies`): to go on with the next worker, where nothing was asked, or to be told
//! that the worker was lost, in words that the worker has chosen. When it dies, its supervisor does as the wills say.

mod channel;
mod crash_replies;
mod handed;

pub use channel::{Channel, Report, pair};
pub use crash_replies::{Fate, LONGEST_WORDS, Will, Wills};
pub use handed::{Handed, Hello, Place};

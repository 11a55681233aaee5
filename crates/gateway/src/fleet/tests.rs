//! A fleet of scripted servers, on paused time.

mod edits;
mod ends;
mod failures;
mod fake;
mod links;

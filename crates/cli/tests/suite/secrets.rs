//! Secrets: programs in sandboxes use an API that demands a token, but have only placeholders.

mod adoption;
mod api;
mod clients;
mod elsewhere;
mod hosted;
mod memory;
mod search;
mod stored;

//! The wire protocol between the host and a kernel, over a Unix stream socket.
//!
//! | kernel     | host → kernel                                                | kernel → host              |
//! |------------|--------------------------------------------------------------|----------------------------|
//! | Python     | frames: 8-byte number, then code or JSON                     | frames: JSON with `type`   |
//! | JavaScript | frames: JSON with `type` `execute`, `preface` or `answer`    | frames: JSON with `type`   |
//! | bash       | a line `ID LENGTH`, then that many bytes of code             | lines `ID STATUS`          |
//!
//! A frame is a 4-byte big-endian length and that many bytes. A kernel sends `ready` once, any number of `display`,
//! `call` and `cancel` for a cell, then `done`. A preface is a JSON object that lists what the following cells may
//! call. In the number of a Python frame, the highest bit marks the response to a call, the second highest a preface,
//! and the third highest the names of modules to import.
//!
//! Messages that are malformed or name another cell are ignored up to a limit. An `Err` means that the kernel's stream
//! is unusable.

mod decode;
mod encode;
mod message;

pub use decode::{next_message, skip_past_done};
pub use encode::{
    encode_cell, encode_frame, encode_preface, encode_preload, encode_response, encode_rich_cell, noop_code,
};
pub use message::{CellError, Done, Message};

#[cfg(test)]
mod tests;

//! Connections to peers that behave, and to peers that do not.

mod eras;
mod hostile;
mod lines;
mod peer;

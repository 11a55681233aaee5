//! The peers: programs that the benchmark compares ringfence with.

pub(crate) mod echo_http;
pub(crate) mod echo_stdio;
mod podman;
mod programs;
mod proxies;
pub(crate) mod web;

pub(crate) use podman::RootDirectory;
pub(crate) use programs::{bubblewrap, command_line, program, time_to_first_output};
pub(crate) use proxies::Proxy;

//! Everything that is tested with the program as a person would start it.

mod bad_input;
mod cleanup;
mod clients;
mod conformance;
mod doctor;
mod escape;
mod everyone;
mod help;
mod mcp_server;
mod network;
mod protocol_attacks;
mod run;
mod serve;
mod sessions;

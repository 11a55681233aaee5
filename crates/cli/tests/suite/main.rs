//! Everything that is tested with the program as a person would start it.

mod bad_input;
mod bench;
mod cleanup;
mod config;
mod doctor;
mod escape;
mod everyone;
mod files;
mod help;
mod limits;
mod mcp_server;
mod network;
mod rest;
mod run;
mod serve;
mod server;
mod session_commands;
mod sessions;

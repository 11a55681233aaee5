//! Everything that is tested with the program as a person would start it.

mod audit;
mod bad_input;
mod cleanup;
mod config;
mod doctor;
mod escape;
mod everyone;
mod files;
mod help;
mod leases;
mod limits;
mod mcp_server;
mod network;
mod outputs;
mod rest;
mod run;
mod serve;
mod server;
mod session_commands;
mod sessions;

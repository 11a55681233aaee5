//! Everything that is tested with the program as a person would start it.

mod audit;
mod bad_input;
mod bench;
mod cleanup;
mod clients;
mod config;
mod conformance;
mod doctor;
mod escape;
mod everyone;
mod faults;
mod files;
mod help;
mod leases;
mod limits;
mod mcp_server;
mod network;
mod outputs;
mod protocol_attacks;
mod rest;
mod run;
mod serve;
mod server;
mod session_commands;
mod sessions;
mod warm;

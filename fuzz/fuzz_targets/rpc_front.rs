#![cfg_attr(fuzzing, no_main)]

ringfence_fuzz::target!(ringfence_mcp::fuzzing::rpc_front);

#![cfg_attr(fuzzing, no_main)]

ringfence_fuzz::target!(ringfence_gateway::rpc_front);

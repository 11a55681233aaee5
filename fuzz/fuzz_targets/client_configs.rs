#![cfg_attr(fuzzing, no_main)]

ringfence_fuzz::target!(ringfence_servers::fuzzing::client_configs);

#![cfg_attr(fuzzing, no_main)]

ringfence_fuzz::target!(ringfence_egress::fuzzing::egress_dns);

#![cfg_attr(fuzzing, no_main)]

ringfence_fuzz::target!(ringfence_runtime::fuzzing::kernel_messages);

#![cfg_attr(fuzzing, no_main)]

ringfence_fuzz::target!(ringfence_session::fuzzing::kernel_messages);

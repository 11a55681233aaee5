#![cfg_attr(fuzzing, no_main)]

ringfence_fuzz::target!(ringfence_sandbox::fuzzing::init_frames);

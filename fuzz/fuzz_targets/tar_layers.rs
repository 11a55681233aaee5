#![cfg_attr(fuzzing, no_main)]

ringfence_fuzz::target!(ringfence_images::fuzzing::tar_layers);

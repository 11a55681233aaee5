//! Converts `[code]`.

use crate::configuration::CodeSettings;
use crate::document::{CodeConfig, Count, Seconds};

pub(super) fn resolve(config: &CodeConfig) -> CodeSettings {
    let default = CodeSettings::default();
    CodeSettings {
        timeout: config.timeout_s.map_or(default.timeout, Seconds::duration),
        max_timeout: config.max_timeout_s.map_or(default.max_timeout, Seconds::duration),
        memory_bytes: config.memory.map_or(default.memory_bytes, |size| size.0),
        pids: config.pids.unwrap_or(default.pids),
        cpus: config.cpus.unwrap_or(default.cpus),
        template: config.template.clone().unwrap_or(default.template),
        output_mode: config.output_mode.unwrap_or(default.output_mode),
        calls_per_server: config.calls_per_server.map_or(default.calls_per_server, Count::get),
        call_timeout: config.call_timeout_s.map_or(default.call_timeout, Seconds::duration),
    }
}

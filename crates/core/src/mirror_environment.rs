//! The environment variables that make package managers use the mirror of a sandbox.

use crate::spec::MIRROR_PORT;

/// The variables that make pip, uv, npm, pnpm, yarn and bun install from the package mirror, without any file in the
/// workspace. They replace the indexes and registries that a template sets.
pub fn mirror_environment() -> impl Iterator<Item = (String, String)> {
    let python = format!("http://127.0.0.1:{MIRROR_PORT}/pypi/simple/");
    let npm = format!("http://127.0.0.1:{MIRROR_PORT}/npm/");
    let off = || "false".to_owned();
    let direct = || "localhost,127.0.0.1,::1".to_owned();
    [
        // pip accepts HTTP without TLS for addresses of loopback.
        ("PIP_INDEX_URL", python.clone()),
        ("PIP_DISABLE_PIP_VERSION_CHECK", "1".to_owned()),
        // The mirror checks a file before it sends the end, or any range of it.
        ("PIP_DEFAULT_TIMEOUT", "120".to_owned()),
        ("UV_HTTP_TIMEOUT", "300".to_owned()),
        ("UV_DEFAULT_INDEX", python.clone()),
        // For versions of uv before 0.4.23.
        ("UV_INDEX_URL", python),
        // npm, bun, yarn 1 and pnpm.
        ("npm_config_registry", npm.clone()),
        // pnpm 11 does not read the variables of npm.
        ("pnpm_config_registry", npm.clone()),
        // The mirror has no audit, and no newer npm can be announced.
        ("npm_config_audit", off()),
        ("npm_config_fund", off()),
        ("npm_config_update_notifier", off()),
        ("YARN_NPM_REGISTRY_SERVER", npm.trim_end_matches('/').to_owned()),
        ("YARN_UNSAFE_HTTP_WHITELIST", "127.0.0.1".to_owned()),
        ("YARN_ENABLE_TELEMETRY", off()),
        ("NO_PROXY", direct()),
        ("no_proxy", direct()),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::proxy_environment;

    #[test]
    fn mirror_is_not_reached_through_the_proxy() {
        let proxy: BTreeMap<String, String> = proxy_environment().collect();
        let mirror: BTreeMap<String, String> = mirror_environment().collect();
        for name in ["NO_PROXY", "no_proxy"] {
            assert_eq!(proxy[name], mirror[name], "one set of variables must not change the other");
            assert!(mirror[name].split(',').any(|host| host == "127.0.0.1"));
        }
        assert_eq!(mirror["PIP_INDEX_URL"], "http://127.0.0.1:3129/pypi/simple/");
        assert_eq!(mirror["npm_config_registry"], "http://127.0.0.1:3129/npm/");
    }
}

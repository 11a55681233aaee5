//! Landlock rules: a second restriction of file access, independent of the mounts.
//!
//! A rule refers to an inode, so rules are made after the last mount.

use std::error::Error;
use std::path::{Path, PathBuf};

use ::landlock::{
    ABI, Access as _, AccessFs, CompatLevel, Compatible, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetStatus, Scope,
};

/// Allows this process to read and execute everything in its root, and to write only beneath `writable` and the fixed
/// writable directories.
///
/// From ABI 6 on, processes outside of the sandbox cannot be signalled or reached by abstract sockets either.
pub(crate) fn restrict_files(abi: u32, writable: &[PathBuf]) -> Result<(), Box<dyn Error>> {
    let abi = match abi {
        1 => ABI::V1,
        2 => ABI::V2,
        3 => ABI::V3,
        4 => ABI::V4,
        5 => ABI::V5,
        _ => ABI::V6,
    };
    let mut ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        .handle_access(AccessFs::from_all(abi))?
        .scope(Scope::from_all(abi))?
        .create()?
        .add_rule(PathBeneath::new(PathFd::new("/")?, AccessFs::from_read(abi)))?;
    let devices =
        (AccessFs::WriteFile | AccessFs::ReadFile | AccessFs::IoctlDev | AccessFs::Truncate) & AccessFs::from_all(abi);
    ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new("/dev")?, devices))?;
    // No device nodes anywhere, although mknod already needs a capability.
    let everything = AccessFs::from_all(abi) & !(AccessFs::MakeBlock | AccessFs::MakeChar);
    let fixed = ["/workspace", "/tmp", "/dev/shm"].map(Path::new);
    for path in fixed.into_iter().chain(writable.iter().map(PathBuf::as_path)) {
        let allowed = if path.is_dir() { everything } else { everything & AccessFs::from_file(abi) };
        ruleset = ruleset.add_rule(PathBeneath::new(PathFd::new(path)?, allowed))?;
    }
    let status = ruleset.restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err("the kernel does not enforce the rules".into());
    }
    Ok(())
}

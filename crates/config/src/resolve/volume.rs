//! Parses volumes.

use std::path::PathBuf;

use ringfence_core::{Access, Volume};

/// Parses `HOST:GUEST[:ro|rw]`.
pub fn parse_volume(text: &str) -> Result<Volume, String> {
    let invalid = || format!("`{text}` is not a volume; write HOST:GUEST[:ro|rw]");
    let mut parts = text.split(':');
    let (host, guest) = parts.next().zip(parts.next()).ok_or_else(invalid)?;
    if host.is_empty() || guest.is_empty() {
        return Err(invalid());
    }
    let access = match (parts.next(), parts.next()) {
        (None | Some("ro"), None) => Access::ReadOnly,
        (Some("rw"), None) => Access::ReadWrite,
        _ => return Err(invalid()),
    };
    Ok(Volume { host: PathBuf::from(host), guest: PathBuf::from(guest), access, allowed_root: None })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volumes_are_read_only_by_default() {
        let access = |text: &str| parse_volume(text).map(|volume| volume.access);
        assert_eq!(access("/a:/b"), Ok(Access::ReadOnly));
        assert_eq!(access("/a:/b:ro"), Ok(Access::ReadOnly));
        assert_eq!(access("/a:/b:rw"), Ok(Access::ReadWrite));
        for bad in ["", "/a", "/a:", ":/b", "/a:/b:rx", "/a:/b:rw:rw"] {
            assert!(access(bad).is_err(), "{bad}");
        }
    }
}

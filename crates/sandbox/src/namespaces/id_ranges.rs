//! Ranges of host ids for sandboxes.

use std::fs;
use std::io::ErrorKind;

use rustix::process::{Pid, geteuid};

/// Host ids from which each sandbox gets one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IdRange {
    first: u32,
    count: u32,
}

/// A range that neither users, systemd's dynamic users nor its containers use
/// (systemd's UIDS-GIDS document, "1879048192…2147352575: unused").
const RESERVED: IdRange = IdRange { first: 0x7800_0000, count: 1 << 22 };

impl IdRange {
    /// Returns the id for a process. Two running processes have different ids if the range is larger than the range of
    /// process ids.
    pub(super) fn pick(self, pid: Pid) -> u32 {
        self.first + pid.as_raw_nonzero().get().cast_unsigned() % self.count
    }

    fn contains(self, other: Self) -> bool {
        self.first <= other.first && self.first.saturating_add(self.count) >= other.first + other.count
    }

    /// Returns the range for root: the reserved range, or a part of the ids that the user namespace of a container has.
    /// `map` is the path of a `uid_map` or `gid_map`. `None` if there are too few ids.
    pub(super) fn for_root(map: &str) -> std::io::Result<Option<Self>> {
        Ok(read_if_accessible(map)?.and_then(|text| choose_mapped(&text)))
    }

    /// Returns the subordinate ids of this user in `file`, `/etc/subuid` or `/etc/subgid`.
    pub(super) fn subordinate(file: &str) -> std::io::Result<Option<Self>> {
        let uid = geteuid().as_raw().to_string();
        let passwd = read_if_accessible("/etc/passwd")?.unwrap_or_default();
        let name = passwd.lines().find_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next()?;
            (fields.nth(1)? == uid).then(|| name.to_owned())
        });
        Ok(read_if_accessible(file)?.and_then(|text| parse_subordinate(&text, &uid, name.as_deref())))
    }
}

/// Reads a file; `None` if it does not exist or this user may not read it.
fn read_if_accessible(path: &str) -> std::io::Result<Option<String>> {
    match fs::read_to_string(path) {
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::PermissionDenied) => Ok(None),
        read => read.map(Some),
    }
}

fn choose_mapped(map: &str) -> Option<IdRange> {
    /// With fewer ids, two sandboxes would soon share one.
    const MIN_IDS: u32 = 1024;
    let parse = |line: &str| {
        let mut fields = line.split_whitespace().map(str::parse::<u32>);
        let first = fields.next()?.ok()?;
        Some(IdRange { first, count: fields.nth(1)?.ok()? })
    };
    let ranges: Vec<IdRange> = map.lines().filter_map(parse).collect();
    if ranges.iter().any(|range| range.contains(RESERVED)) {
        return Some(RESERVED);
    }
    // The upper half, because accounts of the container have low ids.
    let largest = ranges.into_iter().max_by_key(|range| range.count)?;
    let half = largest.count / 2;
    (half >= MIN_IDS).then(|| IdRange { first: largest.first + half, count: half })
}

fn parse_subordinate(text: &str, uid: &str, name: Option<&str>) -> Option<IdRange> {
    text.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let owner = fields.next()?;
        let first = fields.next()?.parse().ok()?;
        let count = fields.next()?.parse().ok().filter(|count| *count > 0)?;
        (owner == uid || Some(owner) == name).then_some(IdRange { first, count })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subordinate_range_is_found_by_name_or_uid() {
        let text = "other:1:2\nagent:100000:65536\n1234:300000:10\nbroken\nzero:5:0\n";
        let range = |uid, name| parse_subordinate(text, uid, name).map(|range| (range.first, range.count));
        assert_eq!(range("1000", Some("agent")), Some((100_000, 65_536)));
        assert_eq!(range("1234", None), Some((300_000, 10)));
        assert_eq!(range("1000", Some("nobody")), None);
        assert_eq!(range("0", Some("zero")), None);
    }

    #[test]
    fn containers_with_few_ids_have_no_range() {
        let chosen = |map: &str| choose_mapped(map).map(|range| (range.first, range.count));
        assert_eq!(chosen("         0          0 4294967295\n"), Some((RESERVED.first, RESERVED.count)));
        assert_eq!(chosen("0 100000 65536\n"), Some((32_768, 32_768)));
        assert_eq!(chosen("0 1000 1\n"), None);
        assert_eq!(chosen(""), None);
    }

    #[test]
    fn running_processes_get_different_ids() {
        let pid = |raw| Pid::from_raw(raw).unwrap();
        assert_ne!(RESERVED.pick(pid(7)), RESERVED.pick(pid(8)));
        assert!(RESERVED.pick(pid(4_194_303)) < RESERVED.first + RESERVED.count);
    }
}

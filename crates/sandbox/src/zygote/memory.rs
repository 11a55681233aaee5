//! The memory of a zygote in large pages where it can be: a fork copies the tables of pages, and a sandbox is two forks.

use crate::sys;

const LARGE: usize = 2 << 20;

/// Moves what the interpreter has allocated into large pages. What cannot be moved stays as it is.
pub(super) fn compact() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, end) in maps.lines().filter_map(private_memory) {
        let (start, end) = (start.next_multiple_of(LARGE), end / LARGE * LARGE);
        if start < end {
            // Kernels before 6.1 do not know it.
            let _ = sys::collapse(start, end - start);
        }
    }
}

/// Where it lies, if this line of `proc_pid_maps(5)` is about memory that is nobody else's and of no file.
fn private_memory(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_private = fields.next()? == "rw-p";
    let name = fields.nth(3).unwrap_or("[heap]");
    let bound = |text| usize::from_str_radix(text, 16).ok();
    (is_private && name == "[heap]").then_some((bound(start)?, bound(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_memory_of_its_own_is_moved() {
        let found = Some((0x8260_0000, 0x8280_0000));
        assert_eq!(private_memory("82600000-82800000 rw-p 00000000 00:00 0"), found);
        assert_eq!(private_memory("82600000-82800000 rw-p 00000000 00:00 0     [heap]"), found);
        for line in [
            "7ffd1c2e0000-7ffd1c301000 rw-p 00000000 00:00 0 [stack]",
            "00946000-00a85000 rw-p 00545000 fe:00 1234 /usr/bin/python3.11",
            "82600000-82800000 r--p 00000000 00:00 0 ",
            "82600000-82800000 rw-s 00000000 00:00 0 ",
            "",
        ] {
            assert_eq!(private_memory(line), None, "{line}");
        }
    }
}

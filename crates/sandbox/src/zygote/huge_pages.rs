//! Moves the heap of a zygote into huge pages. A fork copies page tables, and each sandbox needs two forks, so fewer
//! pages make a start faster.

use crate::sys;

const HUGE_PAGE: usize = 2 << 20;

/// Moves the interpreter's heap into huge pages as far as possible.
pub(super) fn collapse_heap() {
    let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
    for (start, end) in maps.lines().filter_map(heap_range) {
        let (start, end) = (start.next_multiple_of(HUGE_PAGE), end / HUGE_PAGE * HUGE_PAGE);
        if start < end {
            // Fails on kernels before 6.1, which do not support it.
            let _ = sys::collapse_into_huge_pages(start, end - start);
        }
    }
}

/// The address range in a line of `proc_pid_maps(5)`, if it is private anonymous memory.
fn heap_range(line: &str) -> Option<(usize, usize)> {
    let mut fields = line.split_ascii_whitespace();
    let (start, end) = fields.next()?.split_once('-')?;
    let is_private = fields.next()? == "rw-p";
    let name = fields.nth(3).unwrap_or("[heap]");
    let address = |text| usize::from_str_radix(text, 16).ok();
    (is_private && name == "[heap]").then_some((address(start)?, address(end)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_anonymous_memory_is_moved() {
        let found = Some((0x8260_0000, 0x8280_0000));
        assert_eq!(heap_range("82600000-82800000 rw-p 00000000 00:00 0"), found);
        assert_eq!(heap_range("82600000-82800000 rw-p 00000000 00:00 0     [heap]"), found);
        for line in [
            "7ffd1c2e0000-7ffd1c301000 rw-p 00000000 00:00 0 [stack]",
            "00946000-00a85000 rw-p 00545000 fe:00 1234 /usr/bin/python3.11",
            "82600000-82800000 r--p 00000000 00:00 0 ",
            "82600000-82800000 rw-s 00000000 00:00 0 ",
            "",
        ] {
            assert_eq!(heap_range(line), None, "{line}");
        }
    }
}

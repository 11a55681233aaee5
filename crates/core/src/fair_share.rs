//! The part of a pool that one of several principals may use.

/// The maximum share of a pool for one of several principals: three quarters, and at least one.
pub fn fair_share(total: usize) -> usize {
    (total / 4 * 3 + total % 4 * 3 / 4).max(1)
}

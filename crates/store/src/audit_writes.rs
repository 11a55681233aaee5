//! Writes of the audit table, and its retention.
//!
//! The table has a maximum number of events. Above it, the principals with the most events lose their oldest ones; of
//! one principal, the most frequent kinds of event do. So a flood of one principal removes only that principal's events,
//! and a flood of file reads removes file reads, not the start of a session. Unknown callers count as one principal.

use std::collections::HashMap;

use ringfence_core::{AuditEvent, Principal, SessionId};
use rusqlite::{Connection, Transaction, params};

pub(crate) fn insert(transaction: &Transaction<'_>, event: &AuditEvent) -> rusqlite::Result<()> {
    let duration_ms = event.duration.map(|duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX));
    transaction
        .prepare_cached(
            "INSERT INTO audit (time_ms, principal, session, kind, outcome, duration_ms, detail)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )?
        .execute(params![
            event.time_ms,
            event.principal.as_ref().map(Principal::name),
            event.session.as_ref().map(SessionId::as_str),
            event.kind.name(),
            event.outcome,
            duration_ms,
            event.detail.to_string(),
        ])?;
    Ok(())
}

pub(crate) fn count(connection: &Connection) -> rusqlite::Result<u64> {
    connection.prepare_cached("SELECT count(*) FROM audit")?.query_row([], |row| row.get(0))
}

pub(crate) fn delete(transaction: &Transaction<'_>, numbers: &[i64]) -> rusqlite::Result<()> {
    let mut statement = transaction.prepare_cached("DELETE FROM audit WHERE number = ?1")?;
    numbers.iter().try_for_each(|number| statement.execute([number]).map(drop))
}

/// Returns the numbers of the events to delete so that at most `max_rows` remain, the oldest first.
pub(crate) fn excess(connection: &Connection, max_rows: u64) -> rusqlite::Result<Vec<i64>> {
    let mut counts: HashMap<String, HashMap<String, u64>> = HashMap::new();
    for_each_row(connection, |_, principal, kind| {
        // A lookup first, because it does not allocate: nearly every row has a known principal and kind.
        match counts.get_mut(principal).and_then(|kinds| kinds.get_mut(kind)) {
            Some(count) => *count += 1,
            None => drop(counts.entry(principal.into()).or_default().insert(kind.into(), 1)),
        }
    })?;
    let share = fair_share(counts.values().map(|kinds| kinds.values().sum()).collect(), max_rows);
    for kinds in counts.values_mut() {
        let share = fair_share(kinds.values().copied().collect(), share);
        for count in kinds.values_mut() {
            *count = count.saturating_sub(share);
        }
    }
    // From here on, the counts are the numbers of surplus events.
    let mut numbers = Vec::new();
    for_each_row(connection, |number, principal, kind| {
        let surplus = counts.get_mut(principal).and_then(|kinds| kinds.get_mut(kind));
        if let Some(surplus) = surplus.filter(|surplus| **surplus > 0) {
            *surplus -= 1;
            numbers.push(number);
        }
    })?;
    Ok(numbers)
}

/// The principal of unknown callers; the name of a real principal contains no NUL.
const UNKNOWN: &str = "\0";

/// Calls the visitor with the number, principal and kind of every event, the oldest first.
fn for_each_row(connection: &Connection, mut visit: impl FnMut(i64, &str, &str)) -> rusqlite::Result<()> {
    let mut statement = connection.prepare_cached("SELECT number, principal, kind FROM audit ORDER BY number")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        visit(row.get(0)?, row.get_ref(1)?.as_str_or_null()?.unwrap_or(UNKNOWN), row.get_ref(2)?.as_str()?);
    }
    Ok(())
}

/// Returns the maximum per principal or kind so that all together have at most `max`; those with fewer events are not
/// affected. At least one, so that the newest event is never deleted.
fn fair_share(mut counts: Vec<u64>, max: u64) -> u64 {
    counts.sort_unstable();
    let (mut available, mut sharers) = (max, counts.len() as u64);
    for count in counts {
        let share = available / sharers;
        if count > share {
            return share.max(1);
        }
        available -= count;
        sharers -= 1;
    }
    u64::MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_fair() {
        assert_eq!(fair_share(vec![10, 20], 30), u64::MAX);
        assert_eq!(fair_share(vec![1000, 20, 10], 100), 70);
        assert_eq!(fair_share(vec![1000, 1000, 10], 100), 45);
        assert_eq!(fair_share(vec![5; 50], 10), 1);
        assert_eq!(fair_share(Vec::new(), 10), u64::MAX);
    }
}

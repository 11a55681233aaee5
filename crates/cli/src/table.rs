//! Tables of text for terminals.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::Value;

use crate::output::visible;

/// Formats columns as wide as their longest cell. Hidden characters, which may come from a guest, are escaped.
pub(crate) fn table(rows: &[Vec<String>]) -> String {
    let rows: Vec<Vec<String>> = rows.iter().map(|row| row.iter().map(|cell| visible(cell)).collect()).collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells: Vec<String> = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        cells.join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Returns the first row of a table.
pub(crate) fn header<const COLUMNS: usize>(titles: [&str; COLUMNS]) -> Vec<String> {
    titles.map(String::from).to_vec()
}

/// Returns a JSON value as a cell: strings without quotes, `-` for null.
pub(crate) fn cell(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

/// Returns the time since a moment, such as `5m ago`.
pub(crate) fn ago(seconds_since_epoch: &Value) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    match now.saturating_sub(seconds_since_epoch.as_u64().unwrap_or(now)) {
        seconds @ 0..60 => format!("{seconds}s ago"),
        seconds @ 60..3600 => format!("{}m ago", seconds / 60),
        seconds => format!("{}h ago", seconds / 3600),
    }
}

/// Cuts a text to `max` characters; `…` shows that it was cut.
pub(crate) fn shorten(text: &str, max: usize) -> String {
    if text.chars().count() <= max { text.into() } else { text.chars().take(max - 1).chain(['…']).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terminal_sequences_are_escaped_in_tables() {
        let rows = [["ID", "WHAT"], ["1", "\u{1b}[31mred\nline"], ["long", "x"]];
        let shown = table(&rows.map(|row| row.map(String::from).to_vec()));
        assert_eq!(shown, "ID    WHAT\n1     \\u{1b}[31mred\\nline\nlong  x\n");
        assert_eq!(table(&[vec!["a\u{202e}b\u{9b}".into()]]), "a\\u{202e}b\\u{9b}\n");
    }

    #[test]
    fn long_texts_are_cut() {
        assert_eq!(shorten("abcd", 4), "abcd");
        assert_eq!(shorten("abcde", 4), "abc…");
    }
}

//! `ringfence session`: the sessions of every server that this user runs.

mod exec;
mod list;
mod logs;
mod show;
mod stop;

use std::io::Write as _;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use ringfence_core::hidden_text::{escape_json, escape_line};
use serde_json::Value;

use crate::failure::Failure;

/// See and use the sessions of the servers that run.
///
/// All servers of this user are asked, over their sockets in the state directory. An ID may be shortened.
#[derive(Args)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    List(list::Arguments),
    Show(show::Arguments),
    Stop(stop::Arguments),
    Exec(exec::Arguments),
    Logs(logs::Arguments),
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    match &arguments.command {
        Command::List(arguments) => list::run(arguments),
        Command::Show(arguments) => show::run(arguments),
        Command::Stop(arguments) => stop::run(arguments),
        Command::Exec(arguments) => exec::run(arguments),
        Command::Logs(arguments) => logs::run(arguments),
    }
}

pub(super) fn print(text: &str) -> Result<ExitCode, Failure> {
    match anstream::stdout().write_all(text.as_bytes()) {
        // Whoever reads it has read enough.
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::new("standard output cannot be written").because(&error))
        }
        _ => Ok(ExitCode::SUCCESS),
    }
}

pub(super) fn print_json(value: &Value) -> Result<ExitCode, Failure> {
    print(&format!("{}\n", escape_json(&format!("{value:#}"))))
}

/// Formats columns as wide as their longest cell. Hidden characters, which may come from a guest, are escaped.
pub(super) fn table(rows: &[Vec<String>]) -> String {
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

/// A text in one line, with hidden characters escaped.
pub(crate) fn visible(text: &str) -> String {
    escape_line(text).into_owned()
}

/// How long ago something was, as a person says it.
fn ago(seconds_since_epoch: &Value) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs();
    match now.saturating_sub(seconds_since_epoch.as_u64().unwrap_or(now)) {
        seconds @ 0..60 => format!("{seconds}s ago"),
        seconds @ 60..3600 => format!("{}m ago", seconds / 60),
        seconds => format!("{}h ago", seconds / 3600),
    }
}

pub(super) fn word(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => "-".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_shows_what_a_terminal_would_obey() {
        let rows = [["ID", "WHAT"], ["1", "\u{1b}[31mred\nline"], ["long", "x"]];
        let shown = table(&rows.map(|row| row.map(String::from).to_vec()));
        assert_eq!(shown, "ID    WHAT\n1     \\u{1b}[31mred\\nline\nlong  x\n");
        assert_eq!(table(&[vec!["a\u{202e}b\u{9b}".into()]]), "a\\u{202e}b\\u{9b}\n");
    }
}

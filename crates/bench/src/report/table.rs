//! Formats the report as a Markdown table with aligned columns, which is also readable in a terminal.

use std::fmt::Write as _;

use super::Report;
use super::row::{Bound, Figure, Row, Target};

const COLUMNS: usize = 7;

const TITLES: [&str; COLUMNS] = ["", "", "median", "p99", "ratio", "target", ""];

pub(super) fn format(report: &Report) -> String {
    let mut lines = vec![TITLES.map(String::from)];
    for (title, section) in &report.sections {
        let mut title = Some((*title).to_owned());
        for row in &section.rows {
            lines.push(cells(title.take().unwrap_or_default(), row));
        }
    }
    let mut text = format!("{}\n\n{}", report.caption, align(&lines));
    for (title, section) in &report.sections {
        for note in &section.not_measured {
            let _ = write!(text, "\nNot measured, {title}: {note}\n");
        }
    }
    text
}

fn cells(title: String, row: &Row) -> [String; COLUMNS] {
    let with_unit = |value: f64| format!("{} {}", number(value), row.unit).trim_end().to_owned();
    let ratio = row.ratio.as_ref().map(|ratio| format!("{} × {}", number(ratio.value), ratio.to));
    let targets: Vec<String> = row.targets.iter().map(|target| describe(target, row.unit)).collect();
    let verdict = match row.targets.iter().all(|target| target.is_met) {
        _ if row.targets.is_empty() => "",
        true => "met",
        false => "missed",
    };
    [
        title,
        row.label.clone(),
        with_unit(row.value),
        row.p99.map(with_unit).unwrap_or_default(),
        ratio.unwrap_or_default(),
        targets.join(", "),
        verdict.into(),
    ]
}

fn describe(target: &Target, unit: &str) -> String {
    let (name, unit) = match target.figure {
        Figure::Value => ("", unit),
        Figure::P99 => ("p99 ", unit),
        Figure::Ratio => ("ratio ", ""),
    };
    let sign = if target.bound == Bound::AtMost { "≤" } else { "≥" };
    format!("{name}{sign} {} {unit}", target.limit).trim_end().to_owned()
}

/// Formats a number with its significant digits only.
fn number(value: f64) -> String {
    match value.abs() {
        size if size.fract() <= f64::EPSILON && size < 1e6 => format!("{value:.0}"),
        size if size < 0.1 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn align(lines: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
    let mut text = String::new();
    for (index, line) in lines.iter().enumerate() {
        let cells: Vec<String> = line.iter().zip(&widths).map(|(cell, width)| format!("{cell:width$}")).collect();
        let _ = writeln!(text, "| {} |", cells.join(" | "));
        if index == 0 {
            let rules: Vec<String> = widths.iter().map(|width| "-".repeat(width + 2)).collect();
            let _ = writeln!(text, "|{}|", rules.join("|"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::Section;
    use super::*;

    #[test]
    fn table_is_aligned_markdown() {
        let peer = Row::of_samples("python3", "ms", vec![17.5, 20.0]);
        let ours = Row::of_samples("ringfence", "ms", vec![3.0, 3.5])
            .compared_with(Some(&peer))
            .target(Figure::Value, Bound::AtMost, 5.0)
            .target(Figure::P99, Bound::AtMost, 3.0);
        let warm = Section { rows: vec![ours, peer], not_measured: vec!["podman: not installed".into()] };
        let burst = Section { rows: vec![Row::single("failed", "", 0.0)], not_measured: Vec::new() };
        let sections = vec![("warm", warm), ("burst", burst)];
        let report = Report { host: serde_json::Value::Null, caption: "A host.".into(), is_quick: false, sections };
        insta::assert_snapshot!(format(&report), @r"
        A host.

        |       |           | median  | p99     | ratio          | target             |        |
        |-------|-----------|---------|---------|----------------|--------------------|--------|
        | warm  | ringfence | 3.25 ms | 3.50 ms | 0.17 × python3 | ≤ 5 ms, p99 ≤ 3 ms | missed |
        |       | python3   | 18.8 ms | 20 ms   |                |                    |        |
        | burst | failed    | 0       |         |                |                    |        |

        Not measured, warm: podman: not installed
        ");
    }
}

//! The report as a Markdown table that is also readable in a terminal.

use std::fmt::Write as _;

use super::report::Report;
use super::rows::{Bound, Figure, Row, Target};

const TITLES: [&str; 7] = ["", "", "median", "p99", "ratio", "target", ""];

pub(super) fn show(report: &Report) -> String {
    let mut lines = vec![TITLES.map(String::from)];
    for (name, section) in &report.sections {
        let mut name = Some((*name).to_owned());
        for row in &section.rows {
            lines.push(cells(name.take().unwrap_or_default(), row));
        }
    }
    let mut text = format!("{}\n\n{}", report.caption, aligned(&lines));
    for (name, section) in &report.sections {
        for why in &section.left_out {
            let _ = write!(text, "\nNot measured, {name}: {why}\n");
        }
    }
    text
}

fn cells(section: String, row: &Row) -> [String; 7] {
    let unit = |value: f64| format!("{} {}", number(value), row.unit).trim_end().to_owned();
    let ratio = row.ratio.as_ref().map(|ratio| format!("{} × {}", number(ratio.value), ratio.to));
    let targets: Vec<String> = row.targets.iter().map(|target| describe(target, row.unit)).collect();
    let verdict = match row.targets.iter().all(|target| target.met) {
        _ if row.targets.is_empty() => "",
        true => "met",
        false => "missed",
    };
    [
        section,
        row.what.clone(),
        unit(row.value),
        row.p99.map(unit).unwrap_or_default(),
        ratio.unwrap_or_default(),
        targets.join(", "),
        verdict.into(),
    ]
}

fn describe(target: &Target, unit: &str) -> String {
    let (name, unit) = match target.of {
        Figure::Value => ("", unit),
        Figure::P99 => ("p99 ", unit),
        Figure::Ratio => ("ratio ", ""),
    };
    let sign = if target.bound == Bound::AtMost { "≤" } else { "≥" };
    format!("{name}{sign} {} {unit}", target.limit).trim_end().to_owned()
}

/// As many digits as mean something.
fn number(value: f64) -> String {
    match value.abs() {
        size if size.fract() <= f64::EPSILON && size < 1e6 => format!("{value:.0}"),
        size if size < 0.1 => format!("{value:.3}"),
        size if size < 10.0 => format!("{value:.2}"),
        size if size < 100.0 => format!("{value:.1}"),
        _ => format!("{value:.0}"),
    }
}

fn aligned(lines: &[[String; 7]]) -> String {
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..TITLES.len()).map(width).collect();
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
    use super::super::report::Section;
    use super::*;

    #[test]
    fn it_is_read_by_people_and_by_markdown() {
        let peer = Row::of("python3", "ms", vec![17.5, 20.0]);
        let ours = Row::of("ringfence", "ms", vec![3.0, 3.5])
            .against(Some(&peer))
            .target(Figure::Value, Bound::AtMost, 5.0)
            .target(Figure::P99, Bound::AtMost, 3.0);
        let warm = Section { rows: vec![ours, peer], left_out: vec!["podman: not installed".into()] };
        let burst = Section { rows: vec![Row::single("failed", "", 0.0)], left_out: Vec::new() };
        let sections = vec![("warm", warm), ("burst", burst)];
        let report = Report { host: serde_json::Value::Null, caption: "A host.".into(), is_quick: false, sections };
        insta::assert_snapshot!(show(&report), @r"
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

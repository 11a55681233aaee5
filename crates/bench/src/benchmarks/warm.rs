//! Time from no session to its first print, with sandboxes ready in the pool as in the default configuration.

use std::path::Path;

use anyhow::Result;

use super::{Setup, first_print};
use crate::peers::{RootDirectory, bubblewrap, command_line, program, time_to_first_output};
use crate::report::{Bound, Figure, Row, Section};
use crate::sampling::{Candidate, sample_in_turns};
use crate::server::Server;

const PRINT: &str = "print(1)";
const PRINT_PANDAS: &str = "import pandas; print(1)";

/// Labels of the rows that others are compared with.
const BARE_PYTHON: &str = "python3 -I";
const BARE_PANDAS: &str = "python3 -I, pandas";

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let Setup { workload, host, .. } = setup;
    let server = setup.start_server("")?;
    let mut candidates = Vec::new();
    let mut not_measured = Vec::new();
    let mut podman_root = None;
    if let Some(python) = &host.python {
        server.warm_up("python", PRINT)?;
        candidates.push(first_print::candidate(&server, "ringfence, python", "python", PRINT, workload.pause)?);
        let command = command_line(python, &["-I", "-c", PRINT]);
        candidates.push(program("python3 -I -S", command_line(python, &["-I", "-S", "-c", PRINT])));
        candidates.push(program(BARE_PYTHON, command.clone()));
        candidates.push(bubblewrap(BARE_PYTHON, &command));
        candidates.push(podman_root.insert(RootDirectory::create()?).candidate(BARE_PYTHON, &command));
        match pandas(setup, &server, python) {
            Ok(pair) => candidates.extend(pair),
            Err(error) => not_measured.push(format!("python with pandas: {error:#}")),
        }
    }
    for (name, template, code, option, interpreter, pause) in [
        ("ringfence, node", "node", "console.log(1)", "-e", &host.node, workload.long_pause),
        ("ringfence, bash", "bash", "echo 1", "-c", &host.bash, workload.pause),
    ] {
        let Some(path) = interpreter else {
            not_measured.push(format!("{template}: not installed"));
            continue;
        };
        server.warm_up(template, code)?;
        candidates.push(first_print::candidate(&server, name, template, code, pause)?);
        candidates.push(program(template, command_line(path, &[option, code])));
    }
    sample_in_turns(&mut candidates, workload.starts);
    let measured = Section::of_candidates(candidates);
    not_measured.extend(measured.not_measured);
    Ok(Section { rows: compare(measured.rows), not_measured })
}

/// Returns a session and a bare interpreter that import pandas, if it is installed.
fn pandas<'a>(setup: &Setup, server: &Server, python: &Path) -> Result<[Candidate<'a>; 2]> {
    let command = command_line(python, &["-I", "-c", PRINT_PANDAS]);
    time_to_first_output(&command)?;
    let name = "ringfence, python, pandas";
    let session = first_print::candidate(server, name, "python", PRINT_PANDAS, setup.workload.pause)?;
    Ok([session, program(BARE_PANDAS, command)])
}

fn compare(rows: Vec<Row>) -> Vec<Row> {
    let references: Vec<Row> = rows.iter().map(|row| Row::single(&row.label, row.unit, row.value)).collect();
    let find = |label: &str| references.iter().find(|row| row.label == label);
    let compared = rows.into_iter().map(|row| match row.label.as_str() {
        "ringfence, python" => row.compared_with(find(BARE_PYTHON)).target(Figure::Value, Bound::AtMost, 5.0).target(
            Figure::P99,
            Bound::AtMost,
            20.0,
        ),
        "ringfence, python, pandas" => row.compared_with(find(BARE_PANDAS)).target(Figure::Value, Bound::AtMost, 8.0),
        "ringfence, node" => row.compared_with(find("node")),
        "ringfence, bash" => row.compared_with(find("bash")),
        BARE_PYTHON | BARE_PANDAS | "node" | "bash" => row,
        _ => row.compared_with(find(BARE_PYTHON)),
    });
    compared.collect()
}

//! From no session to its first print, with sandboxes waiting ready as the default configuration has them.

use std::path::Path;

use anyhow::Result;

use super::effort::Effort;
use super::host::Host;
use super::peers::{self, bubblewrap, program, words};
use super::report::Section;
use super::rows::{Bound, Figure, Row, of_contestants};
use super::server::Server;
use super::turns::{Contestant, take_turns};
use super::{podman, sessions};

const PRINT: &str = "print(1)";
const PRINT_PANDAS: &str = "import pandas; print(1)";

/// Names of rows that others are compared with.
const BARE_PYTHON: &str = "python3 -I";
const BARE_PANDAS: &str = "python3 -I, pandas";

pub(super) fn measure(effort: &Effort, host: &Host) -> Result<Section> {
    let server = Server::start("")?;
    let mut contestants = Vec::new();
    let mut left_out = Vec::new();
    let mut root = None;
    if let Some(python) = &host.python {
        server.warm_up("python", PRINT)?;
        contestants.push(sessions::contestant(&server, "ringfence, python", "python", PRINT, effort.pause)?);
        let command = words(python, &["-I", "-c", PRINT]);
        contestants.push(program("python3 -I -S", words(python, &["-I", "-S", "-c", PRINT])));
        contestants.push(program(BARE_PYTHON, command.clone()));
        contestants.push(bubblewrap(BARE_PYTHON, &command));
        contestants.push(root.insert(podman::Root::make()?).contestant(BARE_PYTHON, &command));
        match pandas(&server, effort, python) {
            Ok(both) => contestants.extend(both),
            Err(error) => left_out.push(format!("python with pandas: {error:#}")),
        }
    }
    for (name, template, code, option, interpreter, pause) in [
        ("ringfence, node", "node", "console.log(1)", "-e", &host.node, effort.long_pause),
        ("ringfence, bash", "bash", "echo 1", "-c", &host.bash, effort.pause),
    ] {
        let Some(path) = interpreter else {
            left_out.push(format!("{template}: it is not installed"));
            continue;
        };
        server.warm_up(template, code)?;
        contestants.push(sessions::contestant(&server, name, template, code, pause)?);
        contestants.push(program(template, words(path, &[option, code])));
    }
    take_turns(&mut contestants, effort.turns);
    let (rows, dropped_out) = of_contestants(contestants);
    left_out.extend(dropped_out);
    Ok(Section { rows: compare(rows), left_out })
}

/// Ours and the bare interpreter's, where pandas is installed for it.
fn pandas<'a>(server: &Server, effort: &Effort, python: &Path) -> Result<[Contestant<'a>; 2]> {
    let command = words(python, &["-I", "-c", PRINT_PANDAS]);
    peers::time_to_print(&command)?;
    let ours = sessions::contestant(server, "ringfence, python, pandas", "python", PRINT_PANDAS, effort.pause)?;
    Ok([ours, program(BARE_PANDAS, command)])
}

fn compare(rows: Vec<Row>) -> Vec<Row> {
    let bare: Vec<Row> = rows.iter().map(|row| Row::single(&row.what, row.unit, row.value)).collect();
    let find = |name: &str| bare.iter().find(|row| row.what == name);
    let compared = rows.into_iter().map(|row| match row.what.as_str() {
        "ringfence, python" => row.against(find(BARE_PYTHON)).target(Figure::Value, Bound::AtMost, 5.0).target(
            Figure::P99,
            Bound::AtMost,
            20.0,
        ),
        "ringfence, python, pandas" => row.against(find(BARE_PANDAS)).target(Figure::Value, Bound::AtMost, 8.0),
        "ringfence, node" => row.against(find("node")),
        "ringfence, bash" => row.against(find("bash")),
        BARE_PYTHON | BARE_PANDAS | "node" | "bash" => row,
        _ => row.against(find(BARE_PYTHON)),
    });
    compared.collect()
}

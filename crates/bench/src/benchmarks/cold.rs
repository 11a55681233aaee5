//! Time from no session to its first print without a pool: the interpreter is started in a new sandbox.

use anyhow::Result;

use super::{Setup, first_print};
use crate::peers::{bubblewrap, command_line, program};
use crate::report::{Bound, Figure, Row, Section};
use crate::sampling::sample_in_turns;

const CONFIGURATION: &str = "
[sessions.pool]
python = 0
";

const PRINT: &str = "print(1)";

const BARE_PYTHON: &str = "python3 -I";
const SESSION: &str = "ringfence, python";

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let python = setup.python()?;
    let server = setup.start_server(CONFIGURATION)?;
    let command = command_line(python, &["-I", "-c", PRINT]);
    // The sandbox alone, without a server and a kernel.
    let run = command_line(setup.ringfence()?, &["run", "--"]).into_iter().chain(command.clone()).collect();
    let mut candidates = vec![
        program(BARE_PYTHON, command.clone()),
        first_print::candidate(&server, SESSION, "python", PRINT, setup.workload.pause)?,
        program("ringfence run, python3 -I", run),
        bubblewrap(BARE_PYTHON, &command),
    ];
    sample_in_turns(&mut candidates, setup.workload.starts);
    let Section { mut rows, not_measured } = Section::of_candidates(candidates);
    let bare = rows.iter().position(|row| row.label == BARE_PYTHON).map(|index| rows.remove(index));
    let compare = |row: Row| {
        let row = row.compared_with(bare.as_ref());
        if row.label == SESSION { row.target(Figure::Ratio, Bound::AtMost, 1.3) } else { row }
    };
    let mut rows: Vec<Row> = rows.into_iter().map(compare).collect();
    rows.extend(bare);
    Ok(Section { rows, not_measured })
}

//! From no session to its first print where nothing waits ready: the interpreter is started in a fresh sandbox.

use anyhow::{Context as _, Result};

use super::effort::Effort;
use super::host::Host;
use super::peers::{bubblewrap, program, words};
use super::report::Section;
use super::rows::{Bound, Figure, Row, of_contestants};
use super::server::Server;
use super::sessions;
use super::turns::take_turns;

const CONFIGURATION: &str = "
[sessions.pool]
python = 0
";

const PRINT: &str = "print(1)";

pub(super) fn measure(effort: &Effort, host: &Host) -> Result<Section> {
    let python = host.python.as_ref().context("there is no python3")?;
    let server = Server::start(CONFIGURATION)?;
    let command = words(python, &["-I", "-c", PRINT]);
    // The sandbox alone, without a server and a kernel.
    let run = words(&std::env::current_exe()?, &["run", "--"]).into_iter().chain(command.clone()).collect();
    let mut contestants = vec![
        program("python3 -I", command.clone()),
        sessions::contestant(&server, "ringfence, python", "python", PRINT, effort.pause)?,
        program("ringfence run, python3 -I", run),
        bubblewrap("python3 -I", &command),
    ];
    take_turns(&mut contestants, effort.turns);
    let (mut rows, left_out) = of_contestants(contestants);
    let bare = rows.iter().position(|row| row.what == "python3 -I").map(|index| rows.remove(index));
    let compare = |row: Row| {
        let row = row.against(bare.as_ref());
        if row.what == "ringfence, python" { row.target(Figure::Ratio, Bound::AtMost, 1.3) } else { row }
    };
    let mut rows: Vec<Row> = rows.into_iter().map(compare).collect();
    rows.extend(bare);
    Ok(Section { rows, left_out })
}

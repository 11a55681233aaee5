//! The first call of a session with the template `data`, compared with that of a plain Python session. Both sessions
//! come from the pool.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde_json::json;

use super::super::{Setup, first_print};
use crate::report::{Bound, Figure, Row, Section};
use crate::sampling::sample_in_turns;
use crate::server::Server;

const DATA: &str = "ringfence, first call of a `data` session";
const PLAIN: &str = "ringfence, first call of a `python` session";
const IMPORT_DATA: &str = "ringfence, `import pandas` in a `data` session";

/// Timeout for the installation of the packages of the template.
const BUILD_TIMEOUT: Duration = Duration::from_mins(10);

/// Time between two samples in which the pool starts an interpreter and imports the modules in advance.
const REFILL_PAUSE: Duration = Duration::from_secs(3);

pub(super) fn measure(setup: &Setup, server: &Server) -> Result<Section> {
    build(server)?;
    let pause = setup.workload.pause;
    let mut candidates = [
        first_print::candidate(server, DATA, "data", "print(1)", REFILL_PAUSE)?,
        first_print::candidate(server, PLAIN, "python", "print(1)", pause)?,
        first_print::candidate(server, IMPORT_DATA, "data", "import pandas; print(1)", REFILL_PAUSE)?,
    ];
    sample_in_turns(&mut candidates, setup.workload.installations);
    let Section { rows, not_measured } = Section::of_candidates(candidates.into());
    let plain = rows.iter().find(|row| row.label == PLAIN);
    let plain = plain.map(|row| Row::single(&row.label, row.unit, row.value));
    let compared = rows.into_iter().map(|row| match row.label.as_str() {
        DATA => row.compared_with(plain.as_ref()).target(Figure::Ratio, Bound::AtMost, 2.0),
        IMPORT_DATA => row.compared_with(plain.as_ref()),
        _ => row,
    });
    Ok(Section { rows: compared.collect(), not_measured })
}

/// Uses the template until its packages are installed. A call fails while they are being installed.
fn build(server: &Server) -> Result<()> {
    let mut client = server.connect()?;
    let deadline = Instant::now() + BUILD_TIMEOUT;
    loop {
        let arguments = json!({"template": "data", "code": "import pandas", "timeout": 110});
        match client.call_without_stream("execute_code", &arguments) {
            Ok(result) if result.result["structuredContent"]["status"] == "ok" => {
                return client.stop_session(&result.session_id()?);
            }
            Ok(result) => bail!("{}", result.result["structuredContent"]),
            Err(error) if !error.to_string().contains("is being built") || Instant::now() > deadline => {
                return Err(error);
            }
            Err(_) => std::thread::sleep(Duration::from_secs(1)),
        }
    }
}

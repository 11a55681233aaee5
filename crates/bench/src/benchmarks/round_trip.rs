//! A call in a live session, compared with the echo tool of a bare rmcp server; both over one persistent connection.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::Setup;
use crate::report::{Bound, Figure, Section};
use crate::sampling::{Candidate, sample_in_turns};
use crate::server::Server;

pub(super) fn measure(setup: &Setup) -> Result<Section> {
    let (server, echo_server) = (setup.start_server("")?, Server::prepare_echo()?.start()?);
    server.warm_up("python", "x = 0")?;
    let mut client = server.connect()?;
    let id = client.create_session("python", "x = 0")?.session_id()?;
    let code = json!({"session_id": id, "code": "x+=1"});
    let mut echo_client = echo_server.connect()?;
    let message = json!({"message": "x+=1"});
    let mut candidates = vec![
        Candidate::new("ringfence, x+=1", || Ok(client.call("execute_code", &code)?.time)),
        Candidate::new("bare rmcp, echo", || Ok(echo_client.call("echo", &message)?.time)),
    ];
    sample_in_turns(&mut candidates, setup.workload.calls);
    let Section { rows, not_measured } = Section::of_candidates(candidates);
    let [session, echo] = <[_; 2]>::try_from(rows).ok().with_context(|| not_measured.join("; "))?;
    let session = session.compared_with(Some(&echo)).target(Figure::Ratio, Bound::AtMost, 2.0);
    Ok(Section { rows: vec![session, echo], not_measured })
}

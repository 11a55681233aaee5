//! A call in a live session, beside the echo tool of a bare rmcp server: both over one kept connection.

use anyhow::{Context as _, Result};
use serde_json::json;

use super::effort::Effort;
use super::report::Section;
use super::rows::{Bound, Figure, of_contestants};
use super::server::Server;
use super::turns::{Contestant, take_turns};

pub(super) fn measure(effort: &Effort) -> Result<Section> {
    let (server, echo) = (Server::start("")?, Server::start_echo()?);
    server.warm_up("python", "x = 0")?;
    let mut client = server.connect()?;
    let id = client.create("python", "x = 0")?.session_id()?;
    let call = json!({"session_id": id, "code": "x+=1"});
    let mut stranger = echo.connect()?;
    let message = json!({"message": "x+=1"});
    let mut contestants = vec![
        Contestant::new("ringfence, x+=1", || Ok(client.call("execute_code", &call)?.time)),
        Contestant::new("bare rmcp, echo", || Ok(stranger.call("echo", &message)?.time)),
    ];
    take_turns(&mut contestants, effort.calls);
    let (rows, left_out) = of_contestants(contestants);
    let [ours, echo] = <[_; 2]>::try_from(rows).ok().context(left_out.join("; "))?;
    let ours = ours.against(Some(&echo)).target(Figure::Ratio, Bound::AtMost, 2.0);
    Ok(Section { rows: vec![ours, echo], left_out })
}

//! Sessions as contestants: made by the code that is to run in them, and stopped after each turn.

use std::time::Duration;

use anyhow::{Result, ensure};

use super::client::Client;
use super::server::Server;
use super::turns::Contestant;

/// From no session to its first print. Stopping it, and the pause, are not counted.
pub(super) fn contestant<'a>(
    server: &Server,
    name: &str,
    template: &'static str,
    code: &'static str,
    pause: Duration,
) -> Result<Contestant<'a>> {
    let mut client = server.connect()?;
    let turn = move || {
        let (id, time) = first_print(&mut client, template, code)?;
        client.stop(&id)?;
        Ok(time)
    };
    Ok(Contestant::new(name, turn).resting(pause))
}

/// Makes a session with code that prints a 1.
pub(super) fn first_print(client: &mut Client, template: &str, code: &str) -> Result<(String, Duration)> {
    let answered = client.create(template, code)?;
    let printed = &answered.result["structuredContent"]["stdout"];
    ensure!(printed == "1\n", "a session printed {printed}");
    Ok((answered.session_id()?, answered.time))
}

//! Measures the time from the creation of a session to the first output of its code. Each sample has a new session.

use std::time::Duration;

use anyhow::{Result, ensure};

use crate::client::Client;
use crate::sampling::Candidate;
use crate::server::Server;

/// Returns a candidate that measures the time from no session to its first print. Stopping the session and the pause
/// are not part of the time.
pub(super) fn candidate<'a>(
    server: &Server,
    name: &str,
    template: &'static str,
    code: &'static str,
    pause: Duration,
) -> Result<Candidate<'a>> {
    let mut client = server.connect()?;
    let take_sample = move || {
        let (id, time) = first_print(&mut client, template, code)?;
        client.stop_session(&id)?;
        Ok(time)
    };
    Ok(Candidate::new(name, take_sample).with_pause(pause))
}

/// Creates a session with code that prints a 1. Returns its id and the time until the response.
pub(super) fn first_print(client: &mut Client, template: &str, code: &str) -> Result<(String, Duration)> {
    let created = client.create_session(template, code)?;
    let printed = &created.result["structuredContent"]["stdout"];
    ensure!(printed == "1\n", "the session printed {printed}");
    Ok((created.session_id()?, created.time))
}

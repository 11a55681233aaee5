//! Asks the servers of this user: HTTP over their Unix sockets, one request a connection.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_store::DamageReport;
use serde_json::Value;

use crate::commands::config::load;
use crate::damage;
use crate::failure::Failure;
use crate::http::{Connection, Request};
use crate::state::Servers;

/// Longer than any call may take.
const PATIENCE: Duration = Duration::from_secs(900);

/// For what a server knows by heart.
const SHORT_PATIENCE: Duration = Duration::from_secs(10);

/// A session, and the server that has it.
pub(crate) struct Found {
    servers: Servers,
    pub(crate) server: u32,
    /// What the server says of it.
    pub(crate) session: Value,
}

/// All sessions of all servers that run.
pub(crate) fn sessions() -> Result<Vec<(u32, Value)>, Failure> {
    let mut found = Vec::new();
    for (pid, stream) in running()? {
        // One that ends just now has no sessions any more.
        let Ok((200, mut answer)) = ask(stream, "GET", "/v1/sessions", None, PATIENCE) else { continue };
        let Value::Array(sessions) = answer["sessions"].take() else { continue };
        found.extend(sessions.into_iter().map(|session| (pid, session)));
    }
    Ok(found)
}

/// The one session whose id is this, or begins so.
pub(crate) fn find(id: &str) -> Result<Found, Failure> {
    let begins = |session: &Value| {
        let full = session["session_id"].as_str().unwrap_or_default();
        full.starts_with(id) || full.strip_prefix("session-").is_some_and(|rest| rest.starts_with(id))
    };
    let mut matching = sessions()?.into_iter().filter(|(_, session)| begins(session));
    let hint = "`ringfence session list` shows those there are";
    let (server, session) = match (matching.next(), matching.next()) {
        (Some(found), None) if !id.is_empty() => found,
        (Some(_), _) => return Err(Failure::new(format!("more than one session begins with `{id}`")).hint(hint)),
        (None, _) => return Err(Failure::new(format!("session not found: {id}")).hint(hint)),
    };
    let servers = servers()?.ok_or_else(|| Failure::new("the server is gone"))?;
    Ok(Found { servers, server, session })
}

impl Found {
    /// Asks about this session; a refusal becomes a failure with the server's own words.
    pub(crate) fn ask(&self, method: &str, what: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let gone = |error: std::io::Error| Failure::new(format!("the server {} is gone", self.server)).because(&error);
        let stream = self.servers.connect(self.server).map_err(gone)?;
        let id = self.session["session_id"].as_str().unwrap_or_default();
        let (status, answer) =
            ask(stream, method, &format!("/v1/sessions/{id}{what}"), body, PATIENCE).map_err(gone)?;
        if status < 300 { Ok(answer) } else { Err(refusal(&answer)) }
    }

    /// An output of it that was too long for its answer.
    pub(crate) fn output(&self, number: &str) -> Result<Vec<u8>, Failure> {
        let gone = |error: std::io::Error| Failure::new(format!("the server {} is gone", self.server)).because(&error);
        let stream = self.servers.connect(self.server).map_err(gone)?;
        let id = self.session["session_id"].as_str().unwrap_or_default();
        let path = format!("/v1/sessions/{id}/outputs/{number}");
        let (status, answer) = fetch(stream, "GET", &path, None, PATIENCE).map_err(gone)?;
        if status < 300 { Ok(answer) } else { Err(Failure::new("the whole of an output is not kept any more")) }
    }
}

/// What all servers that run know of the MCP servers that they host: for each, by whom.
pub(crate) fn hosted() -> Result<Vec<(u32, Value)>, Failure> {
    let mut found = Vec::new();
    for (pid, stream) in running()? {
        let Ok((200, mut answer)) = ask(stream, "GET", "/v1/servers", None, SHORT_PATIENCE) else { continue };
        let Value::Array(hosted) = answer["servers"].take() else { continue };
        found.extend(hosted.into_iter().map(|server| (pid, server)));
    }
    Ok(found)
}

/// Asks about one hosted server; the first server that knows it answers.
pub(crate) fn ask_hosted(name: &str, method: &str, what: &str, body: Option<&Value>) -> Result<Value, Failure> {
    let path = format!("/v1/servers/{}{what}", segment(name));
    let mut refused = None;
    for (_, stream) in running()? {
        match ask(stream, method, &path, body, PATIENCE) {
            Ok((status, answer)) if status < 300 => return Ok(answer),
            Ok((404, answer)) => refused = refused.or(Some(refusal(&answer))),
            Ok((_, answer)) => return Err(refusal(&answer)),
            // One that ends just now hosts nothing any more.
            Err(_) => {}
        }
    }
    Err(refused.unwrap_or_else(|| {
        Failure::new(format!("no server runs that could tell about `{name}`"))
            .hint("start one with `ringfence serve`, or leave it to a client to do so")
    }))
}

/// A connection to every running server. Without one, this process checks the state database itself.
fn running() -> Result<Vec<(u32, UnixStream)>, Failure> {
    let connected = match servers()? {
        Some(servers) => {
            servers.connect_all().map_err(|error| Failure::new("the servers cannot be listed").because(&error))?
        }
        None => Vec::new(),
    };
    if connected.is_empty() {
        damage::check(&state()?)?;
    }
    Ok(connected)
}

fn state() -> Result<PathBuf, Failure> {
    Ok(load(None, Vec::new())?.state_directory()?)
}

/// Shows and returns the reports of a damaged state database.
pub(crate) fn damage_reports() -> Result<Vec<DamageReport>, Failure> {
    Ok(damage::show_reports(&state()?))
}

/// A server's own words.
fn refusal(answer: &Value) -> Failure {
    let failure = Failure::new(answer["error"].as_str().unwrap_or("the server refused"));
    let hints = answer["recovery_suggestions"].as_array().into_iter().flatten().filter_map(Value::as_str);
    hints.fold(failure, Failure::hint)
}

/// A name as a part of a path.
fn segment(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes().fold(String::new(), |path, byte| {
        if is_plain(byte) { path + &char::from(byte).to_string() } else { path + &format!("%{byte:02X}") }
    })
}

fn servers() -> Result<Option<Servers>, Failure> {
    let state = state()?;
    damage::show_reports(&state);
    match Servers::open(&state) {
        Ok(servers) => Ok(Some(servers)),
        // No server has ever run.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(Failure::new(format!("the state directory {} cannot be read", state.display())).because(&error))
        }
    }
}

fn ask(
    stream: UnixStream,
    method: &str,
    path: &str,
    body: Option<&Value>,
    patience: Duration,
) -> std::io::Result<(u16, Value)> {
    let (status, answer) = fetch(stream, method, path, body, patience)?;
    // Some refusals have no body, or none of ours.
    Ok((
        status,
        serde_json::from_slice(&answer).or_else(|error| if status < 300 { Err(error) } else { Ok(Value::Null) })?,
    ))
}

fn fetch(
    stream: UnixStream,
    method: &str,
    path: &str,
    body: Option<&Value>,
    patience: Duration,
) -> std::io::Result<(u16, Vec<u8>)> {
    stream.set_read_timeout(Some(patience))?;
    stream.set_write_timeout(Some(patience))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = Request { method, path, host: "localhost", head: "Connection: close\r\n", body: &body };
    Connection::new(stream).ask(&request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_is_one_part_of_a_path() {
        assert_eq!(segment("a b?c#d/é%"), "a%20b%3Fc%23d%2F%C3%A9%25");
        assert_eq!(segment("io.github.x-y_z~"), "io.github.x-y_z~");
    }
}

//! The client of this user's running servers: HTTP over their Unix sockets, one request per connection.

use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::Duration;

use ringfence_store::DamageReport;
use serde_json::Value;

use crate::configuration::load;
use crate::database;
use crate::failure::Failure;
use crate::http_client::{Connection, Request};
use crate::socket_directory::{Owners, SocketDirectory};

/// Longer than any call may take.
const CALL_TIMEOUT: Duration = Duration::from_mins(15);

/// Timeout of requests to which a server responds from memory.
const LIST_TIMEOUT: Duration = Duration::from_secs(10);

/// A session, and the server that runs it.
pub(crate) struct RemoteSession {
    servers: SocketDirectory,
    /// The process id of the server.
    pub(crate) server: u32,
    /// The description of the session in the server's list.
    info: Value,
}

/// Returns the sessions of all running servers, each with the process id of its server.
pub(crate) fn sessions() -> Result<Vec<(u32, Value)>, Failure> {
    let mut found = Vec::new();
    for (pid, stream) in connect_all()? {
        // A server that has just ended has no sessions any more.
        let Ok((200, mut response)) = send(stream, "GET", "/v1/sessions", None, CALL_TIMEOUT) else { continue };
        let Value::Array(sessions) = response["sessions"].take() else { continue };
        found.extend(sessions.into_iter().map(|session| (pid, session)));
    }
    Ok(found)
}

/// Returns the only session whose id is `id` or begins with it.
pub(crate) fn find_session(id: &str) -> Result<RemoteSession, Failure> {
    let has_prefix = |session: &Value| {
        let full = session["session_id"].as_str().unwrap_or_default();
        full.starts_with(id)
            || ["s-", "session-"]
                .iter()
                .any(|prefix| full.strip_prefix(prefix).is_some_and(|rest| rest.starts_with(id)))
    };
    let mut matching = sessions()?.into_iter().filter(|(_, session)| has_prefix(session));
    let hint = "list all sessions with `ringfence session list`";
    let (server, info) = match (matching.next(), matching.next()) {
        (Some(found), None) if !id.is_empty() => found,
        (Some(_), _) => return Err(Failure::new(format!("more than one session id begins with `{id}`")).hint(hint)),
        (None, _) => return Err(Failure::new(format!("session not found: {id}")).hint(hint)),
    };
    let servers = servers()?.ok_or_else(|| Failure::new("the server of the session has ended"))?;
    Ok(RemoteSession { servers, server, info })
}

impl RemoteSession {
    /// Sends a request about this session. An error response becomes a failure with the server's message.
    pub(crate) fn request(&self, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
        let gone = |error: std::io::Error| self.server_gone(&error);
        let stream = self.servers.connect(self.server).map_err(gone)?;
        let (status, response) = send(stream, method, &self.path(path), body, CALL_TIMEOUT).map_err(gone)?;
        if status < 300 { Ok(response) } else { Err(error_response(&response)) }
    }

    /// Fetches an output that was too long for the response of its call.
    pub(crate) fn full_output(&self, number: &str) -> Result<Vec<u8>, Failure> {
        let gone = |error: std::io::Error| self.server_gone(&error);
        let stream = self.servers.connect(self.server).map_err(gone)?;
        let path = self.path(&format!("/outputs/{number}"));
        let (status, bytes) = send_raw(stream, "GET", &path, None, CALL_TIMEOUT).map_err(gone)?;
        if status < 300 { Ok(bytes) } else { Err(Failure::new("the full output is not stored any more")) }
    }

    fn path(&self, path: &str) -> String {
        format!("/v1/sessions/{}{path}", self.info["session_id"].as_str().unwrap_or_default())
    }

    fn server_gone(&self, error: &std::io::Error) -> Failure {
        Failure::new(format!("the server with process id {} has ended", self.server)).caused_by(error)
    }
}

/// Returns the MCP servers that all running servers host, each with the process id of the hosting server.
pub(crate) fn hosted_servers() -> Result<Vec<(u32, Value)>, Failure> {
    let mut found = Vec::new();
    for (pid, stream) in connect_all()? {
        let Ok((200, mut response)) = send(stream, "GET", "/v1/servers", None, LIST_TIMEOUT) else { continue };
        let Value::Array(hosted) = response["servers"].take() else { continue };
        found.extend(hosted.into_iter().map(|server| (pid, server)));
    }
    Ok(found)
}

/// Sends a request about a hosted server to the first running server that hosts it.
pub(crate) fn request_hosted(name: &str, method: &str, path: &str, body: Option<&Value>) -> Result<Value, Failure> {
    let path = format!("/v1/servers/{}{path}", percent_encode(name));
    let mut not_found = None;
    for (_, stream) in connect_all()? {
        match send(stream, method, &path, body, CALL_TIMEOUT) {
            Ok((status, response)) if status < 300 => return Ok(response),
            Ok((404, response)) => not_found = not_found.or(Some(error_response(&response))),
            Ok((_, response)) => return Err(error_response(&response)),
            // A server that has just ended hosts nothing any more.
            Err(_) => {}
        }
    }
    Err(not_found.unwrap_or_else(|| {
        Failure::new(format!("cannot query the server `{name}`: no ringfence server is running"))
            .hint("start one with `ringfence serve`, or let an MCP client start one")
    }))
}

/// Connects to every running server. If there is none, checks the state database in this process.
fn connect_all() -> Result<Vec<(u32, UnixStream)>, Failure> {
    let connected = match servers()? {
        Some(servers) => {
            servers.connect_all().map_err(|error| Failure::new("cannot list the running servers").caused_by(&error))?
        }
        None => Vec::new(),
    };
    if connected.is_empty() {
        database::check(&state_directory()?)?;
    }
    Ok(connected)
}

fn state_directory() -> Result<PathBuf, Failure> {
    Ok(load(None, Vec::new())?.state_directory()?)
}

/// Shows and returns the reports of a damaged state database.
pub(crate) fn damage_reports() -> Result<Vec<DamageReport>, Failure> {
    Ok(database::show_reports(&state_directory()?))
}

/// Makes a failure of a server's error response.
fn error_response(response: &Value) -> Failure {
    let failure = Failure::new(response["error"].as_str().unwrap_or("the server refused the request"));
    let hints = response["recovery_suggestions"].as_array().into_iter().flatten().filter_map(Value::as_str);
    hints.fold(failure, Failure::hint)
}

/// Encodes a name as one segment of a path.
fn percent_encode(name: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    name.bytes().fold(String::new(), |path, byte| {
        if is_plain(byte) { path + &char::from(byte).to_string() } else { path + &format!("%{byte:02X}") }
    })
}

/// Returns the directory of the servers' sockets. `None` if no server has ever run.
fn servers() -> Result<Option<SocketDirectory>, Failure> {
    let state = state_directory()?;
    database::show_reports(&state);
    match SocketDirectory::open(&state, Owners::Servers) {
        Ok(servers) => Ok(Some(servers)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            Err(Failure::new(format!("cannot read the state directory {}", state.display())).caused_by(&error))
        }
    }
}

fn send(
    stream: UnixStream,
    method: &str,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> std::io::Result<(u16, Value)> {
    let (status, body) = send_raw(stream, method, path, body, timeout)?;
    match serde_json::from_slice(&body) {
        Ok(value) => Ok((status, value)),
        // Some error responses have no body, or one that is not JSON.
        Err(_) if status >= 300 => Ok((status, Value::Null)),
        Err(error) => Err(error.into()),
    }
}

fn send_raw(
    stream: UnixStream,
    method: &str,
    path: &str,
    body: Option<&Value>,
    timeout: Duration,
) -> std::io::Result<(u16, Vec<u8>)> {
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    let body = body.map(Value::to_string).unwrap_or_default();
    let request = Request { method, path, host: "localhost", headers: "Connection: close\r\n", body: &body };
    Connection::new(stream).send(&request)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_becomes_one_path_segment() {
        assert_eq!(percent_encode("a b?c#d/é%"), "a%20b%3Fc%23d%2F%C3%A9%25");
        assert_eq!(percent_encode("io.github.x-y_z~"), "io.github.x-y_z~");
    }
}

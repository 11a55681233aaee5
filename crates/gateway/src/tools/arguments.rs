//! Parses and validates the arguments of built-in tools. Unknown fields are errors; see `tolerance` for other forms of
//! values that are accepted.

mod tolerance;

use std::ffi::OsString;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use ringfence_core::{Failure, Kind, SessionId};
use ringfence_session::{CodeRequest, CommandRequest, FileRange};
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::authorize::Action;
use crate::tools;

/// Maximum length of a session id: more than any real one has, and short enough to repeat in an error.
const MAX_SESSION_ID_BYTES: usize = 128;

/// A call of a built-in tool with valid arguments.
#[derive(Debug)]
pub(crate) enum ToolCall {
    /// The names are those of the servers that the code may call.
    ExecuteCode(SessionChoice, CodeRequest, Vec<String>),
    RunPython(SessionChoice, RunPython),
    SearchTools(SearchTools),
    ExecuteCommand(SessionChoice, CommandRequest),
    GetSessions(Option<SessionId>),
    StopSession(SessionId),
    GetVolumePath,
    ReadFile(SessionChoice, OsString, FileRange),
    WriteFile(SessionChoice, OsString, Vec<u8>),
    ListFiles(SessionChoice, OsString),
}

/// The session that a call names in `session_id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum SessionChoice {
    /// The default session of the caller, if it has one.
    Default,
    New,
    Existing(SessionId),
}

/// The value of `session_id` for a new session.
const NEW_SESSION: &str = "new";

impl SessionChoice {
    fn parse(session_id: Option<String>) -> Result<Self, Failure> {
        match session_id {
            None => Ok(Self::Default),
            Some(text) if text.is_empty() => Ok(Self::Default),
            Some(text) if text == NEW_SESSION => Ok(Self::New),
            Some(text) => self::session_id(text).map(Self::Existing),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct RunPython {
    pub(crate) code: String,
    pub(crate) servers: Vec<String>,
    pub(crate) timeout: Option<Duration>,
}

#[derive(Debug)]
pub(crate) struct SearchTools {
    pub(crate) query: String,
    pub(crate) limit: usize,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecuteCodeParams {
    code: String,
    template: Option<String>,
    flavor: Option<String>,
    session_id: Option<String>,
    timeout: Option<f64>,
    servers: Option<Vec<String>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RunPythonParams {
    code: String,
    session_id: Option<String>,
    servers: Option<Vec<String>>,
    timeout: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SearchToolsParams {
    query: String,
    limit: Option<UnsignedInteger>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ExecuteCommandParams {
    command: String,
    template: Option<String>,
    flavor: Option<String>,
    session_id: Option<String>,
    timeout: Option<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetSessionsParams {
    session_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StopSessionParams {
    session_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GetVolumePathParams {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ReadFileParams {
    session_id: Option<String>,
    path: String,
    offset: Option<UnsignedInteger>,
    length: Option<UnsignedInteger>,
}

/// A non-negative integer. `3.0` is one too, as in JSON Schema.
#[derive(Clone, Copy)]
struct UnsignedInteger(u64);

impl<'de> Deserialize<'de> for UnsignedInteger {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// All integers up to this one are exact as `f64`.
        const MAX_EXACT: f64 = (1_u64 << 53) as f64;
        let number = serde_json::Number::deserialize(deserializer)?;
        let float = || number.as_f64().filter(|float| float.fract() == 0.0 && (0.0..=MAX_EXACT).contains(float));
        let integer = number.as_u64().or_else(|| float().map(|float| float as u64));
        integer.map(Self).ok_or_else(|| D::Error::custom(format!("{number} is not a non-negative integer")))
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WriteFileParams {
    session_id: Option<String>,
    path: String,
    content: String,
    encoding: Option<Encoding>,
}

#[derive(Clone, Copy, Deserialize)]
enum Encoding {
    #[serde(rename = "utf-8", alias = "utf8")]
    Utf8,
    #[serde(rename = "base64")]
    Base64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListFilesParams {
    session_id: Option<String>,
    path: Option<String>,
}

impl ToolCall {
    /// All actions that the call needs.
    pub(crate) fn actions(&self) -> Vec<Action> {
        match self {
            Self::ExecuteCode(_, _, servers) | Self::RunPython(_, RunPython { servers, .. }) if !servers.is_empty() => {
                vec![Action::RunCode, Action::UseServers]
            }
            Self::ExecuteCode(..) | Self::RunPython(..) => vec![Action::RunCode],
            Self::SearchTools(_) => vec![Action::UseServers],
            Self::ExecuteCommand(..) => vec![Action::RunCommand],
            Self::GetSessions(_) | Self::StopSession(_) | Self::GetVolumePath => vec![Action::ManageSessions],
            Self::ReadFile(..) | Self::ListFiles(..) => vec![Action::ReadFiles],
            Self::WriteFile(..) => vec![Action::WriteFiles],
        }
    }

    pub(crate) fn parse(tool: &str, arguments: Option<Map<String, Value>>) -> Result<Self, Failure> {
        let mut arguments = arguments.unwrap_or_default();
        tolerance::normalize(&mut arguments);
        let arguments = Value::Object(arguments);
        match tool {
            tools::EXECUTE_CODE => {
                // The most frequent call: the path to an error is only tracked if there is one.
                let params = ExecuteCodeParams::deserialize(&arguments).or_else(|_| parse(tool, arguments))?;
                let session = SessionChoice::parse(params.session_id)?;
                let request = CodeRequest {
                    code: not_blank("code", params.code)?,
                    template: params.template,
                    flavor: params.flavor,
                    session_id: None,
                    timeout: params.timeout.map(bounded_timeout).transpose()?,
                    host: None,
                    questions: None,
                    rich_html: false,
                };
                Ok(Self::ExecuteCode(session, request, params.servers.unwrap_or_default()))
            }
            tools::RUN_PYTHON => {
                let params: RunPythonParams = parse(tool, arguments)?;
                let session = SessionChoice::parse(params.session_id)?;
                let call = RunPython {
                    code: not_blank("code", params.code)?,
                    servers: params.servers.unwrap_or_default(),
                    timeout: params.timeout.map(bounded_timeout).transpose()?,
                };
                Ok(Self::RunPython(session, call))
            }
            tools::SEARCH_TOOLS => {
                let SearchToolsParams { query, limit } = parse(tool, arguments)?;
                let limit = limit.map_or(tools::DEFAULT_FOUND_TOOLS, |UnsignedInteger(limit)| {
                    usize::try_from(limit).unwrap_or(usize::MAX)
                });
                // A search returns as many as there are, so a larger number needs no error.
                let limit = limit.min(tools::MAX_FOUND_TOOLS);
                Ok(Self::SearchTools(SearchTools { query: not_blank("query", query)?, limit }))
            }
            tools::EXECUTE_COMMAND => {
                let params: ExecuteCommandParams = parse(tool, arguments)?;
                let session = SessionChoice::parse(params.session_id)?;
                let request = CommandRequest {
                    command: not_blank("command", params.command)?,
                    template: params.template,
                    flavor: params.flavor,
                    session_id: None,
                    timeout: params.timeout.map(bounded_timeout).transpose()?,
                    questions: None,
                };
                Ok(Self::ExecuteCommand(session, request))
            }
            tools::GET_SESSIONS => {
                let params: GetSessionsParams = parse(tool, arguments)?;
                Ok(Self::GetSessions(params.session_id.map(session_id).transpose()?))
            }
            tools::STOP_SESSION => {
                let params: StopSessionParams = parse(tool, arguments)?;
                Ok(Self::StopSession(session_id(params.session_id)?))
            }
            tools::GET_VOLUME_PATH => {
                let GetVolumePathParams {} = parse(tool, arguments)?;
                Ok(Self::GetVolumePath)
            }
            tools::READ_FILE => {
                let ReadFileParams { session_id: id, path, offset, length } = parse(tool, arguments)?;
                let range =
                    FileRange { offset: offset.map_or(0, |offset| offset.0), length: length.map(|length| length.0) };
                Ok(Self::ReadFile(SessionChoice::parse(id)?, not_blank("path", path)?.into(), range))
            }
            tools::WRITE_FILE => {
                let WriteFileParams { session_id: id, path, content, encoding } = parse(tool, arguments)?;
                let content = decode(content, encoding.unwrap_or(Encoding::Utf8))?;
                Ok(Self::WriteFile(SessionChoice::parse(id)?, not_blank("path", path)?.into(), content))
            }
            tools::LIST_FILES => {
                let ListFilesParams { session_id: id, path } = parse(tool, arguments)?;
                Ok(Self::ListFiles(SessionChoice::parse(id)?, path.unwrap_or_else(|| ".".into()).into()))
            }
            _ => Err(Failure::new(Kind::Validation, "unknown tool").hint("tools/list lists the tools")),
        }
    }
}

/// Deserializes the arguments of a tool or the body of a request; errors name the field.
pub(crate) fn parse<P: DeserializeOwned>(tool: &str, arguments: Value) -> Result<P, Failure> {
    serde_path_to_error::deserialize(arguments).map_err(|error| {
        let message = match error.path().to_string().as_str() {
            "." => format!("{tool}: {}", error.inner()),
            field => format!("{tool}: {field}: {}", error.inner()),
        };
        let suggestion = tolerance::suggestion(&error.inner().to_string());
        let failure = suggestion.into_iter().fold(Failure::new(Kind::Validation, message), Failure::hint);
        failure
            .hint("send only known fields, with values of the right types")
            .hint("the inputSchema of a tool in tools/list shows its fields")
    })
}

/// The failure of a request with none or both of two exclusive fields.
pub(crate) fn exactly_one_of(first: &str, second: &str) -> Failure {
    Failure::new(Kind::Validation, format!("exactly one of `{first}` and `{second}` is required"))
        .hint(format!("send `{first}` or `{second}`, not both"))
}

pub(crate) fn not_blank(field: &str, text: String) -> Result<String, Failure> {
    if text.trim().is_empty() {
        let failure = Failure::new(Kind::Validation, format!("{field} is empty"));
        return Err(failure.with("field", field).hint(format!("send a non-empty {field}")));
    }
    Ok(text)
}

fn decode(content: String, encoding: Encoding) -> Result<Vec<u8>, Failure> {
    match encoding {
        Encoding::Utf8 => Ok(content.into_bytes()),
        // Most programs break base64 into lines.
        Encoding::Base64 => STANDARD.decode(content.replace(['\n', '\r', ' '], "")).map_err(|error| {
            Failure::new(Kind::Validation, format!("content is not base64: {error}"))
                .with("field", "content")
                .hint("encode content as in RFC 4648, with padding, or send text without `encoding`")
        }),
    }
}

/// Parses a session id. An invalid one gets the same error as an unknown one.
pub(crate) fn session_id(text: String) -> Result<SessionId, Failure> {
    if (1..=MAX_SESSION_ID_BYTES).contains(&text.len()) {
        return Ok(SessionId::from_caller(text));
    }
    let shown: String = text.chars().take(MAX_SESSION_ID_BYTES).collect();
    Err(Failure::session_not_found(&SessionId::from_caller(shown)))
}

/// Parses a timeout, whose maximum is applied later.
fn bounded_timeout(seconds: f64) -> Result<Duration, Failure> {
    /// More than any maximum.
    const LONG_S: f64 = 1e9;
    timeout(seconds.min(LONG_S))
}

pub(crate) fn timeout(seconds: f64) -> Result<Duration, Failure> {
    Duration::try_from_secs_f64(seconds).ok().filter(|timeout| !timeout.is_zero()).ok_or_else(|| {
        Failure::new(Kind::Validation, "timeout must be a number of seconds greater than 0")
            .with("field", "timeout")
            .hint("omit it, or send seconds as a number, such as 30")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse_call(tool: &str, arguments: Value) -> Result<ToolCall, Failure> {
        let Value::Object(arguments) = arguments else { panic!("not an object") };
        ToolCall::parse(tool, Some(arguments))
    }

    #[test]
    fn valid_arguments_become_a_request() {
        let call = parse_call("execute_code", json!({"code": "1", "timeout": 2.5, "session_id": null})).unwrap();
        insta::assert_compact_debug_snapshot!(call, @r#"ExecuteCode(Default, CodeRequest { code: "1", template: None, flavor: None, session_id: None, timeout: Some(2.5s), host: None, questions: None, rich_html: false }, [])"#);
        assert!(matches!(ToolCall::parse("get_volume_path", None), Ok(ToolCall::GetVolumePath)));
        let call = json!({"code": "1", "servers": ["a"], "timeout": 5, "session_id": "new"});
        let call = parse_call("run_python", call).unwrap();
        insta::assert_compact_debug_snapshot!(call, @r#"RunPython(New, RunPython { code: "1", servers: ["a"], timeout: Some(5s) })"#);
        let call =
            parse_call("read_file", json!({"session_id": "s", "path": "a", "offset": 3.0, "length": 4})).unwrap();
        assert!(matches!(call, ToolCall::ReadFile(_, _, FileRange { offset: 3, length: Some(4) })));
        let call = parse_call("search_tools", json!({"query": "x"})).unwrap();
        insta::assert_compact_debug_snapshot!(call, @r#"SearchTools(SearchTools { query: "x", limit: 5 })"#);
    }

    #[test]
    fn other_forms_of_values_are_understood() {
        let empty = json!({"code": "1", "template": "", "flavor": " ", "session_id": "", "timeout": 0, "servers": []});
        let call = parse_call("execute_code", empty).unwrap();
        assert_eq!(format!("{call:?}"), format!("{:?}", parse_call("execute_code", json!({"code": "1"})).unwrap()));
        let ToolCall::ExecuteCode(_, request, servers) = parse_call(
            "execute_code",
            json!({"code": "1", "template": "python3", "timeout": " 2.5 ", "servers": "github"}),
        )
        .unwrap() else {
            panic!()
        };
        assert_eq!((request.timeout, servers), (Some(Duration::from_millis(2500)), vec!["github".to_owned()]));
        let long = parse_call("run_python", json!({"code": "1", "timeout": 1e300})).unwrap();
        assert!(
            matches!(long, ToolCall::RunPython(_, RunPython { timeout: Some(timeout), .. }) if timeout.as_secs() > 1 << 20)
        );
        let part = json!({"session_id": "s", "path": "a", "offset": "3", "length": 0});
        let part = parse_call("read_file", part).unwrap();
        assert!(matches!(part, ToolCall::ReadFile(_, _, FileRange { offset: 3, length: None })));
        let write = |encoding: &str| {
            parse_call("write_file", json!({"session_id": "s", "path": "a", "content": "", "encoding": encoding}))
        };
        assert!(["", "UTF-8", "utf8", "Base64"].into_iter().all(|encoding| write(encoding).is_ok()));
        assert!(matches!(
            parse_call("search_tools", json!({"query": "x", "limit": "7"})).unwrap(),
            ToolCall::SearchTools(SearchTools { limit: 7, .. })
        ));
        assert!(
            matches!(parse_call("list_files", json!({"session_id": "s", "path": ""})).unwrap(), ToolCall::ListFiles(_, path) if path == ".")
        );
    }

    #[test]
    fn unknown_field_is_an_error_with_the_nearest_name() {
        for (field, nearest) in [
            ("sesion_id", "session_id"),
            ("sessionId", "session_id"),
            ("language", "template"),
            ("timeout_s", "timeout"),
        ] {
            let mut arguments = json!({"code": "1"});
            arguments[field] = "x".into();
            let failure = parse_call("execute_code", arguments).unwrap_err();
            assert!(failure.message.contains(&format!("unknown field `{field}`")), "{failure}");
            assert_eq!(failure.hints[0], format!("did you mean `{nearest}`?"));
        }
        let failure = parse_call("execute_code", json!({"code": "1", "zzz": 1})).unwrap_err();
        assert!(!failure.hints[0].contains("did you mean"), "{failure:?}");
    }

    #[test]
    fn session_id_may_be_missing_or_new() {
        for (sent, expected) in [
            (json!(null), SessionChoice::Default),
            (json!(""), SessionChoice::Default),
            (json!("new"), SessionChoice::New),
            (json!("s-1"), SessionChoice::Existing(SessionId::from_caller("s-1"))),
        ] {
            let call = parse_call("list_files", json!({"session_id": sent})).unwrap();
            let ToolCall::ListFiles(choice, _) = call else { panic!("{call:?}") };
            assert_eq!(choice, expected);
        }
        let long = json!({"session_id": "x".repeat(MAX_SESSION_ID_BYTES + 1)});
        assert_eq!(parse_call("list_files", long).unwrap_err().kind, Kind::SessionNotFound);
    }

    #[test]
    fn invalid_arguments_are_explained() {
        let calls = [
            ("execute_code", json!({})),
            ("execute_code", json!({"code": " \n"})),
            ("execute_code", json!({"code": 5})),
            ("execute_code", json!({"code": "1", "lang": "python"})),
            ("execute_code", json!({"code": "1", "timeout": "soon"})),
            ("execute_code", json!({"code": "1", "timeout": -1})),
            ("execute_code", json!({"code": "1", "timeout": []})),
            ("execute_command", json!({"command": ""})),
            ("stop_session", json!({})),
            ("stop_session", json!({"session_id": ""})),
            ("get_sessions", json!({"session_id": "x".repeat(129)})),
            ("get_volume_path", json!({"x": 1})),
            ("read_file", json!({"session_id": "s"})),
            ("read_file", json!({"session_id": "s", "path": "a", "offset": -1})),
            ("read_file", json!({"session_id": "s", "path": "a", "offset": 1.5})),
            ("read_file", json!({"session_id": "s", "path": "a", "offset": "first"})),
            ("write_file", json!({"session_id": "s", "path": "", "content": ""})),
            ("write_file", json!({"session_id": "s", "path": "a", "content": "*", "encoding": "base64"})),
            ("write_file", json!({"session_id": "s", "path": "a", "content": "", "encoding": "latin1"})),
            ("rm", json!({})),
        ];
        let messages: Vec<_> =
            calls.into_iter().map(|(tool, arguments)| parse_call(tool, arguments).unwrap_err().message).collect();
        insta::assert_snapshot!(messages.join("\n"));
    }
}

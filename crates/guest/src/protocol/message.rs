//! Messages of a kernel and their parsers.
//!
//! Input is untrusted: parsing needs no more memory than the frame has bytes.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::display::{DisplayItem, MAX_DISPLAY_ITEMS, is_json};
use crate::host_call::HostRequest;

/// A message of a kernel about the cell that runs.
#[derive(Debug)]
#[cfg_attr(test, derive(PartialEq))]
pub enum Message {
    Ready,
    Display(Vec<DisplayItem>),
    Done(Done),
    /// Code calls the host.
    Call(HostRequest),
    /// Code no longer waits for the response to the call of this number.
    Cancel(u64),
}

/// An exception; its traceback has only frames of user code.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CellError {
    pub name: String,
    pub message: String,
    pub traceback: String,
}

/// The end of a cell.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub is_interrupted: bool,
    pub result: Option<String>,
    pub error: Option<CellError>,
    /// The status of a shell command, or the code that Python or JavaScript code has exited with.
    pub exit_code: Option<i32>,
    /// Part of the result or the error was left out.
    pub is_truncated: bool,
}

/// Parses a line of the bash kernel; `None` if it is malformed or not about cell `id`.
pub(super) fn parse_line(id: u64, line: &[u8]) -> Option<Message> {
    let line = std::str::from_utf8(line).ok()?;
    let (first, second) = line.split_once(' ')?;
    if first == "ready" {
        return Some(Message::Ready);
    }
    let exit_code: i32 = second.parse().ok()?;
    // The status of an interrupted shell command.
    let done = Done { is_interrupted: exit_code == 130, exit_code: Some(exit_code), ..Done::default() };
    (first.parse() == Ok(id)).then_some(Message::Done(done))
}

/// The fields of all frames. None is parsed into a tree of values, which would take many times its size.
#[derive(Deserialize)]
struct Frame<'a> {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    id: Option<u64>,
    #[serde(default, borrow)]
    items: Option<&'a RawValue>,
    #[serde(default)]
    status: Option<String>,
    #[serde(default)]
    cut: bool,
    #[serde(default)]
    result: Option<String>,
    #[serde(default, borrow)]
    error: Option<Error<'a>>,
    #[serde(default)]
    call: Option<u64>,
    #[serde(default)]
    method: Option<String>,
    #[serde(default, borrow)]
    params: Option<&'a RawValue>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Error<'a> {
    name: String,
    message: String,
    traceback: String,
    #[serde(borrow)]
    code: Option<&'a RawValue>,
}

impl Error<'_> {
    /// Returns the exit code: the given number, or 1 if code has exited with a message.
    fn exit_code(&self) -> i32 {
        let number = |text: &str| text.parse::<i64>().ok();
        let code = self.code.and_then(|code| number(code.get())).or_else(|| number(&self.message));
        code.and_then(|code| i32::try_from(code).ok()).unwrap_or(1)
    }
}

/// Parses a frame of the Python or JavaScript kernel; `None` if it is malformed or not about cell `id`. A call is returned
/// whatever cell it names: the caller reports forged ones.
pub(super) fn parse_json(id: u64, body: &[u8]) -> Option<Message> {
    let frame: Frame = serde_json::from_slice(body).ok()?;
    let is_of_this_cell = frame.id == Some(id);
    match frame.kind.as_str() {
        "ready" => Some(Message::Ready),
        "display" if is_of_this_cell => {
            let items: FirstItems = serde_json::from_str(frame.items?.get()).ok()?;
            Some(Message::Display(items.0))
        }
        "done" if is_of_this_cell => {
            let has_status = |status: &str| frame.status.as_deref() == Some(status);
            let exit_code = has_status("exited").then(|| frame.error.as_ref().map_or(1, Error::exit_code));
            let is_interrupted = has_status("interrupted");
            let error = frame.error.filter(|_| exit_code != Some(0));
            let error = error.map(|Error { name, message, traceback, .. }| CellError { name, message, traceback });
            Some(Message::Done(Done {
                is_interrupted,
                result: frame.result,
                error,
                exit_code,
                is_truncated: frame.cut,
            }))
        }
        "call" => {
            let (cell, number, method) = (frame.id?, frame.call?, frame.method?);
            let params = match frame.params {
                Some(params) => params.to_owned(),
                None => RawValue::from_string("{}".into()).ok()?,
            };
            Some(Message::Call(HostRequest { cell, number, method, params }))
        }
        "cancel" if is_of_this_cell => Some(Message::Cancel(frame.call?)),
        _ => None,
    }
}

/// The first items up to the limit; the rest is parsed and dropped.
struct FirstItems(Vec<DisplayItem>);

#[derive(Deserialize)]
struct Item<'a> {
    mime: String,
    #[serde(borrow)]
    data: &'a RawValue,
}

impl From<Item<'_>> for DisplayItem {
    fn from(Item { mime, data }: Item<'_>) -> Self {
        let data = data.get();
        let data = if is_json(&mime) { Some(data.to_owned()) } else { serde_json::from_str(data).ok() };
        Self { mime, data }
    }
}

impl<'de> Deserialize<'de> for FirstItems {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items;

        impl<'de> Visitor<'de> for Items {
            type Value = FirstItems;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<FirstItems, A::Error> {
                let mut first = Vec::new();
                while first.len() < MAX_DISPLAY_ITEMS
                    && let Some(item) = items.next_element::<Item>()?
                {
                    first.push(item.into());
                }
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(FirstItems(first))
            }
        }

        deserializer.deserialize_seq(Items)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_data_is_text_and_items_are_limited() {
        let parse = |items: &str| {
            let body = format!(r#"{{"type":"display","id":7,"items":{items}}}"#);
            let Some(Message::Display(items)) = parse_json(7, body.as_bytes()) else { return Vec::new() };
            items.into_iter().map(|item| (item.mime, item.data.unwrap_or_default())).collect()
        };
        let item = |mime: &str, data: &str| (mime.to_owned(), data.to_owned());
        let two = r#"[{"mime":"text/html","data":"<b>\u00fc"},{"mime":"application/json","data":{"b": [1, "x"]}}]"#;
        assert_eq!(parse(two), [item("text/html", "<b>ü"), item("application/json", r#"{"b": [1, "x"]}"#)]);
        let chart = r#"[{"mime":"application/vnd.chart.v5+json","data":{"mark":"bar"}}]"#;
        assert_eq!(parse(chart), [item("application/vnd.chart.v5+json", r#"{"mark":"bar"}"#)]);
        let many = format!("[{}]", vec![r#"{"mime":"a/b","data":"x"}"#; 99].join(","));
        assert_eq!(parse(&many).len(), MAX_DISPLAY_ITEMS);
        assert_eq!(parse(r#"[{"mime":"text/html","data":[1]}]"#), [item("text/html", "")], "no text");
        assert!(parse("3").is_empty() && parse("[3]").is_empty());
    }
}

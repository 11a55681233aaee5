//! What a kernel says: read without trust, and without more memory than its frame takes.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, SeqAccess, Visitor};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::display::{DisplayItem, MOST_ITEMS, is_json};
use crate::host_call::Request;

#[derive(Debug)]
#[cfg_attr(test, derive(PartialEq))]
pub enum Message {
    Ready,
    Display(Vec<DisplayItem>),
    Done(Done),
    /// Code asks the host something.
    Call(Request),
    /// It no longer waits for the answer.
    Cancel(u64),
}

/// An exception, with the user's frames only.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CellError {
    pub name: String,
    pub message: String,
    pub traceback: String,
}

/// The end of a cell. `exit_code` is the shell's, or what code has exited with.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Done {
    pub interrupted: bool,
    pub result: Option<String>,
    pub error: Option<CellError>,
    pub exit_code: Option<i32>,
    /// The result or the error is not all of it.
    pub is_cut: bool,
}

/// What a shell says of the cell `id`.
pub(crate) fn read_line(id: u64, line: &[u8]) -> Option<Message> {
    let line = std::str::from_utf8(line).ok()?;
    let (first, second) = line.split_once(' ')?;
    if first == "ready" {
        return Some(Message::Ready);
    }
    let exit_code: i32 = second.parse().ok()?;
    // 130 is what an interrupted shell command ends with.
    let done = Done { interrupted: exit_code == 130, exit_code: Some(exit_code), ..Done::default() };
    (first.parse() == Ok(id)).then_some(Message::Done(done))
}

/// A frame, as far as all of them are alike. Nothing in it becomes a tree of values, which would take many times its
/// size.
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
    /// What code has exited with: a number, or a message that means failure.
    fn exit_code(&self) -> i32 {
        let number = |text: &str| text.parse::<i64>().ok();
        let told = self.code.and_then(|code| number(code.get())).or_else(|| number(&self.message));
        told.and_then(|code| i32::try_from(code).ok()).unwrap_or(1)
    }
}

/// What a kernel of another language says of the cell `id`.
pub(crate) fn read_json(id: u64, body: &[u8]) -> Option<Message> {
    let frame: Frame = serde_json::from_slice(body).ok()?;
    let of_this_cell = frame.id == Some(id);
    match frame.kind.as_str() {
        "ready" => Some(Message::Ready),
        "display" if of_this_cell => {
            let items: FirstItems = serde_json::from_str(frame.items?.get()).ok()?;
            Some(Message::Display(items.0))
        }
        "done" if of_this_cell => {
            let is = |status: &str| frame.status.as_deref() == Some(status);
            let exit_code = is("exited").then(|| frame.error.as_ref().map_or(1, Error::exit_code));
            let interrupted = is("interrupted");
            let error = frame.error.filter(|_| exit_code != Some(0));
            let error = error.map(|Error { name, message, traceback, .. }| CellError { name, message, traceback });
            Some(Message::Done(Done { interrupted, result: frame.result, error, exit_code, is_cut: frame.cut }))
        }
        "call" => {
            let (cell, number, method) = (frame.id?, frame.call?, frame.method?);
            let params = frame.params.map_or_else(|| RawValue::from_string("{}".into()).ok(), |it| Some(it.to_owned()));
            Some(Message::Call(Request { cell, number, method, params: params? }))
        }
        "cancel" if of_this_cell => Some(Message::Cancel(frame.call?)),
        _ => None,
    }
}

/// As many as can be shown; what follows them is only read.
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
                while first.len() < MOST_ITEMS
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
    fn what_is_shown_is_text_and_no_more_than_can_be() {
        let shown = |items: &str| {
            let body = format!(r#"{{"type":"display","id":7,"items":{items}}}"#);
            let Some(Message::Display(items)) = read_json(7, body.as_bytes()) else { return Vec::new() };
            items.into_iter().map(|item| (item.mime, item.data.unwrap_or_default())).collect()
        };
        let told = |mime: &str, data: &str| (mime.to_owned(), data.to_owned());
        let two = r#"[{"mime":"text/html","data":"<b>\u00fc"},{"mime":"application/json","data":{"b": [1, "x"]}}]"#;
        assert_eq!(shown(two), [told("text/html", "<b>ü"), told("application/json", r#"{"b": [1, "x"]}"#)]);
        let chart = r#"[{"mime":"application/vnd.chart.v5+json","data":{"mark":"bar"}}]"#;
        assert_eq!(shown(chart), [told("application/vnd.chart.v5+json", r#"{"mark":"bar"}"#)]);
        let many = format!("[{}]", vec![r#"{"mime":"a/b","data":"x"}"#; 99].join(","));
        assert_eq!(shown(&many).len(), MOST_ITEMS);
        assert_eq!(shown(r#"[{"mime":"text/html","data":[1]}]"#), [told("text/html", "")], "no text");
        assert!(shown("3").is_empty() && shown("[3]").is_empty());
    }
}

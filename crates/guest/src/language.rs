//! The interpreters that keep state: how each is started, and how it is spoken to.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::json;

use super::message::{Message, read_json, read_line};
use crate::host_call::{HostAnswer, Json};
use crate::kernel_buffer::KernelBuffer;
use ringfence_core::Language;

/// Where the kernels lie in a session.
const DIRECTORY: &str = "/run/ringfence";

/// The descriptor that a kernel is given for its control channel.
const CONTROL: &str = "3";

const BASH_KERNEL: &str =
    "exec bash --noprofile --rcfile /run/ringfence/kernel.sh --noediting -i <&3 3<&- 252>&2 2<>/dev/null";

/// Starts the Python kernel where no zygote has.
const PYTHON_START: &str = include_str!("../kernels/start.py");

/// Each of Python's needs those before it at most.
const FILES: [(&str, &str); 29] = [
    ("kernel_imports.py", include_str!("../kernels/kernel_imports.py")),
    ("kernel_channel.py", include_str!("../kernels/kernel_channel.py")),
    ("kernel_compile.py", include_str!("../kernels/kernel_compile.py")),
    ("kernel_output.py", include_str!("../kernels/kernel_output.py")),
    ("kernel_stdio.py", include_str!("../kernels/kernel_stdio.py")),
    ("kernel_warmth.py", include_str!("../kernels/kernel_warmth.py")),
    ("kernel.py", include_str!("../kernels/kernel.py")),
    ("mcp_bridge_calls.py", include_str!("../kernels/mcp_bridge_calls.py")),
    ("mcp_bridge_results.py", include_str!("../kernels/mcp_bridge_results.py")),
    ("mcp_bridge_functions.py", include_str!("../kernels/mcp_bridge_functions.py")),
    ("mcp_bridge_servers.py", include_str!("../kernels/mcp_bridge_servers.py")),
    ("mcp_bridge_source.py", include_str!("../kernels/mcp_bridge_source.py")),
    ("mcp_bridge_saved.py", include_str!("../kernels/mcp_bridge_saved.py")),
    ("mcp_bridge_runtime.py", include_str!("../kernels/mcp_bridge_runtime.py")),
    ("mcp_bridge.py", include_str!("../kernels/mcp_bridge.py")),
    ("kernel.mjs", include_str!("../kernels/kernel.mjs")),
    ("kernel_controller.mjs", include_str!("../kernels/kernel_controller.mjs")),
    ("kernel_modules.mjs", include_str!("../kernels/kernel_modules.mjs")),
    ("kernel_output.mjs", include_str!("../kernels/kernel_output.mjs")),
    ("kernel_sentinel.mjs", include_str!("../kernels/kernel_sentinel.mjs")),
    ("kernel_source.mjs", include_str!("../kernels/kernel_source.mjs")),
    ("mcp_bridge.mjs", include_str!("../kernels/mcp_bridge.mjs")),
    ("mcp_docs.mjs", include_str!("../kernels/mcp_docs.mjs")),
    ("mcp_global.mjs", include_str!("../kernels/mcp_global.mjs")),
    ("mcp_saved.mjs", include_str!("../kernels/mcp_saved.mjs")),
    ("mcp_servers.mjs", include_str!("../kernels/mcp_servers.mjs")),
    ("mcp_values.mjs", include_str!("../kernels/mcp_values.mjs")),
    ("cell.sh", include_str!("../kernels/cell.sh")),
    ("kernel.sh", include_str!("../kernels/kernel.sh")),
];

/// What the kernel of a language is found in, as files of the guest. That of Python comes over its socket.
pub fn files(language: Language) -> BTreeMap<PathBuf, String> {
    let suffix = match language {
        Language::Python => return BTreeMap::new(),
        Language::Node => ".mjs",
        Language::Bash => ".sh",
    };
    let own = FILES.iter().filter(|(name, _)| name.ends_with(suffix));
    own.map(|(name, text)| (PathBuf::from(DIRECTORY).join(name), (*text).to_owned())).collect()
}

/// Those of Python, by module, in the order in which they are loaded.
pub fn python_sources() -> Vec<(&'static str, &'static str)> {
    FILES.iter().filter_map(|(name, text)| Some((name.strip_suffix(".py")?, *text))).collect()
}

/// The command that starts the kernel of a template.
pub fn command(language: Language) -> Vec<OsString> {
    let words: &[&str] = match language {
        Language::Python => &["python3", "-I", "-S", "-c", PYTHON_START, CONTROL],
        Language::Node => &["node", "/run/ringfence/kernel.mjs", CONTROL],
        Language::Bash => &["bash", "--norc", "--noprofile", "-c", BASH_KERNEL],
    };
    words.iter().map(Into::into).collect()
}

/// No kernel has reason to send more at once.
const MOST_BYTES: usize = 12 << 20;

/// In place of the number of a cell: what follows is the answer to a call of that number.
const ANSWER: u64 = 1 << 63;

/// Likewise: what follows is told before a cell.
const PREFACE: u64 = 1 << 62;

/// Up to this an answer is sent in one piece.
const SMALL_ANSWER: usize = 64 << 10;

pub fn framed(parts: &[&[u8]]) -> Vec<u8> {
    let length: usize = parts.iter().map(|part| part.len()).sum();
    [&[head(length).as_slice()], parts].concat().concat()
}

fn head(length: usize) -> [u8; 4] {
    u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes()
}

/// The bytes that tell a kernel something before a cell.
pub fn preface(language: Language, json: &str) -> Vec<u8> {
    match language {
        Language::Bash => Vec::new(),
        Language::Python => framed(&[&PREFACE.to_be_bytes(), json.as_bytes()]),
        Language::Node => framed(&[br#"{"type":"preface","#, json.as_bytes().strip_prefix(b"{").unwrap_or(b"}")]),
    }
}

/// The answer to a call, in the pieces in which it is sent: what is large is not copied.
pub fn answer(language: Language, number: u64, answer: HostAnswer) -> Vec<Json> {
    let start = match language {
        Language::Python => [(ANSWER | number).to_be_bytes().as_slice(), b"{"].concat(),
        Language::Bash | Language::Node => format!(r#"{{"type":"answer","call":{number},"#).into_bytes(),
    };
    let (key, body) = match answer {
        HostAnswer::Result(json) => (r#""result":"#, json),
        HostAnswer::Error(error) => (r#""error":"#, Box::new(error.to_string().into_bytes()) as Json),
    };
    let json = (*body).as_ref();
    if json.len() <= SMALL_ANSWER {
        return vec![Box::new(framed(&[&start, key.as_bytes(), json, b"}"]))];
    }
    let length = start.len() + key.len() + json.len() + 1;
    let before = [head(length).as_slice(), &start, key.as_bytes()].concat();
    vec![Box::new(before), body, Box::new(b"}".to_vec())]
}

/// The bytes that ask for a cell to be run.
pub fn request(language: Language, id: u64, code: &str) -> Vec<u8> {
    match language {
        Language::Bash => {
            // bash passes over them, and would wait for as many bytes more.
            let code = code.replace('\0', "");
            format!("{id} {}\n{code}", code.len()).into_bytes()
        }
        Language::Python => framed(&[&id.to_be_bytes(), code.as_bytes()]),
        Language::Node => framed(&[json!({ "type": "execute", "id": id, "code": code }).to_string().as_bytes()]),
    }
}

/// Takes the first whole message off the front of what has been received.
///
/// All of it comes from inside: what makes no sense, or is about another cell, is passed over, and `Err` means
/// that no sense can be made of this kernel any more.
pub fn next_message(language: Language, id: u64, inbox: &mut KernelBuffer) -> Result<Option<Message>, &'static str> {
    loop {
        let Some(frame) = next_frame(language, inbox)? else { return Ok(None) };
        let message = if language == Language::Bash { read_line(id, frame) } else { read_json(id, frame) };
        if message.is_some() {
            return Ok(message);
        }
        inbox.pass_over()?;
    }
}

/// Code that does nothing.
pub fn nothing(language: Language) -> &'static str {
    if language == Language::Bash { ":" } else { "" }
}

/// Drops all that was received up to the end of the answer to `id`; `false` if that is not there yet, and `Err` if it
/// never will be.
///
/// For a stream that is taken over in the middle of anything: only the id tells where sense begins.
pub fn skip_to(language: Language, id: u64, inbox: &mut KernelBuffer) -> Result<bool, &'static str> {
    let (needle, head) = match language {
        Language::Bash => (format!("{id} "), 0),
        Language::Python | Language::Node => (format!("{{\"type\":\"done\",\"id\":{id},"), 4),
    };
    let received = inbox.unread();
    let found = received.windows(needle.len()).position(|window| window == needle.as_bytes());
    // What cannot be the beginning of the answer is not kept, however much of it comes.
    let hopeless = received.len().saturating_sub(needle.len() + head);
    let start = found.and_then(|found| found.checked_sub(head));
    inbox.take(start.unwrap_or(hopeless));
    Ok(start.is_some() && next_frame(language, inbox)?.is_some())
}

fn next_frame(language: Language, inbox: &mut KernelBuffer) -> Result<Option<&[u8]>, &'static str> {
    let received = inbox.unread();
    if language == Language::Bash {
        return match received.iter().position(|byte| *byte == b'\n') {
            Some(end) => Ok(Some(&inbox.take(end + 1)[..end])),
            None if received.len() > 4096 => Err("an endless line on the shell's control channel"),
            None => Ok(None),
        };
    }
    let Some((length, body)) = received.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_be_bytes(*length) as usize;
    if length > MOST_BYTES {
        return Err("a frame that is too large on the control channel");
    }
    if body.len() < length {
        return Ok(None);
    }
    Ok(Some(&inbox.take(4 + length)[4..]))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::{Just, any, prop_assert_eq, prop_oneof, proptest};

    use super::super::message::Done;
    use super::*;

    fn frame(text: &str) -> Vec<u8> {
        [&u32::try_from(text.len()).unwrap().to_be_bytes(), text.as_bytes()].concat()
    }

    #[test]
    fn only_what_is_about_this_cell_is_heard() {
        let mut received = Vec::new();
        for text in [
            r#"{"type":"done","id":6,"status":"ok","result":"stale"}"#,
            r#"{"type":"nonsense"}"#,
            "not json",
            r#"{"type":"done","id":7,"status":"ok","result":"42","error":null}"#,
        ] {
            received.extend(frame(text));
        }
        received.extend([0, 0]);
        let mut received = KernelBuffer::from(received);
        let done = Done { result: Some("42".into()), ..Done::default() };
        assert_eq!(next_message(Language::Python, 7, &mut received), Ok(Some(Message::Done(done))));
        assert_eq!(next_message(Language::Python, 7, &mut received), Ok(None));
        assert_eq!(received.unread(), [0, 0], "a frame that has begun is kept");
    }

    #[test]
    fn a_stream_is_taken_over_in_the_middle_of_a_frame() {
        let mut received = KernelBuffer::from(br#"lf of a frame "id":7,"status":"ok"}"#.to_vec());
        received.room(0).extend(frame(r#"{"type":"display","id":7,"items":[]}"#));
        assert_eq!(skip_to(Language::Python, 9, &mut received), Ok(false));
        let done = frame(r#"{"type":"done","id":9,"status":"ok","result":null,"error":null}"#);
        received.room(0).extend(&done[..done.len() - 5]);
        assert_eq!(skip_to(Language::Python, 9, &mut received), Ok(false), "the answer has only begun");
        received.room(0).extend(&done[done.len() - 5..]);
        assert_eq!(skip_to(Language::Python, 9, &mut received), Ok(true));
        assert!(received.unread().is_empty());
        let mut received = KernelBuffer::from(b"0\n8 1".to_vec());
        assert_eq!(skip_to(Language::Bash, 9, &mut received), Ok(false));
        received.room(0).extend(b"30\n9 0\n");
        assert_eq!(skip_to(Language::Bash, 9, &mut received), Ok(true));
        assert!(received.unread().is_empty());
    }

    #[test]
    fn a_frame_without_end_condemns_the_kernel() {
        assert!(next_message(Language::Python, 1, &mut vec![0xff; 8].into()).is_err());
        assert!(next_message(Language::Bash, 1, &mut vec![b'x'; 5000].into()).is_err());
        let endless = [b"\xff\xff\xff\xff{\"type\":\"done\",\"id\":9,", [b' '; 99].as_slice()].concat();
        assert!(skip_to(Language::Node, 9, &mut endless.into()).is_err());
    }

    #[test]
    fn code_that_exits_has_a_code_and_failed_unless_that_is_zero() {
        let exited = |message: &str| {
            let said = format!(
                r#"{{"type":"done","id":7,"status":"exited","error":{{"name":"SystemExit","message":{message}}}}}"#
            );
            match next_message(Language::Python, 7, &mut frame(&said).into()) {
                Ok(Some(Message::Done(done))) => (done.exit_code, done.error.map(|error| error.message)),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(exited("\"0\""), (Some(0), None));
        assert_eq!(exited("\"3\""), (Some(3), Some("3".into())));
        assert_eq!(exited("\"no such file\""), (Some(1), Some("no such file".into())));
        assert_eq!(exited("\"0\",\"code\":1"), (Some(1), Some("0".into())));
        assert_eq!(exited("\"False\",\"code\":0"), (Some(0), None));
    }

    #[test]
    fn a_kernel_that_only_says_what_makes_no_sense_is_condemned() {
        let mut received = KernelBuffer::from(frame("").repeat(1000));
        assert_eq!(next_message(Language::Python, 1, &mut received), Ok(None));
        received.room(0).extend(frame(""));
        assert!(next_message(Language::Python, 1, &mut received).is_err());
        received.forgive();
        assert_eq!(next_message(Language::Python, 1, &mut received), Ok(None));
    }

    #[test]
    fn a_request_is_framed_as_its_kernel_reads_it() {
        assert_eq!(request(Language::Python, 7, "ü"), b"\0\0\0\x0a\0\0\0\0\0\0\0\x07\xc3\xbc");
        let asked = request(Language::Node, 7, "1");
        assert_eq!(asked, frame(r#"{"type":"execute","id":7,"code":"1"}"#));
    }

    #[test]
    fn a_call_is_heard_whatever_cell_it_names() {
        let mut received = frame(r#"{"type":"call","id":6,"call":3,"method":"tools/call","params":{"b":1, "a":2}}"#);
        received.extend(frame(r#"{"type":"call","id":7,"call":-1,"method":"x"}"#));
        received.extend(frame(r#"{"type":"cancel","id":6,"call":3}"#));
        received.extend(frame(r#"{"type":"cancel","id":7,"call":4}"#));
        let mut received = KernelBuffer::from(received);
        let Ok(Some(Message::Call(call))) = next_message(Language::Python, 7, &mut received) else { panic!("no call") };
        assert_eq!((call.cell, call.number, call.params.get()), (6, 3, r#"{"b":1, "a":2}"#));
        assert_eq!(next_message(Language::Python, 7, &mut received), Ok(Some(Message::Cancel(4))));
    }

    #[test]
    fn a_preface_is_told_in_the_kernels_own_way() {
        assert_eq!(preface(Language::Node, r#"{"servers":[]}"#), frame(r#"{"type":"preface","servers":[]}"#));
        assert_eq!(preface(Language::Python, "{}"), b"\0\0\0\x0a\x40\0\0\0\0\0\0\0{}");
        assert!(preface(Language::Bash, "{}").is_empty());
    }

    #[test]
    fn the_shell_speaks_in_lines() {
        let mut received = KernelBuffer::from(b"ready 5.2\n4 0\n5 3\n".to_vec());
        assert_eq!(next_message(Language::Bash, 5, &mut received), Ok(Some(Message::Ready)));
        let done = Done { exit_code: Some(3), ..Done::default() };
        assert_eq!(next_message(Language::Bash, 5, &mut received), Ok(Some(Message::Done(done))));
        assert_eq!(request(Language::Bash, 5, "echo ü\0"), "5 7\necho ü".as_bytes());
    }

    /// All that a kernel is heard to say, and whether it is condemned in the end.
    fn heard(language: Language, pieces: impl Iterator<Item = Vec<u8>>) -> (Vec<String>, bool) {
        let (mut inbox, mut heard) = (KernelBuffer::default(), Vec::new());
        for piece in pieces {
            inbox.room(piece.len()).extend(piece);
            loop {
                match next_message(language, 7, &mut inbox) {
                    Ok(Some(message)) => heard.push(format!("{message:?}")),
                    Ok(None) => break,
                    Err(_) => return (heard, true),
                }
            }
        }
        (heard, false)
    }

    proptest! {
        #[test]
        fn it_does_not_matter_in_which_pieces_a_kernel_speaks(
            words in vec(prop_oneof![
                Just(frame(r#"{"type":"done","id":7,"status":"ok","result":"1"}"#)),
                Just(frame(r#"{"type":"display","id":7,"items":[{"mime":"a/b","data":"x"}]}"#)),
                Just(frame(r#"{"type":"call","id":7,"call":1,"method":"x"}"#)),
                Just(b"7 0\n".to_vec()),
                vec(any::<u8>(), 0..12),
            ], 0..12),
            size in 1_usize..40,
        ) {
            let said = words.concat();
            for language in [Language::Python, Language::Node, Language::Bash] {
                let at_once = heard(language, std::iter::once(said.clone()));
                prop_assert_eq!(heard(language, said.chunks(size).map(<[u8]>::to_vec)), at_once);
                for id in [7, u64::MAX] {
                    let _ = skip_to(language, id, &mut said.clone().into());
                }
            }
        }
    }
}

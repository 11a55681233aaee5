//! Searches a running sandbox from outside.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use ringfence_testkit::process;
use serde_json::{Value, json};

const PROGRAM: &str = include_str!("search.py");

/// What the search has found.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) processes: u64,
    pub(super) bytes: u64,
    /// Names of texts, with the parts of the sandbox in which they are.
    pub(super) texts: Vec<(String, String)>,
}

impl Found {
    /// Returns the parts in which a text is, in any form.
    pub(super) fn parts(&self, name: &str) -> Vec<&str> {
        let is_text = |found: &str| found.split(' ').next() == Some(name);
        self.texts.iter().filter(|(found, _)| is_text(found)).map(|(_, part)| part.as_str()).collect()
    }
}

/// Searches the sandbox with this PID namespace for texts, in plain and encoded. Must run as root.
pub(super) fn search(namespace: &str, texts: &[(&str, &str)]) -> Found {
    run(&json!({"namespace": namespace, "texts": all_forms(texts)}))
}

/// Searches the memory of one process for texts, and returns the names of those that are in it, in any form. Must run as
/// root.
pub(super) fn search_memory_of(pid: u32, texts: &[(&str, &str)]) -> Vec<String> {
    let found = run(&json!({"process": pid, "texts": all_forms(texts)}));
    assert!(found.processes == 1 && found.bytes > 1 << 20, "{found:?}");
    let is_found = |(name, _): &&(&str, &str)| !found.parts(name).is_empty();
    texts.iter().filter(is_found).map(|(name, _)| (*name).to_owned()).collect()
}

fn all_forms(texts: &[(&str, &str)]) -> serde_json::Map<String, Value> {
    texts.iter().flat_map(|(name, text)| forms(name, text)).map(|(name, text)| (name, json!(text))).collect()
}

fn run(input: &Value) -> Found {
    let mut command = Command::new("python3");
    command.args(["-I", "-c", PROGRAM]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let outcome = process::run_with_input(&mut command, input.to_string().as_bytes());
    assert_eq!(outcome.code, 0, "{}", outcome.stderr);
    let found: Value = serde_json::from_str(&outcome.text()).expect("valid JSON");
    let number = |name: &str| found[name].as_u64().expect("a number");
    let texts = serde_json::from_value(found["found"].clone()).expect("pairs");
    Found { processes: number("processes"), bytes: number("bytes"), texts }
}

/// Returns a text, its percent-encoding, and the characters of its base64 that do not depend on the bytes around it.
fn forms(name: &str, text: &str) -> Vec<(String, String)> {
    let encode = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    let percent: String = text.bytes().map(encode).collect();
    let mut forms = vec![
        (format!("{name} plain"), text.to_owned()),
        (format!("{name} percent"), percent.clone()),
        (
            format!("{name} percent, lower case"),
            percent.replace("%2B", "%2b").replace("%2F", "%2f").replace("%3D", "%3d"),
        ),
    ];
    for offset in 0..3 {
        let shifted = format!("{}{text}", &"   "[..offset]);
        let whole = &shifted.as_bytes()[..shifted.len() / 3 * 3];
        let skipped = if offset == 0 { 0 } else { 4 };
        for (alphabet, special) in [("base64", b"+/"), ("base64url", b"-_")] {
            forms.push((format!("{name} {alphabet} {offset}"), base64(whole, *special)[skipped..].to_owned()));
        }
    }
    forms
}

/// Encodes bytes whose number is a multiple of three.
fn base64(bytes: &[u8], special: [u8; 2]) -> String {
    let alphabet: Vec<u8> = (b'A'..=b'Z').chain(b'a'..=b'z').chain(b'0'..=b'9').chain(special).collect();
    let groups = bytes.chunks_exact(3).map(|group| u32::from_be_bytes([0, group[0], group[1], group[2]]));
    let digits = groups.flat_map(|group| [18, 12, 6, 0].map(|shift| alphabet[(group >> shift & 63) as usize]));
    digits.map(char::from).collect()
}

/// Returns the PID namespace of a process whose command line contains a text, and which is not in that of this process.
pub(super) fn namespace_of(text: &str) -> Option<String> {
    let namespace = |pid: &str| fs::read_link(PathBuf::from(format!("/proc/{pid}/ns/pid"))).ok();
    let ours = namespace("self");
    let is_it = |pid: &u32| {
        let arguments = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&arguments).contains(text) && namespace(&pid.to_string()) != ours
    };
    let found = process::all().into_iter().find(is_it)?;
    namespace(&found.to_string()).map(|namespace| namespace.display().to_string())
}

#[test]
fn forms_of_a_text() {
    let expected = |form: &str| match form {
        "x plain" => "a/b?c>=",
        "x percent" => "a%2Fb%3Fc%3E%3D",
        "x base64 0" => "YS9iP2M+",
        "x base64url 0" => "YS9iP2M-",
        "x base64 1" | "x base64url 1" => "Yj9j",
        "x base64 2" => "L2I/Yz49",
        "x base64url 2" => "L2I_Yz49",
        _ => "",
    };
    for (name, form) in forms("x", "a/b?c>=") {
        assert!(form == expected(&name) || name.ends_with("lower case"), "{name}: {form}");
    }
}

//! Compiles the seccomp profiles under `profiles/` to BPF, so that starting a sandbox only loads bytes.
//!
//! A profile has groups of system calls, each with the reason why it is there. `guest.json` becomes
//! two programs: an allow list that answers ENOSYS to the rest, and a refuse list that answers EPERM.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use seccompiler::{BpfProgram, TargetArch, compile_from_json};
use serde::Deserialize;
use serde_json::{Value, json};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    #[serde(rename = "about")]
    _about: String,
    allow: Vec<Group>,
    refuse: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    reason: String,
    #[serde(default)]
    syscalls: Vec<String>,
    /// Calls that only `x86_64` has.
    #[serde(default)]
    legacy: Vec<String>,
    /// Any of these alternatives must hold; each is a list of conditions that must all hold.
    #[serde(default)]
    when: Vec<Vec<Condition>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Condition {
    arg: u8,
    #[serde(default)]
    width: Option<String>,
    #[serde(default)]
    mask: Option<String>,
    #[serde(default)]
    equals: Option<String>,
    #[serde(default)]
    differs: Option<String>,
}

impl Condition {
    fn to_json(&self) -> Value {
        let (operator, value) = match (&self.mask, &self.equals, &self.differs) {
            (None, Some(value), None) => (json!("eq"), value),
            (None, None, Some(value)) => (json!("ne"), value),
            (Some(mask), Some(value), None) => (json!({ "masked_eq": number(mask) }), value),
            _ => panic!("argument {}: give `equals` (with or without `mask`) or `differs`", self.arg),
        };
        json!({
            "index": self.arg,
            "type": self.width.as_deref().unwrap_or("dword"),
            "op": operator,
            "val": number(value),
        })
    }
}

fn number(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("not a number: {text}"))
}

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let guest = load("guest");
    reject_repeats(&guest);
    write("guest-allow", &compile(&guest.allow, "allow", &json!({ "errno": ENOSYS })));
    write("guest-refuse", &compile(&guest.refuse, json!({ "errno": EPERM }), &json!("allow")));
    for name in ["without-memory-cgroup", "without-cpu-cgroup"] {
        write(name, &compile(&load(name).refuse, json!({ "errno": EPERM }), &json!("allow")));
    }
}

/// The same numbers on every architecture that we build for.
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;

fn load(name: &str) -> Profile {
    let path = Path::new("profiles").join(name).with_extension("json");
    println!("cargo::rerun-if-changed={}", path.display());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// A call named twice would be judged by two reasons; conditions would silently be widened.
fn reject_repeats(profile: &Profile) {
    let mut seen = BTreeMap::new();
    for group in profile.allow.iter().chain(&profile.refuse) {
        assert!(!group.reason.is_empty(), "a group has no reason: {:?}", group.syscalls);
        for name in group.syscalls.iter().chain(&group.legacy) {
            if let Some(other) = seen.insert(name, &group.reason) {
                panic!("{name} stands in two groups: {other:?} and {:?}", group.reason);
            }
        }
    }
}

fn compile(groups: &[Group], on_match: impl Into<Value>, otherwise: &Value) -> BpfProgram {
    let arch = std::env::var("CARGO_CFG_TARGET_ARCH").expect("cargo sets the target's architecture");
    let mut rules = Vec::new();
    for group in groups {
        let legacy = group.legacy.iter().filter(|_| arch == "x86_64");
        for name in group.syscalls.iter().chain(legacy) {
            if group.when.is_empty() {
                rules.push(json!({ "syscall": name }));
            }
            for conditions in &group.when {
                let args: Vec<Value> = conditions.iter().map(Condition::to_json).collect();
                rules.push(json!({ "syscall": name, "args": args }));
            }
        }
    }
    let filter = json!({ "filter": {
        "mismatch_action": otherwise,
        "match_action": on_match.into(),
        "filter": rules,
    }});
    let target = TargetArch::try_from(arch.as_str()).expect("an architecture with a seccomp table");
    compile_from_json(filter.to_string().as_bytes(), target)
        .expect("the profile compiles")
        .remove("filter")
        .expect("one filter goes in, one comes out")
}

fn write(name: &str, program: &BpfProgram) {
    let bytes: Vec<u8> = program
        .iter()
        .flat_map(|step| {
            let [c0, c1] = step.code.to_ne_bytes();
            let [k0, k1, k2, k3] = step.k.to_ne_bytes();
            [c0, c1, step.jt, step.jf, k0, k1, k2, k3]
        })
        .collect();
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(directory.join(name).with_extension("bpf"), bytes).expect("the program is written");
}

//! Compiles the seccomp profiles under `profiles/` to BPF, so that starting a sandbox only loads bytes.
//!
//! A profile has groups of system calls, each with the reason why it is there. A call under `allow` is
//! allowed, one under `refuse` is answered EPERM, or what its group says.
#![allow(clippy::print_stdout)] // it is how a build script talks to cargo

mod bpf;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use bpf::{Condition, Verdict};

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
    when: Vec<Vec<ConditionText>>,
    /// What is answered where none does, and to calls that are refused.
    #[serde(default)]
    otherwise: Errno,
}

#[derive(Deserialize, Default, Clone, Copy)]
enum Errno {
    /// The call is not made, and the caller is told that it was.
    #[serde(rename = "ignore")]
    Ignore = 0,
    #[default]
    #[serde(rename = "EPERM")]
    NotPermitted = 1,
    #[serde(rename = "ENOSYS")]
    NotImplemented = 38,
    #[serde(rename = "EAFNOSUPPORT")]
    FamilyNotSupported = 97,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionText {
    arg: u8,
    /// The upper 32 bits of the argument, where a pointer must be seen whole.
    #[serde(default)]
    upper: bool,
    #[serde(default)]
    mask: Option<String>,
    #[serde(default)]
    equals: Option<String>,
    #[serde(default)]
    differs: Option<String>,
}

impl ConditionText {
    fn read(&self) -> Condition {
        let (value, equal) = match (&self.equals, &self.differs) {
            (Some(value), None) => (value, true),
            (None, Some(value)) => (value, false),
            _ => panic!("argument {}: give either `equals` or `differs`", self.arg),
        };
        Condition {
            argument: self.arg,
            upper: self.upper,
            mask: self.mask.as_deref().map_or(u32::MAX, number),
            value: number(value),
            equal,
        }
    }
}

fn number(text: &str) -> u32 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("not a number: {text}"))
}

/// The target, by the number that seccomp gives it (linux/audit.h) and its table of system calls.
#[derive(Clone, Copy)]
enum Architecture {
    X86_64,
    Aarch64,
}

impl Architecture {
    fn of_target() -> Self {
        match std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() {
            Ok("x86_64") => Self::X86_64,
            Ok("aarch64") => Self::Aarch64,
            other => panic!("no system call table for {other:?}"),
        }
    }

    fn audit_number(self) -> u32 {
        match self {
            Self::X86_64 => 0xc000_003e,
            Self::Aarch64 => 0xc000_00b7,
        }
    }

    fn syscall(self, name: &str) -> u32 {
        let name = match (self, name) {
            // The table calls it by the kernel's name for it there.
            (Self::Aarch64, "newfstatat") => "fstatat",
            (_, name) => name,
        };
        let number = match self {
            Self::X86_64 => syscalls::x86_64::Sysno::from_str(name).ok().map(|call| call.id()),
            Self::Aarch64 => syscalls::aarch64::Sysno::from_str(name).ok().map(|call| call.id()),
        };
        let number = number.unwrap_or_else(|| panic!("no system call is named {name} here"));
        number.try_into().expect("system calls have small numbers")
    }
}

fn main() {
    println!("cargo::rerun-if-changed=build");
    write("guest", &Verdict::Errno(Errno::NotImplemented as u16));
    write("without-memory-cgroup", &Verdict::Allow);
    write("without-cpu-cgroup", &Verdict::Allow);
}

fn load(name: &str) -> Profile {
    let path = Path::new("profiles").join(name).with_extension("json");
    println!("cargo::rerun-if-changed={}", path.display());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn table(profile: &Profile, architecture: Architecture) -> BTreeMap<u32, Verdict> {
    let mut table = BTreeMap::new();
    let allowed = profile.allow.iter().map(|group| (group, allow(group)));
    let refused = profile.refuse.iter().map(|group| (group, Verdict::Errno(group.otherwise as u16)));
    for (group, verdict) in allowed.chain(refused) {
        assert!(!group.reason.is_empty(), "a group has no reason: {:?}", group.syscalls);
        let legacy = group.legacy.iter().filter(|_| matches!(architecture, Architecture::X86_64));
        for name in group.syscalls.iter().chain(legacy) {
            let earlier = table.insert(architecture.syscall(name), verdict.clone());
            assert!(earlier.is_none(), "{name} stands in two groups");
        }
    }
    table
}

fn allow(group: &Group) -> Verdict {
    if group.when.is_empty() {
        return Verdict::Allow;
    }
    let read = |conditions: &Vec<ConditionText>| conditions.iter().map(ConditionText::read).collect();
    Verdict::When { alternatives: group.when.iter().map(read).collect(), otherwise: group.otherwise as u16 }
}

fn write(name: &str, default: &Verdict) {
    let profile = load(name);
    // A name that one architecture lacks is found on every machine that builds this.
    for architecture in [Architecture::X86_64, Architecture::Aarch64] {
        table(&profile, architecture);
    }
    let architecture = Architecture::of_target();
    let program = bpf::compile(architecture.audit_number(), &table(&profile, architecture), default);
    let bytes: Vec<u8> = program
        .into_iter()
        .flat_map(|(code, if_true, if_false, operand)| {
            let [c0, c1] = code.to_ne_bytes();
            let [k0, k1, k2, k3] = operand.to_ne_bytes();
            [c0, c1, if_true, if_false, k0, k1, k2, k3]
        })
        .collect();
    let directory = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    std::fs::write(directory.join(name).with_extension("bpf"), bytes).expect("the program is written");
}

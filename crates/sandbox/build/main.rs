//! Compiles the seccomp profiles under `profiles/` to BPF, so that starting a sandbox only loads bytes.
//!
//! A profile has groups of system calls, each with a reason. A call under `allow` is allowed if any alternative of
//! `when` is true, and otherwise gets the group's answer; the rules under `but` are checked first, each with its own
//! answer. A call under `refuse` gets EPERM, or its group's answer. The init decides about calls under `ask`.
//!
//! Profiles with stricter rules for some hosts are merged with the general one at build time: a sandbox has one filter,
//! because the memory for compiled filters is limited for the whole host (`net.core.bpf_jit_limit`).
#![allow(clippy::print_stdout)] // it is how a build script talks to cargo

mod bpf;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use bpf::{Answer, Condition, Rule, Verdict};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    #[serde(rename = "about")]
    _about: String,
    #[serde(default)]
    allow: Vec<Group>,
    #[serde(default)]
    ask: Vec<Group>,
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
    /// Rules that are checked first.
    #[serde(default)]
    but: Vec<RuleText>,
    /// Any of these alternatives must be true; each is a list of conditions that must all be true.
    #[serde(default)]
    when: Vec<Vec<ConditionText>>,
    /// The answer if no alternative is true, and for refused calls.
    #[serde(default)]
    otherwise: AnswerText,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    reason: String,
    when: Vec<Vec<ConditionText>>,
    answer: AnswerText,
}

#[derive(Deserialize, Default, Clone, Copy)]
enum AnswerText {
    /// The call is not made and reports success.
    #[serde(rename = "ignore")]
    Ignore,
    #[serde(rename = "ask-init")]
    AskInit,
    #[default]
    #[serde(rename = "EPERM")]
    NotPermitted,
    #[serde(rename = "EINVAL")]
    Invalid,
    #[serde(rename = "ENOTTY")]
    NotATerminal,
    #[serde(rename = "ENOSYS")]
    NotImplemented,
    #[serde(rename = "EOPNOTSUPP")]
    NotSupported,
    #[serde(rename = "EAFNOSUPPORT")]
    FamilyNotSupported,
}

impl AnswerText {
    fn read(self) -> Answer {
        match self {
            Self::Ignore => Answer::Errno(0),
            Self::AskInit => Answer::AskInit,
            Self::NotPermitted => Answer::Errno(1),
            Self::Invalid => Answer::Errno(22),
            Self::NotATerminal => Answer::Errno(25),
            Self::NotImplemented => Answer::Errno(38),
            Self::NotSupported => Answer::Errno(95),
            Self::FamilyNotSupported => Answer::Errno(97),
        }
    }
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
    #[serde(default, rename = "in")]
    one_of: Option<Vec<String>>,
}

impl ConditionText {
    fn read(&self) -> Condition {
        let (values, is_member) = match (&self.equals, &self.differs, &self.one_of) {
            (Some(value), None, None) => (std::slice::from_ref(value), true),
            (None, Some(value), None) => (std::slice::from_ref(value), false),
            (None, None, Some(values)) if !values.is_empty() => (&values[..], true),
            _ => panic!("argument {}: give one of `equals`, `differs` and `in`", self.arg),
        };
        Condition {
            argument: self.arg,
            upper: self.upper,
            mask: self.mask.as_deref().map_or(u32::MAX, number),
            values: values.iter().map(|value| number(value)).collect(),
            is_member,
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
    let guest = load("guest");
    let without_memory = load("without-memory-cgroup");
    let without_cpu = load("without-cpu-cgroup");
    write("guest", &[&guest]);
    write("guest-without-memory-cgroup", &[&guest, &without_memory]);
    write("guest-without-cpu-cgroup", &[&guest, &without_cpu]);
    write("guest-without-cgroups", &[&guest, &without_memory, &without_cpu]);
}

fn load(name: &str) -> Profile {
    let path = Path::new("profiles").join(name).with_extension("json");
    println!("cargo::rerun-if-changed={}", path.display());
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The verdicts of the first profile, replaced by those of the others.
fn merge(profiles: &[&Profile], architecture: Architecture) -> BTreeMap<u32, Verdict> {
    let mut tables = profiles.iter().map(|profile| table(profile, architecture));
    let mut merged = tables.next().expect("there is a general profile");
    for (stricter, profile) in tables.zip(&profiles[1..]) {
        assert!(profile.allow.is_empty() && profile.ask.is_empty(), "a stricter profile only refuses");
        merged.extend(stricter);
    }
    merged
}

fn table(profile: &Profile, architecture: Architecture) -> BTreeMap<u32, Verdict> {
    let mut table = BTreeMap::new();
    let allowed = profile.allow.iter().map(|group| (group, allow(group)));
    let asked = profile.ask.iter().map(|group| (group, Verdict::always(Answer::AskInit)));
    let refused = profile.refuse.iter().map(|group| (group, Verdict::always(group.otherwise.read())));
    for (group, verdict) in allowed.chain(asked).chain(refused) {
        let has_reasons = !group.reason.is_empty() && group.but.iter().all(|rule| !rule.reason.is_empty());
        assert!(has_reasons, "a group has no reason: {:?}", group.syscalls);
        let legacy = group.legacy.iter().filter(|_| matches!(architecture, Architecture::X86_64));
        for name in group.syscalls.iter().chain(legacy) {
            let earlier = table.insert(architecture.syscall(name), verdict.clone());
            assert!(earlier.is_none(), "{name} is in two groups");
        }
    }
    table
}

fn allow(group: &Group) -> Verdict {
    let read = |when: &Vec<Vec<ConditionText>>| -> Vec<Vec<Condition>> {
        when.iter().map(|conditions| conditions.iter().map(ConditionText::read).collect()).collect()
    };
    let rule = |rule: &RuleText| Rule { alternatives: read(&rule.when), answer: rule.answer.read() };
    let mut rules: Vec<Rule> = group.but.iter().map(rule).collect();
    if group.when.is_empty() {
        return Verdict { rules, otherwise: Answer::Allow };
    }
    rules.push(Rule { alternatives: read(&group.when), answer: Answer::Allow });
    Verdict { rules, otherwise: group.otherwise.read() }
}

fn write(name: &str, profiles: &[&Profile]) {
    // A name that one architecture lacks is found on every machine that builds this.
    for architecture in [Architecture::X86_64, Architecture::Aarch64] {
        merge(profiles, architecture);
    }
    let architecture = Architecture::of_target();
    let default = Verdict::always(AnswerText::NotImplemented.read());
    let program = bpf::compile(architecture.audit_number(), &merge(profiles, architecture), &default);
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

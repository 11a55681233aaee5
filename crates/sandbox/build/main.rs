//! Compiles the seccomp profiles in `profiles/` to BPF, so that the start of a sandbox only loads bytes.
//!
//! A profile has groups of system calls, each with a reason:
//! - `allow`: the call is allowed if any alternative of `when` is true, and otherwise gets the action `otherwise`. The
//!   rules under `exceptions` are checked first, each with its own action.
//! - `notify`: the call is passed to the init of the sandbox, which decides.
//! - `deny`: the call gets the action `otherwise`, which is EPERM by default.
//!
//! Names under `x86_64_only` are system calls that other architectures do not have.
//!
//! Profiles with stricter rules for some hosts are merged with the general profile at build time: a sandbox has one
//! filter, because the host's memory for compiled filters is limited (`net.core.bpf_jit_limit`).
#![allow(clippy::print_stdout)] // build scripts write instructions for cargo to stdout

mod bpf;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;

use bpf::{Action, CallRules, Condition, Rule};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Profile {
    #[serde(rename = "description")]
    _description: String,
    #[serde(default)]
    allow: Vec<Group>,
    #[serde(default)]
    notify: Vec<Group>,
    deny: Vec<Group>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Group {
    reason: String,
    #[serde(default)]
    syscalls: Vec<String>,
    #[serde(default)]
    x86_64_only: Vec<String>,
    #[serde(default)]
    exceptions: Vec<RuleText>,
    /// Any of these alternatives must be true; each is a list of conditions that must all be true.
    #[serde(default)]
    when: Vec<Vec<ConditionText>>,
    #[serde(default)]
    otherwise: ActionText,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleText {
    reason: String,
    when: Vec<Vec<ConditionText>>,
    action: ActionText,
}

#[derive(Deserialize, Default, Clone, Copy)]
enum ActionText {
    /// The call is not executed and reports success.
    #[serde(rename = "ignore")]
    Ignore,
    #[serde(rename = "notify-init")]
    NotifyInit,
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

impl ActionText {
    fn parse(self) -> Action {
        match self {
            Self::Ignore => Action::Errno(0),
            Self::NotifyInit => Action::NotifyInit,
            Self::NotPermitted => Action::Errno(1),
            Self::Invalid => Action::Errno(22),
            Self::NotATerminal => Action::Errno(25),
            Self::NotImplemented => Action::Errno(38),
            Self::NotSupported => Action::Errno(95),
            Self::FamilyNotSupported => Action::Errno(97),
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConditionText {
    arg: u8,
    /// Compare the upper 32 bits of the argument. Pointers need conditions on both halves.
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
    fn parse(&self) -> Condition {
        let (values, is_member) = match (&self.equals, &self.differs, &self.one_of) {
            (Some(value), None, None) => (std::slice::from_ref(value), true),
            (None, Some(value), None) => (std::slice::from_ref(value), false),
            (None, None, Some(values)) if !values.is_empty() => (&values[..], true),
            _ => panic!("argument {}: needs exactly one of `equals`, `differs` and `in`", self.arg),
        };
        Condition {
            argument: self.arg,
            upper: self.upper,
            mask: self.mask.as_deref().map_or(u32::MAX, parse_number),
            values: values.iter().map(|value| parse_number(value)).collect(),
            is_member,
        }
    }
}

fn parse_number(text: &str) -> u32 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|_| panic!("not a number: {text}"))
}

/// An architecture, with its number in seccomp (linux/audit.h) and its table of system calls.
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
            // The table has the kernel's name of the call on this architecture.
            (Self::Aarch64, "newfstatat") => "fstatat",
            (_, name) => name,
        };
        let number = match self {
            Self::X86_64 => syscalls::x86_64::Sysno::from_str(name).ok().map(|call| call.id()),
            Self::Aarch64 => syscalls::aarch64::Sysno::from_str(name).ok().map(|call| call.id()),
        };
        let number = number.unwrap_or_else(|| panic!("unknown system call {name}"));
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

/// Returns the rules of the first profile, with the rules of the others replacing them.
fn merge(profiles: &[&Profile], architecture: Architecture) -> BTreeMap<u32, CallRules> {
    let mut tables = profiles.iter().map(|profile| table(profile, architecture));
    let mut merged = tables.next().expect("the general profile");
    for (stricter, profile) in tables.zip(&profiles[1..]) {
        assert!(profile.allow.is_empty() && profile.notify.is_empty(), "a stricter profile only denies");
        merged.extend(stricter);
    }
    merged
}

fn table(profile: &Profile, architecture: Architecture) -> BTreeMap<u32, CallRules> {
    let mut table = BTreeMap::new();
    let allowed = profile.allow.iter().map(|group| (group, allow(group)));
    let notified = profile.notify.iter().map(|group| (group, CallRules::always(Action::NotifyInit)));
    let denied = profile.deny.iter().map(|group| (group, CallRules::always(group.otherwise.parse())));
    for (group, rules) in allowed.chain(notified).chain(denied) {
        let has_reasons = !group.reason.is_empty() && group.exceptions.iter().all(|rule| !rule.reason.is_empty());
        assert!(has_reasons, "a group has no reason: {:?}", group.syscalls);
        let x86_64_only = group.x86_64_only.iter().filter(|_| matches!(architecture, Architecture::X86_64));
        for name in group.syscalls.iter().chain(x86_64_only) {
            let earlier = table.insert(architecture.syscall(name), rules.clone());
            assert!(earlier.is_none(), "{name} is in two groups");
        }
    }
    table
}

fn allow(group: &Group) -> CallRules {
    let parse = |when: &Vec<Vec<ConditionText>>| -> Vec<Vec<Condition>> {
        when.iter().map(|conditions| conditions.iter().map(ConditionText::parse).collect()).collect()
    };
    let rule = |rule: &RuleText| Rule { alternatives: parse(&rule.when), action: rule.action.parse() };
    let mut rules: Vec<Rule> = group.exceptions.iter().map(rule).collect();
    if group.when.is_empty() {
        return CallRules { rules, otherwise: Action::Allow };
    }
    rules.push(Rule { alternatives: parse(&group.when), action: Action::Allow });
    CallRules { rules, otherwise: group.otherwise.parse() }
}

fn write(name: &str, profiles: &[&Profile]) {
    // Every build checks the names for both architectures.
    for architecture in [Architecture::X86_64, Architecture::Aarch64] {
        merge(profiles, architecture);
    }
    let architecture = Architecture::of_target();
    let default = CallRules::always(ActionText::NotImplemented.parse());
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

//! Compiles a table of rules to a seccomp program. The program is a binary search, so that it loads and runs fast.
//!
//! The kernel runs a new filter once for every system call number, to find those that are always allowed (seccomp's
//! action cache). With a linear chain of comparisons that would take over a millisecond.

use std::collections::BTreeMap;

/// The action of the kernel for a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    Allow,
    /// The call is not executed and returns this error; 0 reports success.
    Errno(u16),
    /// The call is passed to the init of the sandbox, through the filter's listener.
    NotifyInit,
}

impl Action {
    fn operand(self) -> u32 {
        match self {
            Self::Allow => ALLOW,
            Self::Errno(errno) => ERRNO | u32::from(errno),
            Self::NotifyInit => USER_NOTIFICATION,
        }
    }
}

/// The rules for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CallRules {
    /// The first rule that matches applies.
    pub(crate) rules: Vec<Rule>,
    pub(crate) otherwise: Action,
}

impl CallRules {
    pub(crate) fn always(action: Action) -> Self {
        Self { rules: Vec::new(), otherwise: action }
    }
}

/// A rule that matches if all conditions of any alternative are true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) alternatives: Vec<Vec<Condition>>,
    pub(crate) action: Action,
}

/// A condition on the lower or upper 32 bits of an argument. For most of the calls with conditions, the kernel uses
/// only the lower bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Condition {
    pub(crate) argument: u8,
    pub(crate) upper: bool,
    pub(crate) mask: u32,
    pub(crate) values: Vec<u32>,
    /// Whether the argument must be one of the values, or none of them.
    pub(crate) is_member: bool,
}

/// One instruction: code, jump if true, jump if false, operand (`struct sock_filter`).
pub(crate) type Instruction = (u16, u8, u8, u32);

const LOAD: u16 = 0x20;
const AND: u16 = 0x54;
const JUMP: u16 = 0x05;
const JUMP_IF_EQUAL: u16 = 0x15;
const JUMP_IF_AT_LEAST: u16 = 0x35;
const RETURN: u16 = 0x06;

const ALLOW: u32 = 0x7fff_0000;
const ERRNO: u32 = 0x0005_0000;
const USER_NOTIFICATION: u32 = 0x7fc0_0000;
const KILL_PROCESS: u32 = 0x8000_0000;

const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCHITECTURE: u32 = 4;
const OFFSET_ARGUMENTS: u32 = 16;

/// Compiles a program that applies `default` to every call that is not in the table.
///
/// A call through the entry point of another architecture (i386 on `x86_64`) kills the process. Numbers above the
/// table, including those of x32, get the default.
pub(crate) fn compile(architecture: u32, table: &BTreeMap<u32, CallRules>, default: &CallRules) -> Vec<Instruction> {
    let mut program = vec![
        (LOAD, 0, 0, OFFSET_ARCHITECTURE),
        (JUMP_IF_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, OFFSET_NUMBER),
    ];
    program.extend(search(&ranges(table, default)));
    program
}

/// Merges neighbouring numbers with the same rules into ranges, and fills gaps with the default.
fn ranges(table: &BTreeMap<u32, CallRules>, default: &CallRules) -> Vec<(u32, CallRules)> {
    let mut ranges: Vec<(u32, CallRules)> = Vec::new();
    let last = table.keys().max().copied().unwrap_or(0);
    for number in 0..=last + 1 {
        let rules = table.get(&number).unwrap_or(default);
        if ranges.last().is_none_or(|(_, previous)| previous != rules) {
            ranges.push((number, rules.clone()));
        }
    }
    ranges
}

fn search(ranges: &[(u32, CallRules)]) -> Vec<Instruction> {
    if let [(_, rules)] = ranges {
        return evaluate(rules);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let (first_high, _) = high[0];
    let low = search(low);
    let distance = u32::try_from(low.len()).expect("a short program");
    // A conditional jump reaches 255 instructions; an unconditional one reaches any.
    let mut instructions = match u8::try_from(distance) {
        Ok(near) => vec![(JUMP_IF_AT_LEAST, near, 0, first_high)],
        Err(_) => vec![(JUMP_IF_AT_LEAST, 0, 1, first_high), (JUMP, 0, 0, distance)],
    };
    instructions.extend(low);
    instructions.extend(search(high));
    instructions
}

fn evaluate(rules: &CallRules) -> Vec<Instruction> {
    let alternatives =
        rules.rules.iter().flat_map(|rule| rule.alternatives.iter().map(|conditions| (conditions, rule.action)));
    let mut instructions: Vec<Instruction> =
        alternatives.flat_map(|(conditions, action)| alternative(conditions, action)).collect();
    instructions.push((RETURN, 0, 0, rules.otherwise.operand()));
    instructions
}

/// Emits instructions that return the action if every condition is true, and otherwise fall through.
fn alternative(conditions: &[Condition], action: Action) -> Vec<Instruction> {
    let mut instructions = vec![(RETURN, 0, 0, action.operand())];
    for condition in conditions.iter().rev() {
        let offset = OFFSET_ARGUMENTS + 8 * u32::from(condition.argument) + if condition.upper { 4 } else { 0 };
        let mut check = vec![(LOAD, 0, 0, offset)];
        if condition.mask != u32::MAX {
            check.push((AND, 0, 0, condition.mask));
        }
        let fail = instructions.len();
        for (index, value) in condition.values.iter().enumerate() {
            // The number of comparisons after this one.
            let rest = condition.values.len() - 1 - index;
            let (if_equal, if_not) = match (condition.is_member, rest) {
                (true, 0) => (0, fail),
                (true, rest) => (rest, 0),
                (false, rest) => (rest + fail, 0),
            };
            let jump = |distance: usize| u8::try_from(distance).expect("few conditions");
            check.push((JUMP_IF_EQUAL, jump(if_equal), jump(if_not), *value));
        }
        check.extend(instructions);
        instructions = check;
    }
    instructions
}

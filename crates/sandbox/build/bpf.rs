//! Compiles a table of verdicts to a seccomp program: a binary search, so that it loads and runs in few steps.
//!
//! The kernel runs a new filter once for every system call number, to remember those that are always
//! allowed (seccomp's action cache); a linear chain of comparisons makes that cost over a millisecond.

use std::collections::BTreeMap;

/// How the kernel treats a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    Allow,
    /// The call is not made and returns this error; 0 reports success.
    Errno(u16),
    /// The sandbox's init decides, through the filter's listener.
    AskInit,
}

impl Answer {
    fn operand(self) -> u32 {
        match self {
            Self::Allow => ALLOW,
            Self::Errno(errno) => ERRNO | u32::from(errno),
            Self::AskInit => USER_NOTIFICATION,
        }
    }
}

/// The rules for a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// The first rule that matches decides.
    pub(crate) rules: Vec<Rule>,
    pub(crate) otherwise: Answer,
}

impl Verdict {
    pub(crate) fn always(answer: Answer) -> Self {
        Self { rules: Vec::new(), otherwise: answer }
    }
}

/// Matches if all conditions of any alternative are true.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) alternatives: Vec<Vec<Condition>>,
    pub(crate) answer: Answer,
}

/// A condition on 32 bits of an argument: the lower ones, which are all that the kernel itself looks at in
/// most calls that have one here, or the upper ones.
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
pub(crate) type Step = (u16, u8, u8, u32);

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

/// Compiles a program that answers `default` to every call that is not in the table.
///
/// Another architecture's entry point (i386 on `x86_64`) kills the process; numbers above the table, x32's
/// among them, get the default.
pub(crate) fn compile(architecture: u32, table: &BTreeMap<u32, Verdict>, default: &Verdict) -> Vec<Step> {
    let mut program = vec![
        (LOAD, 0, 0, OFFSET_ARCHITECTURE),
        (JUMP_IF_EQUAL, 1, 0, architecture),
        (RETURN, 0, 0, KILL_PROCESS),
        (LOAD, 0, 0, OFFSET_NUMBER),
    ];
    program.extend(search(&ranges(table, default)));
    program
}

/// Neighbours with the same verdict as one range, gaps filled with the default.
fn ranges(table: &BTreeMap<u32, Verdict>, default: &Verdict) -> Vec<(u32, Verdict)> {
    let mut ranges: Vec<(u32, Verdict)> = Vec::new();
    let last = table.keys().max().copied().unwrap_or(0);
    for number in 0..=last + 1 {
        let verdict = table.get(&number).unwrap_or(default);
        if ranges.last().is_none_or(|(_, previous)| previous != verdict) {
            ranges.push((number, verdict.clone()));
        }
    }
    ranges
}

fn search(ranges: &[(u32, Verdict)]) -> Vec<Step> {
    if let [(_, verdict)] = ranges {
        return answer(verdict);
    }
    let (low, high) = ranges.split_at(ranges.len() / 2);
    let (first_high, _) = high[0];
    let low = search(low);
    let distance = u32::try_from(low.len()).expect("a short program");
    // A conditional jump reaches 255 steps; a plain one goes anywhere.
    let mut steps = match u8::try_from(distance) {
        Ok(near) => vec![(JUMP_IF_AT_LEAST, near, 0, first_high)],
        Err(_) => vec![(JUMP_IF_AT_LEAST, 0, 1, first_high), (JUMP, 0, 0, distance)],
    };
    steps.extend(low);
    steps.extend(search(high));
    steps
}

fn answer(verdict: &Verdict) -> Vec<Step> {
    let alternatives = verdict.rules.iter().flat_map(|rule| rule.alternatives.iter().map(|all| (all, rule.answer)));
    let mut steps: Vec<Step> = alternatives.flat_map(|(all, answer)| alternative(all, answer)).collect();
    steps.push((RETURN, 0, 0, verdict.otherwise.operand()));
    steps
}

/// Returns the answer if every condition is true; otherwise falls through to what follows.
fn alternative(conditions: &[Condition], answer: Answer) -> Vec<Step> {
    let mut steps = vec![(RETURN, 0, 0, answer.operand())];
    for condition in conditions.iter().rev() {
        let offset = OFFSET_ARGUMENTS + 8 * u32::from(condition.argument) + if condition.upper { 4 } else { 0 };
        let mut check = vec![(LOAD, 0, 0, offset)];
        if condition.mask != u32::MAX {
            check.push((AND, 0, 0, condition.mask));
        }
        let fail = steps.len();
        for (index, value) in condition.values.iter().enumerate() {
            // Comparisons that follow this one.
            let rest = condition.values.len() - 1 - index;
            let (if_equal, if_not) = match (condition.is_member, rest) {
                (true, 0) => (0, fail),
                (true, rest) => (rest, 0),
                (false, rest) => (rest + fail, 0),
            };
            let jump = |distance: usize| u8::try_from(distance).expect("few conditions");
            check.push((JUMP_IF_EQUAL, jump(if_equal), jump(if_not), *value));
        }
        check.extend(steps);
        steps = check;
    }
    steps
}

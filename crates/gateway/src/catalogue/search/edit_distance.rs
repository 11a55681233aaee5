//! Compares words for a single typing error: one character inserted, deleted or replaced, or two neighbors swapped.

pub(super) fn is_one_edit_apart(a: &str, b: &str) -> bool {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let (short, long) = if a.len() <= b.len() { (&a, &b) } else { (&b, &a) };
    let common_prefix = short.iter().zip(long.iter()).take_while(|(a, b)| a == b).count();
    let (short, long) = (&short[common_prefix..], &long[common_prefix..]);
    match long.len() - short.len() {
        0 => match (short, long) {
            ([_, short @ ..], [_, long @ ..]) if short == long => true,
            ([a, b, short @ ..], [c, d, long @ ..]) => a == d && b == c && short == long,
            _ => false,
        },
        1 => short == &long[1..],
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_one_edit_apart() {
        for (a, b, expected) in [
            ("commit", "comit", true),
            ("branch", "brnach", true),
            ("search", "saerch", true),
            ("issue", "isque", true),
            ("issue", "issues", true),
            ("issue", "ssue", true),
            ("issue", "issue", false),
            ("issue", "ussie", false),
            ("abcd", "badc", false),
            ("ab", "cd", false),
            ("", "a", true),
            ("", "", false),
            ("été", "etés", false),
            ("été", "étés", true),
        ] {
            assert_eq!(is_one_edit_apart(a, b), expected, "{a} {b}");
            assert_eq!(is_one_edit_apart(b, a), expected, "{b} {a}");
        }
    }
}

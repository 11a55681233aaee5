//! One slip of the finger: a letter too many, too few, another, or two that have changed places.

pub(super) fn is_one_edit_apart(one: &str, other: &str) -> bool {
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    let (short, long) = if one.len() <= other.len() { (&one, &other) } else { (&other, &one) };
    let same = short.iter().zip(long.iter()).take_while(|(a, b)| a == b).count();
    let (short, long) = (&short[same..], &long[same..]);
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
    fn slips() {
        for (one, other, expected) in [
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
            assert_eq!(is_one_edit_apart(one, other), expected, "{one} {other}");
            assert_eq!(is_one_edit_apart(other, one), expected, "{other} {one}");
        }
    }
}

//! Lists of names as people write them.

/// `a`, `a and b`, `a, b and c`.
pub fn join<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.split_last() {
        None => "none".into(),
        Some((only, [])) => (*only).into(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}

/// The one of `known` that `name` was probably meant to be.
pub fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Below this two names have little in common.
    const MIN_SIMILARITY: f64 = 0.8;
    let scored = known.into_iter().map(|other| (strsim::jaro_winkler(name, other), other));
    let best = scored.max_by(|(one, _), (other, _)| one.total_cmp(other));
    best.filter(|(score, _)| *score >= MIN_SIMILARITY).map(|(_, other)| other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_listed_as_in_a_sentence() {
        assert_eq!(
            [join([]), join(["a"]), join(["a", "b"]), join(["a", "b", "c"])],
            ["none", "a", "a and b", "a, b and c"]
        );
    }

    #[test]
    fn only_a_slip_of_the_finger_is_put_right() {
        assert_eq!(closest("sesions", ["server", "sessions", "log"]), Some("sessions"));
        assert_eq!(closest("time_out_s", ["timeout_s", "max_timeout_s"]), Some("timeout_s"));
        assert_eq!(closest("colour", ["server", "sessions", "log"]), None);
    }
}

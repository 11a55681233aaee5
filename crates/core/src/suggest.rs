//! Lists of names and suggestions for misspelt names, for use in messages.

/// Joins names as in a sentence: `a`, `a and b`, `a, b and c`; `none` if there is no name.
pub fn join<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.into_iter().collect();
    match names.split_last() {
        None => "none".into(),
        Some((only, [])) => (*only).into(),
        Some((last, others)) => format!("{} and {last}", others.join(", ")),
    }
}

/// Returns the element of `known` that is most similar to `name`, if it is similar enough to be a misspelling.
pub fn closest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    /// Jaro-Winkler similarity; below it, names have little in common.
    const MIN_SIMILARITY: f64 = 0.8;
    let scored = known.into_iter().map(|candidate| (strsim::jaro_winkler(name, candidate), candidate));
    let best = scored.max_by(|(left, _), (right, _)| left.total_cmp(right));
    best.filter(|(score, _)| *score >= MIN_SIMILARITY).map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_joined_as_in_a_sentence() {
        assert_eq!(
            [join([]), join(["a"]), join(["a", "b"]), join(["a", "b", "c"])],
            ["none", "a", "a and b", "a, b and c"]
        );
    }

    #[test]
    fn only_similar_names_are_suggested() {
        assert_eq!(closest("sesions", ["server", "sessions", "log"]), Some("sessions"));
        assert_eq!(closest("time_out_s", ["timeout_s", "max_timeout_s"]), Some("timeout_s"));
        assert_eq!(closest("colour", ["server", "sessions", "log"]), None);
    }
}

//! Reduces English words to a stem: `files` and `file`; `creating`, `created`, `creation` and `create`.
//!
//! Both sides of a comparison are stemmed, so a stem need not be a word.

use std::borrow::Cow;

pub(super) fn stem(word: &str) -> Cow<'_, str> {
    if !word.is_ascii() || word.len() < 4 || word.bytes().any(|byte| !byte.is_ascii_lowercase()) {
        return Cow::Borrowed(word);
    }
    let singular = singular(word);
    let stem = if let Some(stem) = singular.strip_suffix("ing").or_else(|| singular.strip_suffix("ed")) {
        if stem.len() >= 3 && has_vowel(stem) { undoubled(stem) } else { &singular }
    } else if let Some(stem) = singular.strip_suffix("ion").filter(|stem| stem.len() >= 4 && stem.ends_with('t')) {
        stem
    } else {
        &singular
    };
    let stem = if stem.len() >= 5 { stem.strip_suffix('e').unwrap_or(stem) } else { stem };
    Cow::Owned(stem.to_owned())
}

fn singular(word: &str) -> Cow<'_, str> {
    if let Some(stem) = word.strip_suffix("ies").filter(|stem| stem.len() >= 2) {
        return Cow::Owned(format!("{stem}y"));
    }
    let has_sibilant_end = |stem: &&str| ["s", "x", "z", "ch", "sh"].iter().any(|end| stem.ends_with(end));
    if let Some(stem) = word.strip_suffix("es").filter(has_sibilant_end) {
        return Cow::Borrowed(stem);
    }
    match word.strip_suffix('s') {
        Some(stem) if !stem.ends_with(['s', 'u', 'i']) => Cow::Borrowed(stem),
        _ => Cow::Borrowed(word),
    }
}

fn has_vowel(stem: &str) -> bool {
    stem.contains(['a', 'e', 'i', 'o', 'u', 'y'])
}

/// Removes a doubled last letter: `runn` of `running` becomes `run`, but `call` of `calling` stays.
fn undoubled(stem: &str) -> &str {
    let mut ends = stem.bytes().rev();
    match (ends.next(), ends.next()) {
        (Some(last), Some(before)) if last == before && !b"lsz".contains(&last) => &stem[..stem.len() - 1],
        _ => stem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inflected_forms_have_the_same_stem() {
        for group in [
            &["file", "files"][..],
            &["create", "creates", "creating", "created", "creation"],
            &["delete", "deleting", "deletes", "deletion"],
            &["run", "running"],
            &["call", "calls", "calling", "called"],
            &["repository", "repositories"],
            &["branch", "branches"],
            &["search", "searches", "searching", "searched"],
            &["issue", "issues"],
            &["database", "databases"],
            &["stage", "staged", "staging"],
        ] {
            for word in group {
                assert_eq!(stem(word), stem(group[0]), "{word}");
            }
        }
    }

    #[test]
    fn words_without_a_known_ending_do_not_change() {
        for word in ["status", "class", "this", "string", "need", "bus", "id", "v2s", "été", "thing"] {
            assert_eq!(stem(word), word);
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_can_be_stemmed(word in "\\PC{0,12}|[a-z]{0,4}(ing|ed|ies|es|s|ion)") {
            let _ = stem(&word);
        }
    }
}

//! Splits text into the words that are indexed and searched.

use super::stem::stem;

/// Maximum length of a word; longer runs of letters are ignored.
const MAX_WORD_CHARS: usize = 40;

/// Words of a query that do not say what is searched for.
const STOP_WORDS: &str = "\
    a about according all an and any are as at be by can could did do does for from give has have how i in \
    into is it its let me my need of on or our please should so some something that the their them there \
    these this those to tool want was we what when where which with you";

pub(super) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.split(' ').any(|stop_word| stop_word == word)
}

/// Calls `visit` with every word of a text in lower case, and its stem. Names such as `getUserID` and `list-all_files` are
/// split into their words.
pub(super) fn for_each_word(text: &str, mut visit: impl FnMut(&str, &str)) {
    let mut word = String::new();
    let mut letters = 0;
    let mut finish_word = |word: &mut String, letters: &mut usize| {
        if (1..=MAX_WORD_CHARS).contains(letters) {
            visit(word, &stem(word));
        }
        word.clear();
        *letters = 0;
    };
    let mut previous = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if !char.is_alphanumeric() {
            finish_word(&mut word, &mut letters);
            previous = None;
            continue;
        }
        let starts_word = char.is_uppercase()
            && previous.is_some_and(|previous: char| {
                previous.is_lowercase() || previous.is_uppercase() && starts_lowercase_word(chars.as_str())
            });
        if starts_word {
            finish_word(&mut word, &mut letters);
        }
        if letters <= MAX_WORD_CHARS {
            word.extend(char.to_lowercase());
            letters += 1;
        }
        previous = Some(char);
    }
    finish_word(&mut word, &mut letters);
}

/// Whether a capital starts a word with the text after it, as in `HTTPRequest`, and is not followed by a plural `s`, as in
/// `URLs`.
fn starts_lowercase_word(following: &str) -> bool {
    let mut following = following.strip_prefix('s').unwrap_or(following).chars();
    following.next().is_some_and(char::is_lowercase)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        let mut words = Vec::new();
        for_each_word(text, |word, _| words.push(word.to_owned()));
        words
    }

    #[test]
    fn names_are_split_into_words() {
        for (text, expected) in [
            ("create_issue", &["create", "issue"][..]),
            ("list-all.files/now", &["list", "all", "files", "now"]),
            ("getUserProfile", &["get", "user", "profile"]),
            ("HTTPRequest URLs2 userID", &["http", "request", "urls2", "user", "id"]),
            ("base64 v2", &["base64", "v2"]),
            ("Übergröße, été!", &["übergröße", "été"]),
            ("", &[]),
            ("?! — ()", &[]),
        ] {
            assert_eq!(words(text), expected, "{text}");
        }
    }

    #[test]
    fn overlong_words_are_ignored() {
        assert_eq!(words(&format!("a {} b", "x".repeat(100_000))), ["a", "b"]);
    }

    #[test]
    fn common_words_are_stop_words() {
        assert!(is_stop_word("a") && is_stop_word("you") && !is_stop_word("repository") && !is_stop_word(""));
    }
}

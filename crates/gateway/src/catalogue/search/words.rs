//! From a text to the words that are compared.

use super::stem::stem;

/// Longer runs of letters are no words.
const MAX_WORD_CHARS: usize = 40;

/// Words of a question that say nothing of what is looked for.
const STOP_WORDS: &str = "\
    a about according all an and any are as at be by can could did do does for from give has have how i in \
    into is it its let me my need of on or our please should so some something that the their them there \
    these this those to tool want was we what when where which with you";

pub(super) fn is_stop_word(word: &str) -> bool {
    STOP_WORDS.split(' ').any(|little| little == word)
}

/// Hands over every word of a text, in lower case, and its stem. Names are taken apart: `getUserID`, `list-all_files`.
pub(super) fn for_each_word(text: &str, mut take: impl FnMut(&str, &str)) {
    let mut word = String::new();
    let mut letters = 0;
    let mut hand_over = |word: &mut String, letters: &mut usize| {
        if (1..=MAX_WORD_CHARS).contains(letters) {
            take(word, &stem(word));
        }
        word.clear();
        *letters = 0;
    };
    let mut before = None;
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        if !char.is_alphanumeric() {
            hand_over(&mut word, &mut letters);
            before = None;
            continue;
        }
        let begins = char.is_uppercase()
            && before.is_some_and(|before: char| {
                before.is_lowercase() || before.is_uppercase() && starts_lowercase_word(chars.as_str())
            });
        if begins {
            hand_over(&mut word, &mut letters);
        }
        if letters <= MAX_WORD_CHARS {
            word.extend(char.to_lowercase());
            letters += 1;
        }
        before = Some(char);
    }
    hand_over(&mut word, &mut letters);
}

/// Whether what follows a capital belongs to it, as in `HTTPRequest`, and is not the plural of capitals, as in `URLs`.
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
    fn names_are_taken_apart() {
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
    fn what_is_no_word_is_passed_over() {
        assert_eq!(words(&format!("a {} b", "x".repeat(100_000))), ["a", "b"]);
    }

    #[test]
    fn some_words_say_little() {
        assert!(is_stop_word("a") && is_stop_word("you") && !is_stop_word("repository") && !is_stop_word(""));
    }
}

//! Compares texts by the meaning of their words, with word vectors that are part of the program.
//!
//! Words that people use in the same context have similar vectors. The meaning of a text is the sum of the vectors of its
//! words; they are stored with a length that gives rare words more weight. `data/README.md` describes their source.

use std::sync::LazyLock;

/// The number of components of each vector.
const DIMENSIONS: usize = 48;

/// The length of the word list as 4 bytes, the sorted words with a newline between them, and a vector for each.
const DATA: &[u8] = include_bytes!("../../../data/word-vectors.bin");

#[derive(Default)]
struct WordVectors {
    words: Vec<&'static str>,
    vectors: &'static [[u8; DIMENSIONS]],
}

/// Read by the first search, so that the start of the program is not slower.
static WORD_VECTORS: LazyLock<WordVectors> = LazyLock::new(|| WordVectors::parse(DATA).unwrap_or_default());

impl WordVectors {
    fn parse(data: &'static [u8]) -> Option<Self> {
        let (length, data) = data.split_first_chunk()?;
        let (words, vectors) = data.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        let words: Vec<&str> = std::str::from_utf8(words).ok()?.split('\n').collect();
        let (vectors, rest) = vectors.as_chunks();
        (rest.is_empty() && vectors.len() == words.len()).then_some(Self { words, vectors })
    }

    fn get(&self, word: &str) -> Option<&'static [u8; DIMENSIONS]> {
        let index = self.words.binary_search(&word).ok()?;
        self.vectors.get(index)
    }
}

/// The direction of the sum of word vectors; zero if no word has a vector.
#[derive(Debug, Clone)]
pub(super) struct Meaning([f32; DIMENSIONS]);

impl Meaning {
    /// Returns the meaning of words in lower case.
    pub(super) fn of_words<'a>(words: impl IntoIterator<Item = &'a str>) -> Self {
        let mut sum = [0.0; DIMENSIONS];
        for vector in words.into_iter().filter_map(|word| WORD_VECTORS.get(word)) {
            for (sum, component) in sum.iter_mut().zip(vector) {
                *sum += f32::from(component.cast_signed());
            }
        }
        let length = sum.iter().map(|component| component * component).sum::<f32>().sqrt();
        if length > 0.0 {
            for component in &mut sum {
                *component /= length;
            }
        }
        Self(sum)
    }

    /// Returns the cosine of the angle between both, or 0 if it is negative.
    pub(super) fn similarity(&self, other: &Self) -> f64 {
        let cosine: f32 = self.0.iter().zip(&other.0).map(|(a, b)| a * b).sum();
        f64::from(cosine.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(text: &str) -> Meaning {
        Meaning::of_words(text.split(' '))
    }

    #[test]
    fn built_in_vectors_are_valid() {
        let vectors = WordVectors::parse(DATA).unwrap();
        assert!(vectors.words.len() > 5000 && vectors.words.is_sorted());
        assert!(DATA.len() < 2 << 20, "{}", DATA.len());
    }

    #[test]
    fn damaged_vectors_are_refused() {
        for damaged in [&b""[..], b"\x09\0\0\0a", b"\x01\0\0\0a\x05", b"\x01\0\0\0\xff"] {
            assert!(WordVectors::parse(damaged).is_none());
        }
    }

    #[test]
    fn related_words_are_more_similar_than_others() {
        for (text, related, other) in [
            ("physician", "doctor", "mountain"),
            ("coffee", "restaurant", "software"),
            ("picture", "photographs", "elections"),
        ] {
            let text = meaning(text);
            let (related, other) = (text.similarity(&meaning(related)), text.similarity(&meaning(other)));
            assert!(related > other + 0.2, "{related} {other}");
        }
    }

    #[test]
    fn unknown_words_have_no_meaning() {
        assert!(meaning("qqqzzz 日本語").similarity(&meaning("coffee")) < 1e-9);
        assert!(meaning("").similarity(&meaning("")) < 1e-9);
        assert!(meaning("coffee").similarity(&meaning("coffee qqqzzz")) > 0.999);
    }
}

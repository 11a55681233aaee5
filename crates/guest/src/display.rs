//! What a cell has shown, bounded in number and size: it comes from inside.

/// Something to look at that the code has made.
#[derive(Debug, Clone, PartialEq)]
pub struct DisplayItem {
    pub mime: String,
    /// Text for `text/*`, JSON for `application/json` and `…+json`, base64 for all others. None of what there was no room
    /// for.
    pub data: Option<String>,
}

pub const MOST_ITEMS: usize = 32;

/// As much as answers have room for.
const MOST_BYTES: usize = 8 << 20;

/// Whether a kernel sends the value itself, and not a text.
pub fn is_json(mime: &str) -> bool {
    mime == "application/json" || mime.ends_with("+json")
}

#[derive(Default)]
pub struct Display {
    pub items: Vec<DisplayItem>,
    bytes: usize,
}

impl Display {
    pub fn is_full(&self) -> bool {
        self.items.len() >= MOST_ITEMS
    }

    /// Adds what there is room for. Of what is too large it is only kept that it was there.
    pub fn add(&mut self, items: Vec<DisplayItem>) {
        for DisplayItem { mime, data } in items.into_iter().take(MOST_ITEMS - self.items.len()) {
            let size = mime.len() + data.as_ref().map_or(0, String::len);
            let item = match self.bytes.checked_add(size).filter(|bytes| *bytes <= MOST_BYTES) {
                Some(bytes) => {
                    self.bytes = bytes;
                    DisplayItem { mime, data }
                }
                None => DisplayItem { mime: String::new(), data: None },
            };
            self.items.push(item);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_much_is_counted_and_not_kept() {
        let item = |size: usize| DisplayItem { mime: "text/html".into(), data: Some("x".repeat(size)) };
        let mut display = Display::default();
        display.add(vec![item(5 << 20), item(5 << 20), item(1)]);
        let kept: Vec<_> = display.items.iter().map(|item| item.data.as_ref().map(String::len)).collect();
        assert_eq!(kept, [Some(5 << 20), None, Some(1)]);
        display.add((0..99).map(item).collect());
        assert!(display.is_full() && display.items.len() == MOST_ITEMS);
    }
}

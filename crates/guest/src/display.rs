//! Rich output that a cell displays, limited in number and size because the guest sends it.

/// An image, table or other rich output that code has displayed.
#[derive(Debug, Clone, PartialEq)]
pub struct DisplayItem {
    pub mime: String,
    /// Text for `text/*`, JSON for `application/json` and `…+json`, base64 for all others. `None` if the item was
    /// dropped because it exceeded the limit.
    pub data: Option<String>,
}

/// Maximum number of items that a cell can display.
pub const MAX_DISPLAY_ITEMS: usize = 32;

/// Maximum size of all items of a cell; a response has no space for more.
const MAX_DISPLAY_BYTES: usize = 8 << 20;

/// Returns whether kernels send data of this type as a JSON value instead of a string.
pub fn is_json(mime: &str) -> bool {
    mime == "application/json" || mime.ends_with("+json")
}

/// The items that a cell has displayed so far.
#[derive(Default)]
pub struct Display {
    pub items: Vec<DisplayItem>,
    bytes: usize,
}

impl Display {
    pub fn is_full(&self) -> bool {
        self.items.len() >= MAX_DISPLAY_ITEMS
    }

    /// Adds items up to the limits. An item that is too large is replaced by one without data.
    pub fn add(&mut self, items: Vec<DisplayItem>) {
        for DisplayItem { mime, data } in items.into_iter().take(MAX_DISPLAY_ITEMS - self.items.len()) {
            let size = mime.len() + data.as_ref().map_or(0, String::len);
            let item = match self.bytes.checked_add(size).filter(|bytes| *bytes <= MAX_DISPLAY_BYTES) {
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
    fn items_over_the_limit_are_counted_without_data() {
        let item = |size: usize| DisplayItem { mime: "text/html".into(), data: Some("x".repeat(size)) };
        let mut display = Display::default();
        display.add(vec![item(5 << 20), item(5 << 20), item(1)]);
        let sizes: Vec<_> = display.items.iter().map(|item| item.data.as_ref().map(String::len)).collect();
        assert_eq!(sizes, [Some(5 << 20), None, Some(1)]);
        display.add((0..99).map(item).collect());
        assert!(display.is_full() && display.items.len() == MAX_DISPLAY_ITEMS);
    }
}

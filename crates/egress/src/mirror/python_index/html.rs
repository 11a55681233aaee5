//! The anchors of an HTML index. This is no HTML parser: it reads tags and attributes, skips comments and everything
//! else, and never fails.

/// The content of an index in HTML.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Document {
    /// Whether there is any tag of HTML.
    pub(super) is_html: bool,
    /// The URL in the first `<base href>`.
    pub(super) base: Option<String>,
    pub(super) anchors: Vec<Anchor>,
}

/// `<a href=…>` with the attributes that indexes use.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Anchor {
    pub(super) href: String,
    pub(super) requires_python: Option<String>,
    pub(super) yanked: Option<String>,
    pub(super) metadata: Option<String>,
    pub(super) upload_time: Option<String>,
}

const MAX_ATTRIBUTES: usize = 32;

pub(super) fn parse(text: &str) -> Document {
    let mut document = Document::default();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        if let Some(comment) = rest.strip_prefix("!--") {
            rest = comment.find("-->").map_or("", |end| &comment[end + 3..]);
            continue;
        }
        let name_length = rest.find(|c: char| !c.is_ascii_alphanumeric()).unwrap_or(rest.len());
        let name = rest[..name_length].to_ascii_lowercase();
        let (attributes, after) = attributes(&rest[name_length..]);
        match name.as_str() {
            "html" | "head" | "body" | "title" => document.is_html = true,
            "base" if document.base.is_none() => {
                document.base = attributes.into_iter().find(|(name, _)| name == "href").map(|(_, value)| value);
            }
            "a" => {
                document.is_html = true;
                document.anchors.extend(anchor(attributes));
            }
            _ => {}
        }
        rest = after;
    }
    document
}

fn anchor(attributes: Vec<(String, String)>) -> Option<Anchor> {
    let mut anchor = Anchor::default();
    let mut old_metadata = None;
    let mut has_href = false;
    for (name, value) in attributes {
        match name.as_str() {
            "href" => (anchor.href, has_href) = (value, true),
            "data-requires-python" => anchor.requires_python = Some(value),
            "data-yanked" => anchor.yanked = Some(value),
            "data-core-metadata" => anchor.metadata = Some(value),
            "data-dist-info-metadata" => old_metadata = Some(value),
            "data-upload-time" => anchor.upload_time = Some(value),
            _ => {}
        }
    }
    anchor.metadata = anchor.metadata.or(old_metadata);
    has_href.then_some(anchor)
}

/// Parses attributes up to the end of a tag. Returns them, and the text after the tag.
fn attributes(text: &str) -> (Vec<(String, String)>, &str) {
    let mut found = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '/');
        if rest.is_empty() {
            return (found, rest);
        }
        if let Some(after) = rest.strip_prefix('>') {
            return (found, after);
        }
        let end = |c: char| c.is_ascii_whitespace() || matches!(c, '=' | '>' | '/');
        // A name has at least one character, so that each round makes progress.
        let first = rest.chars().next().map_or(1, char::len_utf8);
        let length = rest[first..].find(end).map_or(rest.len(), |length| length + first);
        let name = rest[..length].to_ascii_lowercase();
        rest = rest[length..].trim_start_matches(|c: char| c.is_ascii_whitespace());
        let mut value = "";
        if let Some(after) = rest.strip_prefix('=') {
            let after = after.trim_start_matches(|c: char| c.is_ascii_whitespace());
            let quote = after.chars().next().filter(|c| matches!(c, '"' | '\''));
            (value, rest) = if let Some(quote) = quote {
                after[1..].split_once(quote).unwrap_or((&after[1..], ""))
            } else {
                let end = |c: char| c.is_ascii_whitespace() || c == '>';
                after.split_at(after.find(end).unwrap_or(after.len()))
            };
        }
        if found.len() < MAX_ATTRIBUTES {
            found.push((name, unescape(value)));
        }
    }
}

/// Replaces the character references that indexes use.
fn unescape(text: &str) -> String {
    let mut output = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find('&') {
        output.push_str(&rest[..start]);
        rest = &rest[start..];
        let reference = rest.split_once(';').map(|(name, after)| (&name[1..], after));
        let character = reference.and_then(|(name, after)| Some((character(name)?, after)));
        if let Some((character, after)) = character {
            output.push(character);
            rest = after;
        } else {
            output.push('&');
            rest = &rest[1..];
        }
    }
    output + rest
}

fn character(name: &str) -> Option<char> {
    if name.len() > 8 {
        return None;
    }
    match name {
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "quot" => Some('"'),
        "apos" => Some('\''),
        _ => {
            let number = name.strip_prefix('#')?;
            let code = match number.strip_prefix(['x', 'X']) {
                Some(hex) => u32::from_str_radix(hex, 16).ok()?,
                None => number.parse().ok()?,
            };
            char::from_u32(code)
        }
    }
}

/// Replaces the characters that have a meaning in HTML.
pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;").replace('\'', "&#39;")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn anchors_are_read_in_any_spelling() {
        let text = "<!DOCTYPE html><html><head><BASE HREF='/files/'></head><!-- <a href=no> -->\
                    <A class=x  href = \"a.whl#sha256=1\" data-requires-python='&gt;=3.8,&lt;4'\ndata-yanked>a</A>\
                    <a href=b.whl data-dist-info-metadata=\"sha256=2\"/><a name=x>y</a><a href=\"c.whl";
        let document = parse(text);
        assert!(document.is_html);
        assert_eq!(document.base.as_deref(), Some("/files/"));
        let hrefs: Vec<&str> = document.anchors.iter().map(|anchor| anchor.href.as_str()).collect();
        assert_eq!(hrefs, ["a.whl#sha256=1", "b.whl", "c.whl"]);
        assert_eq!(document.anchors[0].requires_python.as_deref(), Some(">=3.8,<4"));
        assert_eq!(document.anchors[0].yanked.as_deref(), Some(""));
        assert_eq!(document.anchors[1].metadata.as_deref(), Some("sha256=2"));
    }

    #[test]
    fn other_text_is_not_html() {
        for text in ["", "not found", "{\"files\": []}", "<xml>", "<<<<"] {
            assert!(!parse(text).is_html, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_parsed(text in "[<>a-z=\"'&;# !/ä\\-]{0,200}") {
            let document = parse(&text);
            prop_assert!(document.anchors.len() <= text.len());
        }

        #[test]
        fn escaped_text_is_restored(text in "\\PC{0,100}") {
            prop_assert_eq!(unescape(&escape(&text)), text);
        }
    }
}

//! Pictures that models accept, recognized by the first bytes of their files.

/// Maximum size of a picture for a model: 5 MiB in Base64, the most that the usual model APIs accept.
pub(super) const MAX_PICTURE_BYTES: usize = 15 << 18;

/// Returns the MIME type of a picture.
pub(super) fn mime_type(bytes: &[u8]) -> Option<&'static str> {
    match bytes {
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some("image/png"),
        [0xff, 0xd8, 0xff, ..] => Some("image/jpeg"),
        [b'G', b'I', b'F', b'8', b'7' | b'9', b'a', ..] => Some("image/gif"),
        [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some("image/webp"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pictures_are_recognized_by_their_first_bytes() {
        for (bytes, mime) in [
            (&b"\x89PNG\r\n\x1a\n..."[..], Some("image/png")),
            (b"\xff\xd8\xff\xe0..", Some("image/jpeg")),
            (b"GIF89a..", Some("image/gif")),
            (b"GIF87a", Some("image/gif")),
            (b"RIFF\x10\0\0\0WEBPVP8 ", Some("image/webp")),
            (b"RIFF\x10\0\0\0WAVE", None),
            (b"\x89PNG", None),
            (b"<svg/>", None),
            (b"", None),
        ] {
            assert_eq!(mime_type(bytes), mime, "{bytes:?}");
        }
    }
}

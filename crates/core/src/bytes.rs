//! Byte sizes as text: parses `512M`, formats `1.5 GiB`.

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// Formats a size in the largest unit that is not larger than the size: `256 MiB`, `1.5 GiB`, `300 bytes`.
#[allow(clippy::cast_precision_loss)]
pub fn format(bytes: u64) -> String {
    for (name, shift) in UNITS {
        let unit = 1_u64 << shift;
        if bytes >= unit {
            return if bytes.is_multiple_of(unit) {
                format!("{} {name}", bytes >> shift)
            } else {
                format!("{:.1} {name}", bytes as f64 / unit as f64)
            };
        }
    }
    format!("{bytes} bytes")
}

/// Parses an integer with an optional binary unit: `1073741824`, `512M`, `1g`, `64KiB`.
///
/// `k`, `kb` and `kib` all mean 1024 bytes; the same applies to the other units. Case does not matter.
pub fn parse(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        unit => return Err(format!("unknown unit `{unit}`; write a size like 512M or 2G")),
    };
    digits
        .parse::<u64>()
        .ok()
        .and_then(|number| number.checked_mul(1 << shift))
        .ok_or_else(|| format!("`{text}` is not a size; write one like 512M or 2G"))
}

#[cfg(test)]
mod tests {
    use super::{format, parse};

    #[test]
    fn units_are_parsed_as_binary() {
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("1g"), Ok(1 << 30));
        assert_eq!(parse("64KiB"), Ok(64 << 10));
        assert_eq!(parse("7"), Ok(7));
        for invalid in ["", "M", "1.5G", "-1", "12parsecs", "99999999999T"] {
            assert!(parse(invalid).is_err(), "{invalid}");
        }
    }

    #[test]
    fn sizes_are_formatted_in_largest_unit() {
        assert_eq!(format(256 << 20), "256 MiB");
        assert_eq!(format(3 << 29), "1.5 GiB");
        assert_eq!(format(300), "300 bytes");
    }
}

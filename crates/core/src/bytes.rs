//! Sizes as people write and read them: `512M`, `1.5 GiB`.

const UNITS: [(&str, u32); 4] = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];

/// The size in the largest unit that it fills: `256 MiB`, `1.5 GiB`, `300 bytes`.
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

/// Reads `1073741824`, `512M`, `1g`, `64KiB`: binary units, whole numbers.
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
    fn sizes_are_read_with_binary_units() {
        assert_eq!(parse("512M"), Ok(512 << 20));
        assert_eq!(parse("1g"), Ok(1 << 30));
        assert_eq!(parse("64KiB"), Ok(64 << 10));
        assert_eq!(parse("7"), Ok(7));
        for bad in ["", "M", "1.5G", "-1", "12parsecs", "99999999999T"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn sizes_are_shown_in_their_largest_unit() {
        assert_eq!(format(256 << 20), "256 MiB");
        assert_eq!(format(3 << 29), "1.5 GiB");
        assert_eq!(format(300), "300 bytes");
    }
}

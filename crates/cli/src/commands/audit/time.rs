//! Parses and formats times: RFC 3339 in UTC, or a duration before now.

const SECOND_MS: u64 = 1000;
const DAY_S: i64 = 86_400;

/// Formats a time as `1970-01-01T00:00:00.000Z`. The algorithm is Howard Hinnant's `civil_from_days`.
pub(crate) fn rfc3339(time_ms: u64) -> String {
    let seconds = i64::try_from(time_ms / SECOND_MS).unwrap_or(i64::MAX / 1000);
    let (days, second) = (seconds.div_euclid(DAY_S), seconds.rem_euclid(DAY_S));
    let days = days + 719_468;
    let (era, of_era) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:03}Z", time_ms % SECOND_MS)
}

/// Returns milliseconds since the epoch, from a time (`2026-01-31`, `2026-01-31T12:00:00Z`) or a duration before now (`90s`,
/// `30m`, `12h`, `7d`).
pub(crate) fn parse_since(text: &str, now_ms: u64) -> Result<u64, String> {
    let invalid = || {
        format!(
            "`{text}` is neither a duration, such as 30m, 12h or 7d, nor a time in UTC, such as 2026-01-31T12:00:00Z"
        )
    };
    if let Some(seconds) = parse_duration(text) {
        return Ok(now_ms.saturating_sub(seconds.saturating_mul(SECOND_MS)));
    }
    parse_time(text).ok_or_else(invalid)
}

fn parse_duration(text: &str) -> Option<u64> {
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return None,
    };
    digits(number)?.checked_mul(unit)
}

fn parse_time(text: &str) -> Option<u64> {
    let (date, time) = match text.split_once(['T', ' ']) {
        Some((date, time)) => (date, time.strip_suffix('Z')?),
        None => (text, "00:00:00"),
    };
    let [year, month, day] = numbers(date, '-', [4, 2, 2])?;
    let (time, fraction) = time.split_once('.').unwrap_or((time, ""));
    let milliseconds = match fraction {
        "" => 0,
        digits_of => digits(&format!("{digits_of:0<3}").chars().take(3).collect::<String>())?,
    };
    let [hour, minute, second] = numbers(time, ':', [2, 2, 2])?;
    if hour > 23 || minute > 59 || second > 60 || !(1..=12).contains(&month) || !(1..=31).contains(&day) || year < 1970
    {
        return None;
    }
    // `days_from_civil`, the inverse of `civil_from_days`.
    let year = if month <= 2 { year - 1 } else { year };
    let (era, year_of_era) = (year / 400, year % 400);
    let of_year = (153 * (if month > 2 { month - 3 } else { month + 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + of_year;
    let days = days.checked_sub(719_468)?;
    Some((((days * 24 + hour) * 60 + minute) * 60 + second) * SECOND_MS + milliseconds)
}

fn numbers(text: &str, separator: char, lengths: [usize; 3]) -> Option<[u64; 3]> {
    let parts: Vec<&str> = text.split(separator).collect();
    let parts: [&str; 3] = parts.try_into().ok()?;
    if parts.map(str::len) != lengths {
        return None;
    }
    Some([digits(parts[0])?, digits(parts[1])?, digits(parts[2])?])
}

/// Parses digits only, without a sign.
fn digits(text: &str) -> Option<u64> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_times_can_be_parsed() {
        for (time_ms, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400_123, "2000-02-29T00:00:00.123Z"),
            (1_767_225_599_999, "2025-12-31T23:59:59.999Z"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(rfc3339(time_ms), text);
            assert_eq!(parse_since(text, 0), Ok(time_ms));
        }
        assert_eq!(parse_since("1970-01-02", 0), Ok(86_400_000));
        assert_eq!(parse_since("1970-01-01T00:00:01Z", 0), Ok(1000));
        assert_eq!(parse_since("1970-01-01T00:00:01.5Z", 0), Ok(1500));
    }

    #[test]
    fn durations_count_back_from_now() {
        let now_ms = 10 * 86_400_000;
        assert_eq!(parse_since("7d", now_ms), Ok(3 * 86_400_000));
        assert_eq!(parse_since("90s", now_ms), Ok(now_ms - 90_000));
        assert_eq!(parse_since("100000d", now_ms), Ok(0));
        for invalid in ["", "d", "-1d", "+1d", "1w", "1.5h", "yesterday", "2026-13-01", "2026-01-01T00:00:00", "é"] {
            assert!(parse_since(invalid, now_ms).is_err(), "{invalid}");
        }
    }
}

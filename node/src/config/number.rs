//! Go's text forms of numbers, booleans and durations.
//!
//! Flags and variables are read the way Go's `strconv` and `time` packages read them, because the values
//! in use today were written for those: `0x10`, `1_000`, `1h30m`, `T`.

/// Go's flag package tells apart only these two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NumberError {
    Syntax,
    Range,
}

impl NumberError {
    /// The words of Go's flag package.
    pub(super) fn flag_words(self) -> &'static str {
        match self {
            NumberError::Syntax => "parse error",
            NumberError::Range => "value out of range",
        }
    }

    /// The words of Go's `strconv`.
    pub(super) fn strconv_words(self) -> &'static str {
        match self {
            NumberError::Syntax => "invalid syntax",
            NumberError::Range => "value out of range",
        }
    }
}

/// `strconv.ParseBool`.
pub(super) fn boolean(text: &str) -> Option<bool> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

/// `strconv.ParseUint(text, 0, 64)`.
pub(super) fn unsigned(text: &str) -> Result<u64, NumberError> {
    let (radix, digits) = radix(text);
    let digits = without_underscores(text, digits)?;
    if digits.is_empty() || !digits.chars().all(|c| c.is_digit(radix)) {
        return Err(NumberError::Syntax);
    }
    u64::from_str_radix(&digits, radix).map_err(|_| NumberError::Range)
}

/// `strconv.ParseInt(text, 0, 64)`.
pub(super) fn signed(text: &str) -> Result<i64, NumberError> {
    let (negative, digits) = match text.as_bytes() {
        [b'-', ..] => (true, &text[1..]),
        [b'+', ..] => (false, &text[1..]),
        _ => (false, text),
    };
    let magnitude = i128::from(unsigned(digits)?);
    let value = if negative { -magnitude } else { magnitude };
    i64::try_from(value).map_err(|_| NumberError::Range)
}

fn radix(text: &str) -> (u32, &str) {
    let lower = text.get(..2).map(str::to_ascii_lowercase);
    match lower.as_deref() {
        Some("0x") => (16, &text[2..]),
        Some("0b") => (2, &text[2..]),
        Some("0o") => (8, &text[2..]),
        Some(_) if text.starts_with('0') => (8, &text[1..]),
        _ => (10, text),
    }
}

/// Go allows one underscore between digits, and between a base prefix and the first digit.
fn without_underscores(text: &str, digits: &str) -> Result<String, NumberError> {
    let has_prefix = digits.len() < text.len();
    let misplaced = (digits.starts_with('_') && !has_prefix) || digits.ends_with('_') || digits.contains("__");
    if misplaced {
        return Err(NumberError::Syntax);
    }
    Ok(digits.replace('_', ""))
}

/// The units of `time.ParseDuration`, longest spelling first, in nanoseconds.
const DURATION_UNITS: [(&str, i128); 8] = [
    ("ns", 1),
    ("us", 1_000),
    ("\u{b5}s", 1_000),
    ("\u{3bc}s", 1_000),
    ("ms", 1_000_000),
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
];

/// `time.ParseDuration`, in nanoseconds. The error is the rest of Go's sentence after `time: `.
pub(super) fn duration(text: &str) -> Result<i64, String> {
    let invalid = || format!("invalid duration {text:?}");
    let (sign, mut rest) = match text.as_bytes() {
        [b'-', ..] => (-1, &text[1..]),
        [b'+', ..] => (1, &text[1..]),
        _ => (1, text),
    };
    if rest == "0" {
        return Ok(0);
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut total: i128 = 0;
    while !rest.is_empty() {
        let (whole, after) = leading_digits(rest);
        let (fraction, after) = match after.strip_prefix('.') {
            Some(after) => leading_digits(after),
            None => ("", after),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(invalid());
        }
        let end = after.find(|c: char| c == '.' || c.is_ascii_digit()).unwrap_or(after.len());
        let (unit, next) = after.split_at(end);
        if unit.is_empty() {
            return Err(format!("missing unit in duration {text:?}"));
        }
        let Some((_, scale)) = DURATION_UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(format!("unknown unit {unit:?} in duration {text:?}"));
        };
        total += scaled(whole, fraction, *scale).ok_or_else(invalid)?;
        if total > 1 << 63 {
            return Err(invalid());
        }
        rest = next;
    }
    i64::try_from(sign * total).map_err(|_| invalid())
}

fn leading_digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

/// `whole.fraction` units in nanoseconds; what is smaller than one is cut off. `None` when it does not fit.
fn scaled(whole: &str, fraction: &str, scale: i128) -> Option<i128> {
    let whole: i128 = if whole.is_empty() { 0 } else { whole.parse::<i64>().ok()?.into() };
    let mut nanoseconds = whole * scale;
    let mut place = scale;
    for digit in fraction.bytes() {
        place /= 10;
        nanoseconds += i128::from(digit - b'0') * place;
    }
    Some(nanoseconds)
}

/// Go's `time.Duration.String` for whole seconds and below, as far as messages need it.
pub(super) fn duration_text(nanoseconds: i64) -> String {
    if nanoseconds == 0 {
        return "0s".to_owned();
    }
    let sign = if nanoseconds < 0 { "-" } else { "" };
    let magnitude = nanoseconds.unsigned_abs();
    if magnitude < 1_000_000_000 {
        let (scale, unit) = match magnitude {
            ..1_000 => (1, "ns"),
            1_000..1_000_000 => (1_000, "\u{b5}s"),
            _ => (1_000_000, "ms"),
        };
        return format!("{sign}{}{unit}", decimal(magnitude, scale));
    }
    let seconds = decimal(magnitude % 60_000_000_000, 1_000_000_000);
    let minutes = magnitude / 60_000_000_000;
    match (minutes / 60, minutes % 60) {
        (0, 0) => format!("{sign}{seconds}s"),
        (0, minutes) => format!("{sign}{minutes}m{seconds}s"),
        (hours, minutes) => format!("{sign}{hours}h{minutes}m{seconds}s"),
    }
}

fn decimal(value: u64, scale: u64) -> String {
    let fraction = value % scale;
    if fraction == 0 {
        return (value / scale).to_string();
    }
    let width = scale.ilog10() as usize;
    let digits = format!("{fraction:0width$}");
    format!("{}.{}", value / scale, digits.trim_end_matches('0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_are_read_as_go_reads_them() {
        assert_eq!(unsigned("0x10"), Ok(16));
        assert_eq!(unsigned("1_000"), Ok(1000));
        assert_eq!(unsigned("010"), Ok(8));
        assert_eq!(unsigned("0"), Ok(0));
        assert_eq!(unsigned("0o17"), Ok(15));
        assert_eq!(unsigned("-1"), Err(NumberError::Syntax));
        assert_eq!(unsigned(""), Err(NumberError::Syntax));
        assert_eq!(unsigned("1__0"), Err(NumberError::Syntax));
        assert_eq!(unsigned("18446744073709551616"), Err(NumberError::Range));
        assert_eq!(signed("-9223372036854775808"), Ok(i64::MIN));
        assert_eq!(signed("9223372036854775808"), Err(NumberError::Range));
        assert_eq!(signed("+5"), Ok(5));
        assert_eq!(signed("--5"), Err(NumberError::Syntax));
    }

    #[test]
    fn durations_are_read_as_go_reads_them() {
        assert_eq!(duration("1h30m"), Ok(5_400_000_000_000));
        assert_eq!(duration("1.5s"), Ok(1_500_000_000));
        assert_eq!(duration("-10ms"), Ok(-10_000_000));
        assert_eq!(duration("0"), Ok(0));
        assert_eq!(duration(".5m"), Ok(30_000_000_000));
        assert_eq!(duration("foo"), Err("invalid duration \"foo\"".to_owned()));
        assert_eq!(duration("-1"), Err("missing unit in duration \"-1\"".to_owned()));
        assert_eq!(duration("1x"), Err("unknown unit \"x\" in duration \"1x\"".to_owned()));
        assert_eq!(duration("10000000h"), Err("invalid duration \"10000000h\"".to_owned()));
    }

    #[test]
    fn durations_are_written_as_go_writes_them() {
        for text in ["0s", "1.5s", "10ms", "1m0s", "2h0m0s", "1h30m1.25s", "-1s", "100ns"] {
            let nanoseconds = duration(text).expect("a duration");
            assert_eq!(duration_text(nanoseconds), text);
        }
    }
}

//! The text of a log line, byte for byte as zap's encoders with etcd's settings write it.
//!
//! Pure: time and caller are arguments.

use std::fmt::{self, Write as _};
use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::{Caller, Level, LogFormat};

/// A name and a borrowed value.
pub struct Field<'a> {
    name: &'a str,
    value: &'a dyn FieldValue,
}

impl<'a> Field<'a> {
    /// `name` may be a literal as `stringify!` leaves it: its quotes are taken off.
    pub fn new(name: &'a str, value: &'a dyn FieldValue) -> Field<'a> {
        Field { name, value }
    }
}

/// What can stand in a field.
pub trait FieldValue {
    /// Appends the value as JSON.
    fn write_json(&self, out: &mut Vec<u8>);
}

impl<T: FieldValue + ?Sized> FieldValue for &T {
    fn write_json(&self, out: &mut Vec<u8>) {
        (**self).write_json(out);
    }
}

/// `None` is null.
impl<T: FieldValue> FieldValue for Option<T> {
    fn write_json(&self, out: &mut Vec<u8>) {
        match self {
            Some(value) => value.write_json(out),
            None => out.extend_from_slice(b"null"),
        }
    }
}

impl<T: FieldValue> FieldValue for [T] {
    fn write_json(&self, out: &mut Vec<u8>) {
        out.push(b'[');
        for (index, value) in self.iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            value.write_json(out);
        }
        out.push(b']');
    }
}

impl<T: FieldValue> FieldValue for Vec<T> {
    fn write_json(&self, out: &mut Vec<u8>) {
        self.as_slice().write_json(out);
    }
}

macro_rules! bare {
    ($($kind:ty),*) => {$(
        impl FieldValue for $kind {
            fn write_json(&self, out: &mut Vec<u8>) {
                push_display(out, format_args!("{self}"));
            }
        }
    )*};
}

bare!(bool, u8, u16, u32, u64, usize, i32, i64, isize);

macro_rules! quoted {
    ($($kind:ty),*) => {$(
        impl FieldValue for $kind {
            fn write_json(&self, out: &mut Vec<u8>) {
                push_string(out, format_args!("{self}"));
            }
        }
    )*};
}

quoted!(str, String, std::net::SocketAddr, std::io::Error, anyhow::Error, crate::config::Url, fmt::Arguments<'_>);
quoted!(dyn std::error::Error, dyn std::error::Error + Send + Sync, Box<dyn std::error::Error + Send + Sync>);

impl FieldValue for std::path::Path {
    fn write_json(&self, out: &mut Vec<u8>) {
        push_string(out, format_args!("{}", self.display()));
    }
}

impl FieldValue for std::path::PathBuf {
    fn write_json(&self, out: &mut Vec<u8>) {
        self.as_path().write_json(out);
    }
}

/// As Go writes durations with etcd's encoder: `1.5ms`, `2m0s` shortened to seconds by Rust's own form.
impl FieldValue for Duration {
    fn write_json(&self, out: &mut Vec<u8>) {
        push_string(out, format_args!("{self:?}"));
    }
}

/// Anything that can be printed, as a string: `error = Shown(&error)`.
pub struct Shown<T>(pub T);

impl<T: fmt::Display> FieldValue for Shown<T> {
    fn write_json(&self, out: &mut Vec<u8>) {
        push_string(out, format_args!("{}", self.0));
    }
}

/// Everything a line says.
pub(super) struct Event<'a> {
    pub(super) level: Level,
    pub(super) at: SystemTime,
    pub(super) caller: Caller,
    pub(super) message: &'a str,
    pub(super) fields: &'a [Field<'a>],
}

/// Appends the line and its end.
pub(super) fn build(out: &mut Vec<u8>, format: LogFormat, event: &Event<'_>) {
    match format {
        LogFormat::Json => build_json(out, event),
        LogFormat::Console => build_console(out, event),
    }
    out.push(b'\n');
}

fn build_json(out: &mut Vec<u8>, event: &Event<'_>) {
    out.extend_from_slice(b"{\"level\":\"");
    out.extend_from_slice(event.level.as_str().as_bytes());
    out.extend_from_slice(b"\",\"ts\":\"");
    push_time(out, event.at);
    out.extend_from_slice(b"\",\"caller\":");
    push_string(out, format_args!("{}:{}", short_path(event.caller.file), event.caller.line));
    out.extend_from_slice(b",\"msg\":");
    push_string(out, format_args!("{}", event.message));
    for field in event.fields {
        out.push(b',');
        push_field(out, field);
    }
    out.push(b'}');
}

fn build_console(out: &mut Vec<u8>, event: &Event<'_>) {
    push_time(out, event.at);
    push_display(
        out,
        format_args!(
            "\t{}\t{}:{}\t{}",
            event.level.as_str(),
            short_path(event.caller.file),
            event.caller.line,
            event.message
        ),
    );
    if event.fields.is_empty() {
        return;
    }
    out.extend_from_slice(b"\t{");
    for (index, field) in event.fields.iter().enumerate() {
        if index > 0 {
            out.extend_from_slice(b", ");
        }
        push_key(out, field);
        out.extend_from_slice(b": ");
        field.value.write_json(out);
    }
    out.push(b'}');
}

fn push_field(out: &mut Vec<u8>, field: &Field<'_>) {
    push_key(out, field);
    out.push(b':');
    field.value.write_json(out);
}

/// etcd spells its fields with dashes, which no Rust name can have.
fn push_key(out: &mut Vec<u8>, field: &Field<'_>) {
    let name = field.name.trim_matches('"');
    out.push(b'"');
    out.extend(name.bytes().map(|byte| if byte == b'_' { b'-' } else { byte }));
    out.push(b'"');
}

/// The last two segments, as zap's short caller.
fn short_path(path: &str) -> &str {
    match path.rmatch_indices('/').nth(1) {
        Some((at, _)) => &path[at + 1..],
        None => path,
    }
}

fn push_display(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    out.write_fmt(text).expect("writing to a Vec does not fail");
}

fn push_string(out: &mut Vec<u8>, text: fmt::Arguments<'_>) {
    out.push(b'"');
    Escaped(out).write_fmt(text).expect("writing to a Vec does not fail");
    out.push(b'"');
}

/// Escapes what JSON does not allow in a string.
struct Escaped<'a>(&'a mut Vec<u8>);

impl fmt::Write for Escaped<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for byte in text.bytes() {
            match byte {
                b'"' => self.0.extend_from_slice(b"\\\""),
                b'\\' => self.0.extend_from_slice(b"\\\\"),
                b'\n' => self.0.extend_from_slice(b"\\n"),
                b'\r' => self.0.extend_from_slice(b"\\r"),
                b'\t' => self.0.extend_from_slice(b"\\t"),
                0..0x20 => push_display(self.0, format_args!("\\u{byte:04x}")),
                _ => self.0.push(byte),
            }
        }
        Ok(())
    }
}

/// `2026-12-01T01:02:03.456789Z`. A clock before 1970 reads as 1970.
fn push_time(out: &mut Vec<u8>, at: SystemTime) {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let seconds = since.as_secs();
    let (year, month, day) = civil_date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    push_display(
        out,
        format_args!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{:06}Z", since.subsec_micros()),
    );
}

/// Year, month and day of the proleptic Gregorian calendar, counted in eras of 400 years that begin in March, so
/// that the leap day is the last of its year.
fn civil_date(days_since_1970: u64) -> (u64, u64, u64) {
    const DAYS_TO_1970_FROM_0000_03_01: u64 = 719_468;
    const DAYS_PER_ERA: u64 = 146_097;
    let days = days_since_1970 + DAYS_TO_1970_FROM_0000_03_01;
    let (era, day_of_era) = (days / DAYS_PER_ERA, days % DAYS_PER_ERA);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    // Five months from March on have 153 days.
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(format: LogFormat, message: &str, fields: &[Field<'_>]) -> String {
        let at = UNIX_EPOCH + Duration::new(1_796_086_923, 456_789_999);
        let caller = Caller { file: "node/src/server/listen.rs", line: 120 };
        let mut out = Vec::new();
        build(&mut out, format, &Event { level: Level::Info, at, caller, message, fields });
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn json_lines_are_zaps() {
        let urls = vec!["http://a:1", "http://b:2"];
        let line = check(
            LogFormat::Json,
            "ready to serve client requests",
            &[
                Field::new("local_member_id", &"8e9e05c52164694d"),
                Field::new("urls", &urls),
                Field::new("\"took\"", &7u64),
            ],
        );
        assert_eq!(
            line,
            "{\"level\":\"info\",\"ts\":\"2026-12-01T01:02:03.456789Z\",\"caller\":\"server/listen.rs:120\",\
             \"msg\":\"ready to serve client requests\",\"local-member-id\":\"8e9e05c52164694d\",\
             \"urls\":[\"http://a:1\",\"http://b:2\"],\"took\":7}\n"
        );
    }

    #[test]
    fn console_lines_are_zaps() {
        let fields = [Field::new("name", &"a"), Field::new("count", &2u32)];
        assert_eq!(
            check(LogFormat::Console, "started", &fields),
            "2026-12-01T01:02:03.456789Z\tinfo\tserver/listen.rs:120\tstarted\t{\"name\": \"a\", \"count\": 2}\n"
        );
        assert_eq!(
            check(LogFormat::Console, "started", &[]),
            "2026-12-01T01:02:03.456789Z\tinfo\tserver/listen.rs:120\tstarted\n"
        );
    }

    #[test]
    fn text_is_escaped() {
        let line = check(LogFormat::Json, "a \"quoted\"\n\\ line\u{1}", &[Field::new("none", &None::<u64>)]);
        assert!(line.contains(r#""msg":"a \"quoted\"\n\\ line\u0001","none":null}"#), "{line}");
        serde_json::from_str::<serde_json::Value>(&line).expect("JSON");
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, date) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_788, (2026, 12, 1)),
            (47_540, (2100, 2, 28)),
            (47_541, (2100, 3, 1)),
        ] {
            assert_eq!(civil_date(days), date, "day {days}");
        }
    }
}

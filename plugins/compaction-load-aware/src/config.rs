//! The rules, as an operator writes them.

use kuorum_plugin_sdk::FieldError;
use serde::{Deserialize, Deserializer, de::Error};

const MINUTES_PER_DAY: u64 = 24 * 60;

/// Windows in a day at most.
const WINDOWS_MAX: usize = 24;

/// The longest that the plugin may sleep: an emergency is not noticed meanwhile.
const CHECK_SECONDS_MAX: u32 = 3600;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    pub(crate) keep: Keep,
    #[serde(default)]
    pub(crate) windows: Vec<Window>,
    #[serde(default)]
    pub(crate) quiet: Quiet,
    pub(crate) watcher_lag_revisions_max: Option<u32>,
    pub(crate) defragment_free_percent: Option<u8>,
    pub(crate) emergency: Option<Emergency>,
    #[serde(default = "default_check_seconds")]
    pub(crate) check_seconds: u32,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Keep {
    pub(crate) minutes: u32,
    pub(crate) revisions: u32,
}

/// From a minute of the day up to another, which may be on the next day.
#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Window {
    #[serde(deserialize_with = "minute_of_day")]
    from: u64,
    #[serde(deserialize_with = "minute_of_day")]
    to: u64,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Quiet {
    pub(crate) writes_per_s_max: Option<u32>,
    pub(crate) p99_write_us_max: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Emergency {
    pub(crate) quota_percent: u8,
    pub(crate) keep: Keep,
}

impl Config {
    pub(crate) fn errors(&self) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut expect = |holds: bool, path: &str, message: &str| {
            if !holds {
                errors.push(FieldError::new(path, message));
            }
        };
        expect(self.windows.len() <= WINDOWS_MAX, "windows", "there are 24 at most");
        for (at, window) in self.windows.iter().enumerate() {
            expect(window.from != window.to, &format!("windows[{at}]"), "a window must not end where it begins");
        }
        let free = self.defragment_free_percent.unwrap_or(1);
        expect((1..=99).contains(&free), "defragment_free_percent", "from 1 to 99 percent");
        expect((1..=CHECK_SECONDS_MAX).contains(&self.check_seconds), "check_seconds", "from 1 to 3600 seconds");
        if let Some(emergency) = &self.emergency {
            let percent = emergency.quota_percent;
            expect((1..=100).contains(&percent), "emergency.quota_percent", "from 1 to 100 percent");
            let keeps_less =
                emergency.keep.minutes <= self.keep.minutes && emergency.keep.revisions <= self.keep.revisions;
            expect(keeps_less, "emergency.keep", "an emergency must not keep more than `keep` does");
        }
        errors
    }
}

impl Window {
    /// Whether a time, in milliseconds since the epoch, falls into it. The epoch began at midnight UTC.
    pub(crate) fn contains(&self, now_ms: u64) -> bool {
        let minute = now_ms / 60_000 % MINUTES_PER_DAY;
        if self.from < self.to {
            (self.from..self.to).contains(&minute)
        } else {
            minute >= self.from || minute < self.to
        }
    }
}

fn default_check_seconds() -> u32 {
    60
}

fn minute_of_day<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    let text = String::deserialize(deserializer)?;
    parse_time(&text)
        .ok_or_else(|| D::Error::custom(format!("{text:?} is no time of day: write hours:minutes, as 05:30")))
}

fn parse_time(text: &str) -> Option<u64> {
    let (hours, minutes) = text.split_once(':')?;
    let two_digits = |part: &str| part.len() == 2 && part.bytes().all(|byte| byte.is_ascii_digit());
    if !two_digits(hours) || !two_digits(minutes) {
        return None;
    }
    let (hours, minutes): (u64, u64) = (hours.parse().ok()?, minutes.parse().ok()?);
    (hours < 24 && minutes < 60).then_some(hours * 60 + minutes)
}

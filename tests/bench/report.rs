//! Medians over the turns of a row, their ratios, and the table.

use std::fmt::Write as _;
use std::time::Duration;

use super::load::Run;

/// Percent steps of the histogram that stand in the table.
const MEDIAN: f64 = 0.5;
const TAIL: f64 = 0.99;

/// One turn of one server. What a row does not measure is not there.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Measure {
    pub(crate) per_second: Option<f64>,
    pub(crate) p50_ms: Option<f64>,
    pub(crate) p99_ms: Option<f64>,
    pub(crate) max_ms: Option<f64>,
    pub(crate) pause_ms: Option<f64>,
    pub(crate) cpu_us: Option<f64>,
    pub(crate) resident_mib: Option<f64>,
}

#[expect(clippy::cast_precision_loss, reason = "counts of a benchmark stay far below 2^53")]
impl Measure {
    pub(crate) fn of(run: &Run) -> Measure {
        let calls = run.calls.max(1) as f64;
        let at = |quantile| Some(run.latency_us.value_at_quantile(quantile) as f64 / 1e3);
        Measure {
            per_second: Some(run.calls as f64 / run.taken.time.as_secs_f64()),
            p50_ms: at(MEDIAN),
            p99_ms: at(TAIL),
            max_ms: Some(run.latency_us.max() as f64 / 1e3),
            pause_ms: Some(run.pause.as_secs_f64() * 1e3),
            cpu_us: Some(run.taken.cpu.as_secs_f64() * 1e6 / calls),
            resident_mib: Some(mebibytes(run.resident_bytes)),
        }
    }

    /// One wait: it stands in the column of the median.
    pub(crate) fn of_wait(took: Duration, resident_bytes: u64) -> Measure {
        let (p50_ms, resident_mib) = (Some(took.as_secs_f64() * 1e3), Some(mebibytes(resident_bytes)));
        Measure { p50_ms, resident_mib, ..Measure::default() }
    }

    /// The longest time without an answer alone.
    pub(crate) fn of_pause(pause: Duration) -> Measure {
        Measure { pause_ms: Some(pause.as_secs_f64() * 1e3), ..Measure::default() }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a process has less than 2^53 bytes")]
fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

type Column = (&'static str, fn(&Measure) -> Option<f64>);

const COLUMNS: [Column; 7] = [
    ("/s", |measure| measure.per_second),
    ("p50 ms", |measure| measure.p50_ms),
    ("p99 ms", |measure| measure.p99_ms),
    ("max ms", |measure| measure.max_ms),
    ("pause ms", |measure| measure.pause_ms),
    ("CPU us", |measure| measure.cpu_us),
    ("RSS MiB", |measure| measure.resident_mib),
];

struct Entry {
    row: String,
    server: &'static str,
    measures: Vec<Measure>,
}

/// All rows so far, in the order in which they were measured.
#[derive(Default)]
pub(crate) struct Report {
    entries: Vec<Entry>,
    /// Sentences below the table.
    said: Vec<String>,
}

impl Report {
    pub(crate) fn add(&mut self, row: &str, server: &'static str, measure: Measure) {
        let known = self.entries.iter_mut().find(|entry| entry.row == row && entry.server == server);
        match known {
            Some(entry) => entry.measures.push(measure),
            None => self.entries.push(Entry { row: row.to_owned(), server, measures: vec![measure] }),
        }
    }

    /// Notes a sentence for below the table, and prints it.
    #[expect(clippy::print_stdout, reason = "the table is what the program is for")]
    pub(crate) fn say(&mut self, sentence: String) {
        println!("{sentence}");
        self.said.push(sentence);
    }

    /// The medians of a row by server.
    fn medians(&self, row: &str, server: &str) -> Option<[Option<f64>; COLUMNS.len()]> {
        let entry = self.entries.iter().find(|entry| entry.row == row && entry.server == server)?;
        Some(COLUMNS.map(|(_, value)| median(entry.measures.iter().filter_map(value).collect())))
    }

    #[expect(clippy::print_stdout, reason = "the table is what the program is for")]
    pub(crate) fn print_row(&self, row: &str) {
        print!("{}", self.row(row));
    }

    /// The lines of one row: each server, then the ratio of Kuorum to etcd.
    fn row(&self, row: &str) -> String {
        let mut text = String::new();
        let [etcd, kuorum] = ["etcd", "kuorum"].map(|server| self.medians(row, server));
        for (server, medians) in [("etcd", &etcd), ("Kuorum", &kuorum)] {
            if let Some(medians) = medians {
                line(&mut text, row, server, &medians.map(|value| value.map(significant)));
            }
        }
        if let (Some(etcd), Some(kuorum)) = (etcd, kuorum) {
            let ratios = std::array::from_fn(|column| match (kuorum[column], etcd[column]) {
                (Some(ours), Some(theirs)) if theirs > 0.0 => Some(format!("**{:.2}**", ours / theirs)),
                _ => None,
            });
            line(&mut text, row, "ratio", &ratios);
        }
        text
    }

    /// The whole table, in Markdown.
    pub(crate) fn table(&self) -> String {
        let mut text = header();
        let mut done: Vec<&str> = Vec::new();
        for entry in &self.entries {
            if !done.contains(&entry.row.as_str()) {
                done.push(&entry.row);
                text.push_str(&self.row(&entry.row));
            }
        }
        for sentence in &self.said {
            text.push_str(&format!("\n{sentence}\n"));
        }
        text
    }
}

/// The head of the table.
pub(crate) fn header() -> String {
    let titles: Vec<&str> = COLUMNS.iter().map(|(title, _)| *title).collect();
    format!("| row | server | {} |\n|---|---|{}\n", titles.join(" | "), "---:|".repeat(COLUMNS.len()))
}

fn line(text: &mut String, row: &str, server: &str, values: &[Option<String>; COLUMNS.len()]) {
    let values: Vec<&str> = values.iter().map(|value| value.as_deref().unwrap_or("")).collect();
    writeln!(text, "| {row} | {server} | {} |", values.join(" | ")).expect("a string grows");
}

/// Three digits that mean something.
fn significant(value: f64) -> String {
    match value.abs() {
        100.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

pub(crate) fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_medians_and_their_ratio() {
        let mut report = Report::default();
        for (server, rates) in [("etcd", [10.0, 1_000.0, 12.0]), ("kuorum", [30.0, 24.0, 1.0])] {
            for rate in rates {
                report.add("put", server, Measure { per_second: Some(rate), ..Measure::default() });
            }
        }
        let table = report.table();
        assert!(table.contains("| put | etcd | 12.0 |"), "{table}");
        assert!(table.contains("| put | Kuorum | 24.0 |"), "{table}");
        assert!(table.contains("| put | ratio | **2.00** |"), "{table}");
    }

    #[test]
    fn the_median_of_an_even_number_lies_between() {
        assert_eq!(median(vec![4.0, 1.0, 3.0, 2.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }
}

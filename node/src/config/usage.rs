//! The usage texts, written from the flag table.

use std::fmt::Write;

use super::flags::{self, Flag, Kind, Tier};
use super::gates;

/// What follows a mistake on the command line.
pub(super) fn short() -> &'static str {
    "Usage:

  kuorum [flags]
    Start a server.

  kuorum --version
    Show the version.

  kuorum -h | --help
    Show every flag with its default.

  kuorum --config-file PATH
    Take the configuration from a YAML file; all other flags and variables are then ignored.

  kuorum plugin ...
    Bring plugins into a running cluster; `kuorum plugin --help` says how.
"
}

/// The answer to `--help`: every flag of the table by group.
pub(super) fn full() -> String {
    let mut text = short().to_owned();
    for group in &flags::GROUPS {
        push_line(&mut text, format_args!("\n{}:", group.title));
        for flag in group.flags {
            push_flag(&mut text, flag);
        }
    }
    push_line(
        &mut text,
        format_args!("\nEach flag can be set by a variable too: --some-flag by ETCD_SOME_FLAG. The command line wins."),
    );
    text
}

fn push_flag(text: &mut String, flag: &Flag) {
    push_line(text, format_args!("  --{} '{}'", flag.name, flag.default));
    match flag.tier {
        Tier::Works => push_line(text, format_args!("    {}", flag.about)),
        Tier::Refused(missing) => push_line(text, format_args!("    {} Refused: {missing}.", flag.about)),
        Tier::NoEffect(why) => push_line(text, format_args!("    {}; no effect: {why}.", flag.about)),
    }
    if flag.kind == Kind::Gates {
        for line in gates::gate_lines() {
            push_line(text, format_args!("    {line}"));
        }
    }
}

fn push_line(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("writing to a String does not fail");
}

//! The `kuorum` binary: reads the configuration, starts the log, runs the server; or speaks to one that runs.

use std::io::{self, Write};
use std::process::ExitCode;

use kuorum::config::{self, Command, Config, ConfigError, Warning};
use kuorum::{plugin, trace};

/// Memory is mostly freed by another thread than took it, which cost glibc's allocator a third of the time of large reads.
/// jemalloc needed 5.4 ms of CPU for a range of 10,000 keys where mimalloc needed 7.4 and glibc 8.9, and held the least.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    match std::env::args_os().nth(1).as_deref().and_then(|word| word.to_str()) {
        Some("plugin") => return kuorum::cli::plugin::run(std::env::args_os().skip(2)),
        Some(plugin::COMPILE_ARGUMENT) => return plugin::compile_child(std::env::args_os().skip(2)),
        _ => {}
    }
    match config::parse(std::env::args_os().skip(1), environment()) {
        Ok(Command::PrintVersion) => print(&config::version_text()),
        Ok(Command::PrintHelp(text)) => print(&text),
        Ok(Command::Serve(config, warnings)) => match serve(*config, &warnings) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("kuorum: {error:#}");
                ExitCode::FAILURE
            }
        },
        Err(error) => refuse(&error),
    }
}

/// Variables that are not UTF-8 can name no flag and hold no value of one.
fn environment() -> impl Iterator<Item = (String, String)> {
    std::env::vars_os().filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
}

/// A reader that has closed the pipe has seen enough.
fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

fn refuse(error: &ConfigError) -> ExitCode {
    for line in error.lines() {
        eprintln!("{line}");
    }
    ExitCode::from(error.exit_code())
}

fn serve(config: Config, warnings: &[Warning]) -> anyhow::Result<()> {
    trace::init(&config.log)?;
    for warning in warnings {
        trace::warn_of(warning);
    }
    kuorum::server::run(config)
}

//! `kuorum plugin`: what an operator does with plugins.

mod arguments;
mod connection;
mod load;
mod mode;
mod output;
mod show;
mod tail;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::runtime::Builder;

use self::arguments::{Action, Parsed, Request};
use self::connection::Connection;

/// Carries out `kuorum plugin` with these arguments.
pub fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let request = match arguments::parse(arguments) {
        Ok(Parsed::Request(request)) => request,
        Ok(Parsed::Help) => {
            // A reader that has closed the pipe has seen enough.
            io::stdout().write_all(arguments::USAGE.as_bytes()).ok();
            return ExitCode::SUCCESS;
        }
        Err(mistake) => {
            eprintln!("kuorum plugin: {mistake}; see kuorum plugin --help");
            return ExitCode::from(2);
        }
    };
    match carry_out(&request) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("kuorum plugin {}: {error:#}", request.action.word());
            ExitCode::FAILURE
        }
    }
}

/// Returns whether what was asked for is so; if not, why not has been said.
fn carry_out(request: &Request) -> anyhow::Result<bool> {
    let runtime = Builder::new_current_thread().enable_all().build().context("the system gives no runtime")?;
    runtime.block_on(async {
        let mut connection = Connection::open(request).await?;
        match &request.action {
            Action::Load(load) => load::load(&mut connection, request.output, load).await,
            Action::List => show::list(&mut connection, request.output).await,
            Action::Inspect { name } => show::inspect(&mut connection, request.output, name).await,
            Action::SetMode(change) => mode::set(&mut connection, request.output, change).await,
            Action::Rollback(change) => mode::roll_back(&mut connection, request.output, change).await,
            Action::Remove { name } => mode::remove(&mut connection, request.output, name).await,
            Action::Tail { name } => tail::tail(&mut connection, request.output, name).await,
        }
    })
}

//! `kuorum plugin`: what authors and operators do with plugins.
//!
//! Authors' commands (`new`, `build`, `test`) run on the author's machine alone; the others speak to a cluster.

mod arguments;
mod build;
mod connection;
mod load;
mod mode;
mod new;
mod output;
mod questions;
mod show;
mod tail;
mod toolchain;
mod trial;

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::process::ExitCode;

use anyhow::Context as _;
use tokio::runtime::Builder;

use self::arguments::{Action, Authoring, Members, Operation, Output, Parsed, Request};
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
            output::say(&format!("kuorum plugin: {mistake}; see kuorum plugin --help"));
            return ExitCode::from(2);
        }
    };
    match carry_out(&request).and_then(|is_so| {
        output::written().context("standard output can't be written")?;
        Ok(is_so)
    }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            output::say(&format!("kuorum plugin {}: {error:#}", request.word));
            ExitCode::FAILURE
        }
    }
}

/// Returns whether what was asked for is so; if not, why not has been said.
fn carry_out(request: &Request) -> anyhow::Result<bool> {
    match &request.action {
        Action::Author(Authoring::New(new)) => new::create(request.output, new),
        Action::Author(Authoring::Build(build)) => build::build(request.output, build),
        Action::Author(Authoring::Test(test)) => trial::test(request.output, test),
        Action::Operator(members, operation) => operate(request.output, members, operation),
    }
}

fn operate(output: Output, members: &Members, operation: &Operation) -> anyhow::Result<bool> {
    let runtime = Builder::new_current_thread().enable_all().build().context("the system gives no runtime")?;
    runtime.block_on(async {
        let mut connection = Connection::open(members).await?;
        match operation {
            Operation::Load(load) => load::load(&mut connection, output, load).await,
            Operation::List => show::list(&mut connection, output).await,
            Operation::Inspect { name } => show::inspect(&mut connection, output, name).await,
            Operation::SetMode(change) => mode::set(&mut connection, output, change).await,
            Operation::Rollback(change) => mode::roll_back(&mut connection, output, change).await,
            Operation::Remove { name } => mode::remove(&mut connection, output, name).await,
            Operation::Tail { name } => tail::tail(&mut connection, output, name).await,
        }
    })
}

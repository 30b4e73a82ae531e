//! Parse arguments, run, map the error to an exit code; nothing else.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    ExitCode::from(holdpoint::cli::run())
}

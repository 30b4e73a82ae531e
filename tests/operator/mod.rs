//! Tests the binary as an operator uses it: its commands, their output and exit codes, and the
//! service.

mod backups;
mod commands;
mod configuration_mistakes;
mod connections;
mod credential_secrecy;
mod decision_paths;
mod gate_command;
mod https_tools;
mod init_file;
mod log_lines;
mod mcp_results;
mod mcp_review;
mod memory;
mod metrics;
mod notify_command;
mod notify_rooms;
mod notify_secrecy;
mod older_version;
mod packages;
mod refunds_example;
mod served_binary;
mod shutdown;
mod starting;
mod stored_values;
mod variable_secrecy;

use std::path::Path;
use std::process::{Command, Stdio};

struct Done {
    code: Option<i32>,
    out: String,
    err: String,
}

/// Runs the program with these arguments in a folder, with these variables and no others.
fn holdpoint(folder: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Done {
    let mut command = Command::new(env!("CARGO_BIN_EXE_holdpoint"));
    command
        .args(arguments)
        .env_clear()
        .envs(variables.iter().copied())
        .current_dir(folder)
        .stdin(Stdio::null());
    let done = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Done {
        code: done.status.code(),
        out: text(done.stdout),
        err: text(done.stderr),
    }
}

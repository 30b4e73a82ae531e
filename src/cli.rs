//! The commands. Exit codes: 0 ok, 1 failed, 2 wrong use or configuration; `gate` has further exit
//! codes. Results go to standard output, error messages to standard error.

mod gate;
mod mcp;

use std::fmt::Display;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::app::{self, DatabaseOptions, LogFormat, ServeOptions};
use crate::config::environment::Environment;
use crate::config::layers::{Flags, NOT_UTF_8};
use crate::config::report::ConfigReport;
use crate::config::{self, Config, SMALLEST, Source};
use crate::failpoint;

const OK: u8 = 0;
const FAILED: u8 = 1;
/// The exit code for wrong use or a wrong configuration.
const USAGE_ERROR: u8 = 2;

/// Runs AI-agent tasks and stops them at the point where a human must agree.
#[derive(Debug, Parser)]
#[command(name = "holdpoint", version, args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<CliCommand>,
    #[command(flatten)]
    serve: Serve,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    /// Serve. With no configuration and no `./holdpoint.yaml`: the built-in demonstration.
    Serve(Serve),
    /// Print every mistake in the configuration.
    Check(CommonOptions),
    /// Apply the migrations of the database.
    Migrate(CommonOptions),
    /// Write the smallest configuration, with comments. Never overwrites a file.
    Init {
        /// The file to write.
        #[arg(default_value = "holdpoint.yaml")]
        file: PathBuf,
    },
    /// Print the configuration's JSON Schema.
    Schema {
        /// Print the reference page of the configuration instead.
        #[arg(long)]
        markdown: bool,
    },
    /// Print the description of the API, as JSON.
    Openapi,
    /// Ask whether the service is ready.
    Health(CommonOptions),
    /// Send a ping to an entry of `notify.to`, and print the result.
    Notify {
        /// The name of the entry in `notify.to`.
        name: String,
        #[command(flatten)]
        common: CommonOptions,
    },
    /// Manage the tools of MCP servers.
    #[command(subcommand)]
    Mcp(mcp::Mcp),
    /// Ask a running service whether a call may run.
    #[command(subcommand)]
    Gate(gate::GateCommand),
    /// Print the version.
    Version,
    /// Guard one shell command. Only the service starts `holdpoint __guard`.
    #[command(name = "__guard", hide = true)]
    Guard,
}

/// The options that name the configuration or override settings.
#[derive(Debug, Default, Args)]
struct CommonOptions {
    /// The configuration file. Default: `HOLDPOINT_CONFIG`, else `./holdpoint.yaml` if that file
    /// exists, else the built-in demonstration. `mcp lock` needs a file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(flatten)]
    flags: Flags,
}

#[derive(Debug, Default, Args)]
struct Serve {
    #[command(flatten)]
    common: CommonOptions,
    /// The format of log lines.
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT")]
    log_format: LogFormat,
    /// The database is a restored backup or a promoted standby. Each call that may already have run
    /// then needs a decision. If the identity of a Postgres has changed, this flag is not needed,
    /// because the service notices the change.
    #[arg(long)]
    restored: bool,
    /// Log at debug level the lines that MCP servers on this host write to standard error.
    #[arg(long)]
    log_mcp_stderr: bool,
    /// Serve on a database that may lose commits.
    #[arg(long = "unsafe")]
    permit_unsafe: bool,
}

/// Runs the command on this process's command line, in this process's environment. Returns the exit
/// code.
pub fn run() -> u8 {
    run_with(std::env::args_os(), &Environment::process())
}

/// Like [`run`], with the given command line and environment.
pub fn run_with(
    arguments: impl IntoIterator<Item = std::ffi::OsString>,
    environment: &Environment,
) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => {
            let _ = error.print();
            return u8::try_from(error.exit_code()).unwrap_or(USAGE_ERROR);
        }
    };
    let ended = match cli.command.unwrap_or(CliCommand::Serve(cli.serve)) {
        CliCommand::Serve(options) => serve(&options, environment),
        CliCommand::Check(common) => check(&common, environment),
        CliCommand::Migrate(common) => migrate(&common, environment),
        CliCommand::Init { file } => init(&file),
        CliCommand::Schema { markdown: true } => Ok(print(&config::page::markdown())),
        CliCommand::Schema { markdown: false } => {
            serde_json::to_string_pretty(&config::schema::schema())
                .map(|text| print(&format!("{text}\n")))
                .map_err(|error| (FAILED, error.to_string()))
        }
        CliCommand::Openapi => Ok(print(&app::openapi())),
        CliCommand::Health(common) => health(&common, environment),
        CliCommand::Notify { name, common } => notify(&name, &common, environment),
        CliCommand::Mcp(command) => mcp::run(&command, environment),
        CliCommand::Gate(command) => Ok(gate::run(command, environment)),
        CliCommand::Guard => Ok(app::guard()),
        CliCommand::Version => Ok(print(&format!("holdpoint {}\n", env!("CARGO_PKG_VERSION")))),
    };
    ended.unwrap_or_else(|(code, why)| print_error(code, why))
}

/// The exit code and the error message of a command that failed.
type CommandFailure = (u8, String);

fn print(text: &str) -> u8 {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Ok(()) => OK,
        Err(_) => FAILED,
    }
}

fn print_error(code: u8, what: impl Display) -> u8 {
    let _ = writeln!(std::io::stderr().lock(), "{}", what.to_string().trim_end());
    code
}

/// The configuration file if `--config` and `HOLDPOINT_CONFIG` name none.
const DEFAULT_FILE: &str = "holdpoint.yaml";

/// Returns the source of the configuration: the file of `--config`, else of `HOLDPOINT_CONFIG`,
/// else the default file if it exists, else the demonstration. In the last two cases, also returns
/// a note that tells the user about the source.
fn source(
    common: &CommonOptions,
    environment: &Environment,
) -> Result<(Source, Option<&'static str>), String> {
    let variable = environment
        .variable("HOLDPOINT_CONFIG")
        .filter(|path| !path.is_empty())
        .map(PathBuf::from);
    let named = common.config.clone().or(variable);
    if named.is_none() && environment.is_undecodable("HOLDPOINT_CONFIG") {
        return Err(format!("HOLDPOINT_CONFIG: {NOT_UTF_8}"));
    }
    let path = named.clone().unwrap_or_else(|| PathBuf::from(DEFAULT_FILE));
    match environment.file(&path) {
        Ok(text) => Ok((
            Source::File(path, text),
            named.is_none().then_some(USING_DEFAULT_FILE),
        )),
        // A symbolic link whose target is missing is an error, like an unreadable file. It does not
        // count as a missing file.
        Err(error)
            if named.is_none()
                && error.kind() == std::io::ErrorKind::NotFound
                && !path.is_symlink() =>
        {
            Ok((Source::Demo, Some(USING_DEMO)))
        }
        Err(error) => Err(format!(
            "{}: the configuration cannot be read: {error}",
            path.display()
        )),
    }
}

const USING_DEFAULT_FILE: &str =
    "Neither --config nor HOLDPOINT_CONFIG names a configuration: using ./holdpoint.yaml.";
const USING_DEMO: &str =
    "No configuration is named and there is no ./holdpoint.yaml: using the built-in demonstration.";

/// Loads the configuration. Returns also the warnings about it, and the note of [`source`]. The
/// error message lists every mistake.
fn load(
    common: &CommonOptions,
    environment: &Environment,
) -> Result<(Config, ConfigReport, Option<&'static str>), CommandFailure> {
    let (source, note) = source(common, environment).map_err(|why| (USAGE_ERROR, why))?;
    match config::load(source, environment, &common.flags, app::check) {
        Ok((config, report)) => Ok((config, report, note)),
        Err(report) => {
            let note = note.map(|note| format!("{note}\n")).unwrap_or_default();
            Err((USAGE_ERROR, format!("{note}{report}")))
        }
    }
}

fn load_and_report(
    common: &CommonOptions,
    environment: &Environment,
) -> Result<Config, CommandFailure> {
    let (config, report, note) = load(common, environment)?;
    let mut err = std::io::stderr().lock();
    if let Some(note) = note {
        let _ = writeln!(err, "{note}");
    }
    let _ = write!(err, "{report}");
    Ok(config)
}

fn check(common: &CommonOptions, environment: &Environment) -> Result<u8, CommandFailure> {
    let config = load_and_report(common, environment)?;
    let gates = match config.gates.len() {
        0 => String::new(),
        count => format!(" gates: {count},"),
    };
    let mut lines = vec![format!(
        "The configuration is valid. Agents: {},{gates} tools: {}, rules: {}.",
        config.agents.len(),
        config.tools.len(),
        config.policy.len()
    )];
    lines.extend(config.recipient_lines());
    Ok(print(&(lines.join("\n") + "\n")))
}

fn notify(
    name: &str,
    common: &CommonOptions,
    environment: &Environment,
) -> Result<u8, CommandFailure> {
    let config = load_and_report(common, environment)?;
    let Some(pong) = run_to_end(app::ping(&config, name))? else {
        let known = config.notify.to.iter();
        let known: Vec<_> = known.map(|entry| format!("`{}`", entry.name)).collect();
        let known = if known.is_empty() {
            "`notify.to` is empty".to_owned()
        } else {
            format!("known are {}", known.join(", "))
        };
        let why = format!("no entry of `notify.to` has the name `{name}`; {known}");
        return Err((USAGE_ERROR, why));
    };
    let Some(took) = pong.took else {
        return Err((FAILED, format!("{name}: {}", pong.problem)));
    };
    let milliseconds = took.as_millis();
    let answer = match (pong.status, pong.problem) {
        (Some(status), "") => format!("{status} in {milliseconds} ms"),
        (Some(status), problem) => format!("{status} in {milliseconds} ms: {problem}"),
        (None, "") => format!("accepted in {milliseconds} ms"),
        (None, problem) if problem.contains("mail server") => {
            format!("not accepted in {milliseconds} ms: {problem}")
        }
        (None, problem) => format!("no answer in {milliseconds} ms: {problem}"),
    };
    if pong.problem.is_empty() {
        Ok(print(&format!("{name}: {answer}\n")))
    } else {
        Err((FAILED, format!("{name}: {answer}")))
    }
}

/// Runs `work` to its end. Does not wait for threads that are still blocked, for example in name
/// resolution.
fn run_to_end<T>(work: impl Future<Output = anyhow::Result<T>>) -> Result<T, CommandFailure> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| (FAILED, error.to_string()))?;
    let done = runtime.block_on(work);
    runtime.shutdown_background();
    done.map_err(|error| (FAILED, format!("{error:#}")))
}

fn serve(options: &Serve, environment: &Environment) -> Result<u8, CommandFailure> {
    let (mut config, report, note) = load(&options.common, environment)?;
    config.log_mcp_stderr = options.log_mcp_stderr;
    let points = environment.variable("HOLDPOINT_FAILPOINTS");
    failpoint::arm(points.unwrap_or_default()).map_err(|mistake| (USAGE_ERROR, mistake))?;
    let metrics = app::start_log(options.log_format, config.log.as_deref())
        .map_err(|error| (FAILED, error.to_string()))?;
    let options = ServeOptions {
        note,
        warnings: report.warnings,
        database: DatabaseOptions {
            restored: options.restored,
            permit_unsafe: options.permit_unsafe,
        },
    };
    match run_to_end(app::serve(config, options, metrics)) {
        // Logs the error if the log's filter lets errors through. Otherwise the caller prints the
        // error.
        Err((code, why)) if tracing::enabled!(tracing::Level::ERROR) => {
            tracing::error!("{why}");
            Ok(code)
        }
        ended => ended.map(|()| OK),
    }
}

fn migrate(common: &CommonOptions, environment: &Environment) -> Result<u8, CommandFailure> {
    let config = load_and_report(common, environment)?;
    run_to_end(app::migrate(&config))?;
    Ok(print("The database has the tables of this version.\n"))
}

fn init(file: &Path) -> Result<u8, CommandFailure> {
    let written = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(file);
    let written = written.and_then(|mut open| {
        let written = open.write_all(SMALLEST.as_bytes());
        // After a full disk, a part of the file would keep the next `init` from writing it.
        written.inspect_err(|_| drop(std::fs::remove_file(file)))
    });
    match written {
        Ok(()) => {
            let name = file.display();
            Ok(print(&format!(
                "\
Wrote {name}. Now:

  export OPENAI_API_KEY=…
  holdpoint check --config {name}
  holdpoint serve --config {name}

Then create a task. The agent's call of its tool is held; `pending` in the answer has the link to approve it:

  curl -s http://127.0.0.1:8080/v1/tasks -H 'Content-Type: application/json' -d '{{\"input\": \"Where is order 17?\"}}'
"
            )))
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let file = file.display();
            let why = format!("{file}: the file exists already and was not changed");
            Err((USAGE_ERROR, why))
        }
        Err(error) => Err((FAILED, format!("{}: {error}", file.display()))),
    }
}

fn health(common: &CommonOptions, environment: &Environment) -> Result<u8, CommandFailure> {
    let (config, ..) = load(common, environment)?;
    let Some(address) = config.server.address() else {
        let why = "`server.listen` is not an address";
        return Err((USAGE_ERROR, why.to_owned()));
    };
    match readyz_status(reachable(address)) {
        Ok(200) => Ok(OK),
        Ok(status) => Err((FAILED, format!("not ready: the service answered {status}"))),
        Err(error) => Err((FAILED, format!("not ready: {error}"))),
    }
}

/// Returns `address` with loopback instead of the unspecified IP, so that this machine can connect
/// to a service that listens there.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        });
    }
    address
}

fn readyz_status(address: SocketAddr) -> std::io::Result<u16> {
    let wait = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&address, wait)?;
    stream.set_read_timeout(Some(wait))?;
    stream.set_write_timeout(Some(wait))?;
    let request = format!("GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut head = Vec::new();
    stream.take(4096).read_to_end(&mut head)?;
    let head = String::from_utf8_lossy(&head);
    let status = head
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3))
        .and_then(|status| status.parse().ok());
    status.ok_or_else(|| {
        std::io::Error::new(std::io::ErrorKind::InvalidData, "it does not speak HTTP")
    })
}

#[cfg(test)]
mod tests;

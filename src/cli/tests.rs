//! Tests of the commands' exit codes and outputs.

use super::*;

fn code(arguments: &[&str], environment: &Environment) -> u8 {
    run_with(
        std::iter::once("holdpoint")
            .chain(arguments.iter().copied())
            .map(Into::into),
        environment,
    )
}

const GOOD: &str = "models: { m: { provider: openai, model: x } }\nagents: { a: { model: m } }\n";

#[test]
fn check_exits_with_0_or_2() {
    let files = [("/good.yaml", GOOD), ("/bad.yaml", "agents: {}\n")];
    let environment = Environment::new(&[], &files);
    assert_eq!(code(&["check", "--config", "/good.yaml"], &environment), OK);
    assert_eq!(
        code(&["check", "--config", "/bad.yaml"], &environment),
        USAGE_ERROR
    );
    assert_eq!(
        code(&["check", "--config", "/gone.yaml"], &environment),
        USAGE_ERROR
    );
    assert_eq!(
        code(&["check"], &environment),
        OK,
        "the demonstration is right"
    );
    let beside = Environment::new(
        &[],
        &[("holdpoint.yaml", "agents: {}\n"), ("/good.yaml", GOOD)],
    );
    assert_eq!(
        code(&["check"], &beside),
        USAGE_ERROR,
        "the file that stands beside"
    );
    assert_eq!(
        code(&["check", "--config", "/good.yaml"], &beside),
        OK,
        "another one is named"
    );
    assert_eq!(
        code(&["check", "--listen", "nowhere"], &environment),
        USAGE_ERROR
    );
    let named = Environment::new(&[("HOLDPOINT_CONFIG", "/bad.yaml")], &files);
    assert_eq!(code(&["check"], &named), USAGE_ERROR);
    assert_eq!(
        code(&["check", "--config", "/good.yaml"], &named),
        OK,
        "the flag beats the variable"
    );
}

#[test]
fn wrong_usage_exits_with_2() {
    let environment = Environment::default();
    for wrong in [
        &["frobnicate"][..],
        &["serve", "--nothing"],
        &["serve", "--log-format", "xml"],
        &["check", "a"],
    ] {
        assert_eq!(code(wrong, &environment), USAGE_ERROR, "{wrong:?}");
    }
    for right in ["version", "schema", "--version", "--help"] {
        assert_eq!(code(&[right], &environment), OK, "{right}");
    }
}

#[test]
fn init_writes_the_smallest_file_but_never_over_another() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("new.yaml");
    let name = file.to_str().unwrap();
    assert_eq!(code(&["init", name], &Environment::default()), OK);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), SMALLEST);
    std::fs::write(&file, "mine").unwrap();
    assert_eq!(code(&["init", name], &Environment::default()), USAGE_ERROR);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "mine");
}

#[test]
fn serve_is_the_default_command() {
    let cli = Cli::try_parse_from([
        "holdpoint",
        "--config",
        "x",
        "--log-format",
        "text",
        "--unsafe",
    ])
    .unwrap();
    assert!(
        cli.command.is_none() && cli.serve.permit_unsafe && cli.serve.log_format == LogFormat::Text
    );
    assert_eq!(cli.serve.common.config, Some(PathBuf::from("x")));
    assert!(
        Cli::try_parse_from(["holdpoint"])
            .unwrap()
            .command
            .is_none()
    );
}

#[test]
fn health_asks_the_configured_address() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = std::thread::spawn(move || {
        for status in ["200 OK", "503 Service Unavailable"] {
            let (mut stream, _) = listener.accept().unwrap();
            let mut asked = [0; 512];
            let read = stream.read(&mut asked).unwrap();
            assert!(asked[..read].starts_with(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1:"));
            write!(stream, "HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").unwrap();
        }
    });
    let listen = format!("127.0.0.1:{port}");
    for expected in [OK, FAILED] {
        assert_eq!(
            code(&["health", "--listen", &listen], &Environment::default()),
            expected
        );
    }
    serve.join().unwrap();
    assert_eq!(
        code(&["health", "--listen", &listen], &Environment::default()),
        FAILED
    );
    for (from, to) in [
        ("0.0.0.0:80", "127.0.0.1:80"),
        ("[::]:80", "[::1]:80"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        // A link-local address needs its scope, the number of a network interface.
        ("[fe80::1%2]:80", "[fe80::1%2]:80"),
    ] {
        assert_eq!(reachable(from.parse().unwrap()).to_string(), to);
    }
}

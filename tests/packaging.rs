//! Tests the files that ship with the program: the image, the compose file and its configuration,
//! the systemd unit, the npm package's file and the README's promises. The tests check the text of
//! the files, and that the program accepts the configuration. So they run without Docker and
//! systemd.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

#[test]
fn compose_file_waits_for_a_healthy_postgres_that_keeps_its_data() {
    let compose = yaml("docker-compose.yml");
    let services = &compose["services"];
    assert_eq!(services["postgres"]["image"], "postgres:17");
    assert_eq!(
        services["holdpoint"]["depends_on"]["postgres"]["condition"],
        "service_healthy"
    );
    assert_eq!(
        services["holdpoint"]["healthcheck"]["test"],
        serde_json::json!(["CMD", "holdpoint", "health"])
    );
    assert!(services["postgres"]["healthcheck"]["test"].is_array());
    let volume = services["postgres"]["volumes"][0]
        .as_str()
        .expect("a volume")
        .to_owned();
    let (name, _) = volume.split_once(':').expect("a named volume");
    assert!(compose["volumes"].get(name).is_some(), "{name} is declared");
    for port in services["holdpoint"]["ports"].as_array().expect("ports") {
        assert!(
            port.as_str()
                .is_some_and(|port| port.starts_with("127.0.0.1:")),
            "{port}: not only on this machine"
        );
    }
}

#[test]
fn every_compose_variable_is_in_the_example_without_a_value() {
    let asked: BTreeSet<String> = read("docker-compose.yml")
        .split("${")
        .skip(1)
        .filter_map(|rest| rest.split([':', '}']).next())
        .map(str::to_owned)
        .collect();
    let example = read(".env.example");
    let given: BTreeSet<String> = example
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.strip_suffix('='))
        .map(str::to_owned)
        .collect();
    assert_eq!(
        asked, given,
        "left: docker-compose.yml; right: .env.example"
    );
}

#[test]
fn compose_configuration_is_accepted_and_is_the_demonstration_with_an_account() {
    let check = |key: &str| {
        holdpoint(
            &["check", "--config", "docker/holdpoint.yaml"],
            &[
                ("DEMO_KEY", key),
                ("HOLDPOINT_SERVER__LISTEN", "0.0.0.0:8080"),
                (
                    "HOLDPOINT_DATABASE__URL",
                    "postgres://holdpoint:secret@postgres:5432/holdpoint",
                ),
            ],
        )
    };
    let accepted = check("0123456789abcdef0123456789abcdef");
    assert!(
        accepted.status.success(),
        "{}",
        String::from_utf8_lossy(&accepted.stderr)
    );
    assert_eq!(
        check("").status.code(),
        Some(2),
        "without a key it is refused"
    );

    let mut shipped = yaml("docker/holdpoint.yaml");
    let keys = shipped.as_object_mut().expect("a map");
    assert!(keys.remove("server").is_some() && keys.remove("auth").is_some());
    let mut demo = yaml("src/config/demo.yaml");
    // The shipped configuration has accounts, so a gate would need a second key. Compose asks for
    // only one key, so the shipped configuration leaves out the demonstration's gate.
    assert!(
        demo.as_object_mut()
            .expect("a map")
            .remove("gates")
            .is_some()
    );
    assert_eq!(shipped, demo);
}

#[test]
fn image_runs_as_an_unprivileged_user_below_an_init_and_reports_its_health() {
    let image = read("Dockerfile");
    let toolchain = read("rust-toolchain.toml");
    let version = toolchain.split('"').nth(1).expect("a channel");
    assert!(
        image.contains(&format!("FROM rust:{version}-slim-")),
        "the image is built by {version}"
    );
    assert!(image.contains(&format!("RUSTUP_TOOLCHAIN={version}")));
    let last = image.rsplit("\nFROM ").next().expect("a last stage");
    assert!(last.contains("\nUSER 10001:10001\n"));
    assert!(last.contains("\nENV HOLDPOINT_SERVER__LISTEN=0.0.0.0:8080\n"));
    assert!(last.contains("\nHEALTHCHECK ") && last.contains(r#"CMD ["holdpoint", "health"]"#));
    // A child of an ended process becomes a child of the first process, and stays a zombie unless
    // the first process reaps it. The service reaps only the processes that it has started.
    assert!(last.contains(" ca-certificates tini "));
    assert!(last.contains("\nENTRYPOINT [\"tini\", \"-s\", \"--\", \"holdpoint\"]\n"));
}

/// The image is built from the files that `.dockerignore` names, without those of tests and
/// benchmarks. Cargo refuses a manifest with a target that has neither a path nor a file.
#[test]
fn manifest_has_a_path_for_every_target_that_the_image_leaves_out() {
    let manifest = read("Cargo.toml");
    let targets: Vec<&str> = manifest.split("\n[[").skip(1).collect();
    assert_eq!(targets.len(), 3, "the service, the tests and a benchmark");
    for target in targets {
        let table = target.split("\n[").next().unwrap_or_default();
        assert!(table.contains("\npath = "), "[[{table}");
    }
}

#[test]
fn kubernetes_examples_name_the_image_of_this_version() {
    let page = read("docs/deployment.md");
    let images: Vec<&str> = page
        .lines()
        .filter_map(|line| line.split_once("image: registry.example.com/holdpoint:"))
        .filter_map(|(_, rest)| rest.split_whitespace().next())
        .collect();
    assert_eq!(images, [env!("CARGO_PKG_VERSION"); 2]);
}

/// Without `--wait`, the next command of the page would come before the service listens. Without
/// `--locked`, `cargo install` would take other versions of the dependencies than the tests.
#[test]
fn documented_commands_wait_for_the_service_and_install_the_tested_dependencies() {
    let deployment = read("docs/deployment.md");
    assert!(deployment.contains("\ndocker compose up --build --wait "));
    for page in ["README.md", "examples/refunds/README.md"] {
        let text = read(page);
        let commands: Vec<&str> = text.split("`cargo install ").skip(1).collect();
        assert!(!commands.is_empty(), "{page}");
        for command in commands {
            assert!(command.starts_with("--locked "), "{page}: {command}");
        }
    }
}

#[test]
fn systemd_unit_gives_the_service_no_rights_and_lets_running_calls_end() {
    let unit = read("packaging/holdpoint.service");
    let settings: Vec<(&str, &str)> = unit
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .collect();
    for (name, value) in [
        ("DynamicUser", "yes"),
        ("StateDirectory", "holdpoint"),
        ("StateDirectoryMode", "0700"),
        ("WorkingDirectory", "/var/lib/holdpoint"),
        ("CapabilityBoundingSet", ""),
        ("NoNewPrivileges", "yes"),
        ("ProtectSystem", "strict"),
        ("ProtectHome", "yes"),
        ("PrivateTmp", "yes"),
        ("PrivateDevices", "yes"),
        ("RestrictAddressFamilies", "AF_INET AF_INET6 AF_UNIX"),
        ("RestrictNamespaces", "yes"),
        ("MemoryDenyWriteExecute", "yes"),
        ("SystemCallFilter", "@system-service"),
        ("SystemCallFilter", "~@privileged"),
        // With `mixed`, systemd sends SIGTERM to the main process alone. The service gives running
        // shell tools 25 s to end by themselves, and its whole shutdown takes at most 30 s.
        ("KillMode", "mixed"),
        ("TimeoutStopSec", "45"),
        // The exit code of a wrong configuration.
        ("RestartPreventExitStatus", "2"),
    ] {
        assert!(settings.contains(&(name, value)), "{name}={value}");
    }
    let readme = read("packaging/README.md");
    for path in [
        "/usr/local/bin/",
        "/etc/holdpoint/holdpoint.yaml",
        "/etc/holdpoint/environment",
    ] {
        assert!(unit.contains(path) && readme.contains(path), "{path}");
    }
}

#[test]
fn example_beside_the_unit_is_the_smallest_file_on_a_database_that_the_unit_may_write() {
    let mut example = yaml("packaging/holdpoint.example.yaml");
    let database = example.as_object_mut().expect("a map").remove("database");
    assert_eq!(
        database.expect("a database")["url"],
        "sqlite:///var/lib/holdpoint/holdpoint.db"
    );
    assert_eq!(example, yaml("src/config/smallest.yaml"));
}

#[test]
fn npm_package_describes_the_program_and_has_a_command_of_its_own_name() {
    let package: Value = serde_json::from_str(&read("packaging/package.json")).expect("JSON");
    assert_eq!(package["description"], env!("CARGO_PKG_DESCRIPTION"));
    let name = package["name"].as_str().expect("a name");
    assert!(package["bin"][name].is_string() && package["bin"]["holdpoint"].is_string());
}

#[test]
fn readme_shows_the_file_that_init_writes() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("holdpoint.yaml");
    let written = holdpoint(&["init", &file.to_string_lossy()], &[]);
    assert!(
        written.status.success(),
        "{}",
        String::from_utf8_lossy(&written.stderr)
    );
    let written = fs::read_to_string(&file).expect("the file");
    let shown: Value = serde_saphyr::from_str(block_after(&read("README.md"), "```yaml\n"))
        .expect("YAML in the README");
    let written: Value = serde_saphyr::from_str(&written).expect("YAML");
    assert_eq!(shown, written);
}

fn block_after<'a>(page: &'a str, fence: &str) -> &'a str {
    let (_, rest) = page.split_once(fence).expect("a fenced block");
    rest.split_once("```").expect("its end").0
}

fn holdpoint(arguments: &[&str], environment: &[(&str, &str)]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdpoint"))
        .args(arguments)
        .env_clear()
        .envs(environment.iter().copied())
        .current_dir(root())
        .output()
        .expect("the program runs")
}

fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&read(path)).expect("YAML")
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).expect("a readable file")
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

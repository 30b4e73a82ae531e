//! Installs each package of `scripts/release` into an empty folder, and carries one refund of the
//! demonstration to its end with the installed commands. Usually the tests make the packages from
//! the binary under test. If `HOLDPOINT_TEST_PACKAGES` names a folder (`scripts/release --check`
//! sets it), the tests take the packages from that folder and also run `uvx`.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::served_binary::Folder;
use crate::first_run::{Demonstration, json, run};

/// The longest permitted time from a package's command to the first held refund.
const TO_THE_FIRST_HELD_REFUND: Duration = Duration::from_secs(5);

struct Packages {
    folder: PathBuf,
    /// Whether `scripts/release` built the binary of the packages.
    are_released: bool,
    _packed: Option<Folder>,
}

impl Packages {
    fn new() -> Self {
        if let Some(folder) = std::env::var_os("HOLDPOINT_TEST_PACKAGES") {
            return Self {
                folder: folder.into(),
                are_released: true,
                _packed: None,
            };
        }
        let packed = Folder::new();
        let (binary, out) = (packed.file("holdpoint"), packed.file("packages"));
        // Removes the debug symbols. With them, packing would take twice as long.
        succeed(
            Command::new("strip")
                .args(["-o".as_ref(), binary.as_os_str()])
                .arg(env!("CARGO_BIN_EXE_holdpoint")),
        );
        succeed(
            Command::new(root().join("scripts/release"))
                .args(["--binary".as_ref(), binary.as_os_str()])
                .args(["--out".as_ref(), out.as_os_str()]),
        );
        Self {
            folder: out,
            are_released: false,
            _packed: Some(packed),
        }
    }

    /// Returns the only package whose name has this ending.
    fn with_ending(&self, ending: &str) -> PathBuf {
        let entries = fs::read_dir(&self.folder).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        let found: Vec<_> = paths
            .filter(|path| path.to_string_lossy().ends_with(ending))
            .collect();
        let [package] = found.as_slice() else {
            panic!("one package {ending}: {found:?}")
        };
        package.clone()
    }
}

#[test]
fn each_package_runs_the_demonstration_from_an_empty_folder() {
    let packages = Packages::new();
    succeed(
        Command::new("sha256sum")
            .args(["--check", "--strict", "SHA256SUMS"])
            .current_dir(&packages.folder),
    );
    std::thread::scope(|scope| {
        scope.spawn(|| wheel(&packages));
        scope.spawn(|| {
            npm_package(&packages);
            tarball(&packages);
        });
    });
}

fn wheel(packages: &Packages) {
    let (folder, wheel) = (Folder::new(), packages.with_ending(".whl"));
    recorded_files_are_the_files_of(&wheel);
    let environment = folder.file("environment");
    let programs = environment.join("bin");
    // A pip of the environment's own would take more time than the rest of this function. An
    // environment needs it only where Python has no other pip.
    // Before version 22.3, pip serves no other environment.
    let help = command("python3", &folder)
        .args(["-m", "pip", "--help"])
        .output()
        .unwrap();
    let has_pip = String::from_utf8_lossy(&help.stdout).contains("--python ");
    succeed(
        command("python3", &folder)
            .args(["-m", "venv"])
            .args(has_pip.then_some("--without-pip"))
            .arg(&environment),
    );
    let python = programs.join("python");
    let mut install = if has_pip {
        let mut pip = command("python3", &folder);
        pip.args(["-m", "pip", "--python"]).arg(&python);
        pip
    } else {
        let mut pip = command(&python, &folder);
        pip.args(["-m", "pip"]);
        pip
    };
    succeed(
        install
            .args(["install", "--quiet", "--no-index"])
            .arg(&wheel),
    );
    for name in ["holdpoint", "holdpoint-server"] {
        runs_the_cycle(&mut command(programs.join(name), &Folder::new()));
    }
    if packages.are_released {
        let folder = Folder::new();
        let mut uvx = command("uvx", &folder);
        uvx.args(["--quiet", "--offline", "--from"])
            .args([wheel.as_os_str(), "holdpoint-server".as_ref()]);
        runs_the_cycle(&mut uvx);
    }
}

/// Compares the wheel's RECORD with its files, as a strict installer does.
fn recorded_files_are_the_files_of(wheel: &Path) {
    const COMPARE: &str = "
import base64, csv, hashlib, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
[record] = [name for name in wheel.namelist() if name.endswith('.dist-info/RECORD')]
rows = [row for row in csv.reader(wheel.read(record).decode().splitlines()) if row[0] != record]
assert sorted(name for name, _, _ in rows) == sorted(set(wheel.namelist()) - {record}), rows
for name, digest, size in rows:
    content = wheel.read(name)
    digest_of_content = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip('=')
    assert (digest, int(size)) == ('sha256=' + digest_of_content, len(content)), name
";
    succeed(Command::new("python3").args(["-c", COMPARE]).arg(wheel));
}

fn npm_package(packages: &Packages) {
    let folder = Folder::new();
    succeed(
        command("npm", &folder)
            .args([
                "install",
                "--silent",
                "--offline",
                "--no-audit",
                "--no-fund",
            ])
            .arg(packages.with_ending(".tgz")),
    );
    let installed = folder.file("node_modules/.bin/holdpoint");
    runs_the_cycle(&mut command(installed, &Folder::new()));
    let mut npx = command("npx", &folder);
    runs_the_cycle(npx.args(["--offline", "holdpoint-server"]));
    for licence in ["LICENSE-APACHE", "LICENSE-MIT"] {
        let path = Path::new("node_modules/holdpoint-server").join(licence);
        assert!(folder.path().join(&path).is_file(), "{}", path.display());
    }
}

fn tarball(packages: &Packages) {
    let folder = Folder::new();
    succeed(
        command("tar", &folder)
            .args(["--extract", "--strip-components=1", "--file"])
            .arg(packages.with_ending(".tar.gz")),
    );
    let mut files: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    files.sort();
    assert_eq!(
        files,
        [
            "LICENSE-APACHE",
            "LICENSE-MIT",
            "README.md",
            "holdpoint",
            "holdpoint.example.yaml",
            "holdpoint.service"
        ]
    );
    let mut check = command(folder.file("holdpoint"), &folder);
    succeed(
        check
            .args(["check", "--config", "holdpoint.example.yaml"])
            .env("OPENAI_API_KEY", "sk-0123456789abcdef"),
    );
    runs_the_cycle(&mut command(folder.file("holdpoint"), &folder));
}

/// Runs the cycle up to ten times, because other processes may slow it down. Asserts that one run
/// is fast enough.
fn runs_the_cycle(command: &mut Command) {
    command.args(["--listen", "127.0.0.1:0"]);
    let is_fast = (0..10).any(|_| cycle(command) < TO_THE_FIRST_HELD_REFUND);
    assert!(is_fast, "{command:?}");
}

/// Starts the demonstration, posts a refund that a rule holds, and approves it. Returns the time
/// from the start until the refund was held.
fn cycle(command: &mut Command) -> Duration {
    let began = Instant::now();
    let demonstration = Demonstration::serve(command);
    let [post, approve] = demonstration.commands.as_slice() else {
        panic!("no demonstration: {command:?}")
    };
    let held = json(&run(post));
    let took = began.elapsed();
    assert_eq!(held["status"], "Paused", "{command:?}: {held}");
    let program = command.get_program().display();
    eprintln!(
        "{} ms to the first held refund: {program}",
        took.as_millis()
    );
    let request = held["pending"][0]["request_id"].as_str().unwrap();
    let completed = json(&run(&approve.replace("REQUEST_ID", request)));
    assert_eq!(completed["status"], "Completed", "{command:?}: {completed}");
    took
}

/// Returns a command that has the folder as its home and its working folder. Its environment is
/// `HOME` and `PATH`.
fn command(program: impl AsRef<OsStr>, folder: &Folder) -> Command {
    let mut command = Command::new(program);
    command
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .env("HOME", folder.path())
        .current_dir(folder.path());
    command
}

fn succeed(command: &mut Command) {
    let done = command.stdin(Stdio::null()).output().unwrap();
    assert!(
        done.status.success(),
        "{command:?}\n{}{}",
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

//! Tests of commands under a guard. The guard is this test program, started again with only the
//! test `guard_process_runs_as_the_guard_of_a_command`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::Path;

use serde_json::json;
use tokio::sync::oneshot;
use uuid::Uuid;

use super::super::credential::Credentials;
use super::*;
use crate::secret::Secret;
use crate::task::id::{CallId, TaskId};
use crate::task::tool_spec::{Effect, ToolKind};

mod credentials;

#[test]
#[ignore = "not a test: the guard's process"]
fn guard_process_runs_as_the_guard_of_a_command() {
    std::process::exit(super::super::guard::guard_main());
}

pub(crate) fn this_program() -> GuardCommand {
    let arguments = [
        "tool::shell::tests::guard_process_runs_as_the_guard_of_a_command",
        "--exact",
        "--ignored",
        "--nocapture",
    ];
    GuardCommand {
        program: std::env::current_exe().unwrap(),
        arguments: arguments.map(str::to_owned).to_vec(),
    }
}

fn tool(directory: &Path, timeout: Duration, max_output: usize) -> ShellTool {
    let directory = directory.to_str().unwrap().to_owned();
    let environment = [("PATH", "/usr/bin:/bin"), ("TOKEN", "s3cr3t-s3cr3t")];
    let env =
        environment.map(|(name, value)| (name.to_owned(), Some(Secret::new(value.to_owned()))));
    ShellTool {
        spec: ToolSpec {
            name: "Shell".to_owned(),
            description: String::new(),
            parameters: parameters(),
            effect: Effect::Once,
            kind: ToolKind::Shell,
            target: format!("shell {directory}"),
            summary: None,
            timeout,
            definition: String::new(),
            needs: Vec::new(),
        },
        settings: Settings {
            working_dir: directory,
            timeout,
            env: Env(BTreeMap::from(env)),
            max_output,
        },
        guard: this_program(),
        redactor: Arc::new(Redactor::new([(
            "TOKEN",
            &Secret::new("s3cr3t-s3cr3t".to_owned()),
        )])),
    }
}

fn invocation(command: &str) -> Invocation {
    let arguments = json!({"command": command});
    Invocation {
        tenant: "acme".to_owned(),
        owner: "alice".to_owned(),
        task_id: TaskId(Uuid::from_u128(1)),
        call_id: CallId(Uuid::from_u128(2)),
        may_be_lost: true,
        arguments_text: arguments.to_string(),
        arguments,
        decided_by: None,
        traceparent: String::new(),
        permit: AttemptPermit::permitted_while(|| true),
        credentials: Credentials::default(),
        resume: None,
        late: crate::tool::LateAnswerCell::default(),
        raw: crate::tool::RawResultCell::default(),
    }
}

async fn run(command: &str) -> ToolAnswer {
    let directory = tempfile::tempdir().unwrap();
    tool(directory.path(), Duration::from_secs(20), 1000)
        .call(&invocation(command))
        .await
}

fn succeeded(content: &str) -> ToolAnswer {
    ToolAnswer::Succeeded {
        content: content.to_owned(),
        http_status: None,
    }
}

fn failed(content: &str) -> ToolAnswer {
    ToolAnswer::Failed {
        content: content.to_owned(),
        http_status: None,
    }
}

/// A named pipe that shows when a command begins and ends. `began` fires when the command has
/// written to the pipe. `gone` fires when the last process of the command has closed the pipe.
struct Alive {
    directory: tempfile::TempDir,
    began: Option<oneshot::Receiver<()>>,
    gone: oneshot::Receiver<()>,
}

impl Alive {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pipe = directory.path().join("alive");
        assert!(
            std::process::Command::new("mkfifo")
                .arg(&pipe)
                .status()
                .unwrap()
                .success()
        );
        let ((began, was_begun), (gone, is_gone)) = (oneshot::channel(), oneshot::channel());
        std::thread::spawn(move || {
            let mut pipe = std::fs::File::open(pipe).unwrap();
            pipe.read_exact(&mut [0; 6]).unwrap();
            let _ = began.send(());
            pipe.read_to_end(&mut Vec::new()).unwrap();
            let _ = gone.send(());
        });
        Self {
            directory,
            began: Some(was_begun),
            gone: is_gone,
        }
    }

    fn tool(&self, timeout: Duration) -> ShellTool {
        tool(self.directory.path(), timeout, 1000)
    }

    /// Returns a call with a command that opens the pipe, keeps it open for all child processes,
    /// and then runs `then`.
    fn held(then: &str) -> Invocation {
        invocation(&format!("exec 3>alive; echo began >&3; {then}"))
    }

    async fn began(&mut self) {
        tokio::time::timeout(Duration::from_secs(20), self.began.take().unwrap())
            .await
            .unwrap()
            .unwrap();
    }

    async fn gone(self) {
        tokio::time::timeout(Duration::from_secs(20), self.gone)
            .await
            .expect("something still lives")
            .unwrap();
    }
}

#[tokio::test]
async fn command_result_has_its_output_and_its_exit() {
    assert_eq!(
        run("echo one; echo two").await,
        succeeded("exit code 0\nstdout:\none\ntwo")
    );
    assert_eq!(run("true").await, succeeded("exit code 0"));
    assert_eq!(
        run("echo out; echo err >&2; exit 3").await,
        failed("exit code 3\nstdout:\nout\nstderr:\nerr")
    );
    assert_eq!(run("kill -9 $$").await, failed("ended by signal 9"));
    assert_eq!(run("cat").await, succeeded("exit code 0"));
    assert!(
        matches!(run("nosuchcommand").await, ToolAnswer::Failed { content, .. } if content.contains("exit code 127"))
    );
    assert_eq!(
        run("printf 'a\\000b\\377'").await,
        succeeded("exit code 0\nstdout:\na\u{FFFD}b\u{FFFD}")
    );
}

#[tokio::test]
async fn command_group_is_killed_at_its_timeout_and_the_outcome_is_unknown() {
    let mut alive = Alive::new();
    // The shell must open the pipe before the timeout, even on a busy machine.
    let tool = alive.tool(Duration::from_secs(6));
    let call = Alive::held("(sleep 1000 & sleep 1000) & sh -c 'trap \"\" TERM; sleep 1000; true'");
    let answer = tool.call(&call).await;
    let ToolAnswer::Unknown { problem } = answer else {
        panic!("{answer:?}")
    };
    assert!(
        problem.contains("`Shell` was killed at its timeout (6s)"),
        "{problem}"
    );
    alive.began().await;
    alive.gone().await;
}

#[tokio::test]
async fn command_group_is_killed_when_the_call_is_dropped() {
    let mut alive = Alive::new();
    let tool = alive.tool(Duration::from_secs(100));
    let call = Alive::held("sleep 1000 & sleep 1000; true");
    let mut running = tool.call(&call);
    tokio::select! {
        answer = &mut running => panic!("{answer:?}"),
        () = alive.began() => {}
    }
    drop(running);
    alive.gone().await;
}

#[tokio::test]
async fn background_processes_end_with_the_command() {
    let alive = Alive::new();
    let tool = alive.tool(Duration::from_secs(100));
    assert_eq!(
        tool.call(&Alive::held("sleep 1000 & echo done")).await,
        succeeded("exit code 0\nstdout:\ndone")
    );
    alive.gone().await;
}

#[tokio::test]
async fn process_that_left_the_group_does_not_keep_the_call_waiting() {
    let answer = run("setsid sleep 3 & echo done").await;
    assert_eq!(answer, succeeded("exit code 0\nstdout:\ndone"));
}

#[tokio::test]
async fn command_that_kills_its_guard_is_killed_and_its_outcome_is_unknown() {
    let alive = Alive::new();
    let tool = alive.tool(Duration::from_secs(100));
    let answer = tool
        .call(&Alive::held("kill -9 $PPID; sleep 1000; true"))
        .await;
    assert!(matches!(answer, ToolAnswer::Unknown { .. }), "{answer:?}");
    alive.gone().await;
}

#[tokio::test]
async fn orphans_of_a_group_are_killed_after_its_leader_has_ended() {
    let mut alive = Alive::new();
    let mut leader = std::process::Command::new("sh")
        .args(["-c", "exec 3>alive; echo began >&3; sleep 1000 &"])
        .current_dir(alive.directory.path())
        .process_group(0)
        .spawn()
        .unwrap();
    let group = i32::try_from(leader.id()).unwrap();
    assert!(leader.wait().unwrap().success());
    alive.began().await;
    kill_orphans(group);
    alive.gone().await;
}

#[tokio::test]
async fn command_gets_only_the_named_variables_and_the_tools_directory() {
    let directory = tempfile::tempdir().unwrap();
    let tool = tool(directory.path(), Duration::from_secs(20), 1000);
    let seen = tool
        .call(&invocation("tr '\\0' '\\n' < /proc/$$/environ | sort"))
        .await;
    assert_eq!(
        seen,
        succeeded("exit code 0\nstdout:\nPATH=/usr/bin:/bin\nTOKEN=[secret TOKEN]")
    );
    let exported = tool.call(&invocation("env | grep -v '^_=' | sort")).await;
    assert_eq!(exported, seen, "the shell exports variables of its own");
    let place = directory.path().canonicalize().unwrap();
    assert_eq!(
        tool.call(&invocation("pwd -P; echo \"$PWD\"")).await,
        succeeded(&format!("exit code 0\nstdout:\n{0}\n{0}", place.display()))
    );
}

#[tokio::test]
async fn command_gets_a_named_variable_that_shells_also_set() {
    let directory = tempfile::tempdir().unwrap();
    let mut tool = tool(directory.path(), Duration::from_secs(20), 1000);
    let value = Some(Secret::new("/usr".to_owned()));
    tool.settings.env.0.insert("OLDPWD".to_owned(), value);
    assert_eq!(
        tool.call(&invocation("env | grep OLDPWD")).await,
        succeeded("exit code 0\nstdout:\nOLDPWD=/usr")
    );
}

#[tokio::test]
async fn output_is_cut_and_says_so() {
    let ToolAnswer::Succeeded { content, .. } = run("head -c 5000 /dev/zero | tr '\\0' x").await
    else {
        panic!()
    };
    assert_eq!(content.matches('x').count(), 1001, "one is in `exit`");
    assert!(
        content.ends_with("[cut: there was more than 1000 bytes of output]"),
        "{content}"
    );
    let both = "head -c 5000 /dev/zero | tr '\\0' o; head -c 5000 /dev/zero | tr '\\0' E >&2";
    let ToolAnswer::Succeeded { content, .. } = run(both).await else {
        panic!()
    };
    assert_eq!(content.matches('E').count(), 500);
    let exact = run("head -c 1000 /dev/zero | tr '\\0' y").await;
    assert!(
        matches!(&exact, ToolAnswer::Succeeded { content, .. } if !content.contains("cut")),
        "{exact:?}"
    );
    for pad in [980, 990, 999, 1000] {
        let command =
            format!("head -c {pad} /dev/zero | tr '\\0' y; echo $TOKEN; head -c 2000 /dev/zero");
        let ToolAnswer::Succeeded { content, .. } = run(&command).await else {
            panic!()
        };
        assert!(!content.contains("s3c"), "{content}");
    }
}

#[tokio::test]
async fn result_with_the_largest_output_is_no_longer_than_a_result_may_be() {
    let limit = output::MAX_RESULT_BYTES;
    let tool = tool(Path::new("/"), Duration::from_secs(20), limit);
    let command = format!("head -c {limit} /dev/zero | tr '\\0' y");
    let ToolAnswer::Succeeded { content, .. } = tool.call(&invocation(&command)).await else {
        panic!()
    };
    assert!(content.len() <= limit, "{}", content.len());
    assert!(content.ends_with(" bytes of output]"));
}

#[tokio::test]
async fn command_that_could_not_be_started_is_a_failure() {
    let missing = tool(Path::new("/nowhere/at/all"), Duration::from_secs(20), 1000);
    let answer = missing.call(&invocation("echo never")).await;
    assert!(
        matches!(&answer, ToolAnswer::NotSent { content } if content.contains("before the command was started")
            && content.contains("working directory: No such file or directory")),
        "{answer:?}"
    );
    for program in ["/nowhere/at/all", "/bin/false", "/dev/null"] {
        let mut unguarded = tool(Path::new("/"), Duration::from_secs(20), 1000);
        unguarded.guard = GuardCommand {
            program: program.into(),
            arguments: Vec::new(),
        };
        let answer = unguarded.call(&invocation("echo never")).await;
        assert!(
            matches!(&answer, ToolAnswer::NotSent { .. }),
            "{program} {answer:?}"
        );
    }
    let long = run(&format!("true {}", "x".repeat(200_000))).await;
    assert!(matches!(&long, ToolAnswer::NotSent { .. }), "{long:?}");
}

#[tokio::test]
async fn command_that_closes_its_outputs_and_goes_on_is_waited_for() {
    let busy = "i=0; while [ $i -lt 30000 ]; do i=$((i+1)); done";
    assert_eq!(
        run(&format!("exec >&- 2>&-; {busy}; exit 3")).await,
        failed("exit code 3")
    );
    let directory = tempfile::tempdir().unwrap();
    let tool = tool(directory.path(), Duration::from_secs(20), 1000);
    let answer = tool
        .call(&invocation(&format!(
            "exec >&- 2>&-; {busy}; echo went on > there"
        )))
        .await;
    assert_eq!(answer, succeeded("exit code 0"));
    assert_eq!(
        std::fs::read_to_string(directory.path().join("there")).unwrap(),
        "went on\n"
    );
}

#[tokio::test]
async fn command_without_a_permit_is_not_started() {
    let directory = tempfile::tempdir().unwrap();
    let tool = tool(directory.path(), Duration::from_secs(20), 1000);
    let call = Invocation {
        permit: AttemptPermit::permitted_while(|| false),
        ..invocation("touch there")
    };
    assert!(matches!(tool.call(&call).await, ToolAnswer::NotSent { .. }));
    assert!(!directory.path().join("there").exists());
}

#[tokio::test]
async fn guard_leads_a_process_group_of_its_own() {
    let groups = "cut -d' ' -f5 /proc/$$/stat; cut -d' ' -f5 /proc/$PPID/stat; echo $$ $PPID";
    let ToolAnswer::Succeeded { content, .. } = run(groups).await else {
        panic!()
    };
    let words: Vec<&str> = content.split_whitespace().skip(4).collect();
    let [command, guard, pid, parent] = words[..] else {
        panic!("{content}")
    };
    assert_eq!((command, guard), (pid, parent), "{content}");
}

#[tokio::test]
async fn command_cannot_read_the_memory_of_its_guard_even_as_root() {
    let read = "cat /proc/$PPID/environ /proc/$PPID/maps >/dev/null 2>&1 || echo refused";
    assert_eq!(run(read).await, succeeded("exit code 0\nstdout:\nrefused"));
}

#[test]
fn invalid_settings_are_mistakes() {
    let good = tool(Path::new("/"), Duration::from_secs(1), 1000).settings;
    assert_eq!(good.mistakes().found, []);
    let largest = Settings {
        max_output: output::MAX_RESULT_BYTES,
        ..good.clone()
    };
    assert_eq!(largest.mistakes().found, []);
    for wrong in [
        Settings {
            working_dir: String::new(),
            ..good.clone()
        },
        Settings {
            timeout: Duration::ZERO,
            ..good.clone()
        },
        Settings {
            timeout: Duration::from_mins(11),
            ..good.clone()
        },
        Settings {
            max_output: 0,
            ..good.clone()
        },
        Settings {
            max_output: output::MAX_RESULT_BYTES + 1,
            ..good.clone()
        },
        Settings {
            env: Env(BTreeMap::from([("A=B".to_owned(), None)])),
            ..good.clone()
        },
    ] {
        assert_eq!(wrong.mistakes().found.len(), 1, "{wrong:?}");
    }
}

#[test]
fn process_made_undumpable_is_undumpable() {
    make_undumpable().unwrap();
    assert_eq!(
        rustix::process::dumpable_behavior().unwrap(),
        DumpableBehavior::NotDumpable
    );
}

"""Runs Claude Code and Codex with the hooks that `holdpoint gate print` prints, and serves the gate that the hooks
ask."""

import json
import os
import signal
import subprocess
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable, Iterator

from fake_model import LAST_WORD, Call, FakeModel, Step, fake_model
from harness import BINARY, KEY, Place, Service, folder, until

MODULES = Path(os.environ["GATE_CLIENTS"]) / "coding_agents" / "node_modules"
AGENT = "agent-key-0123456789"
GO = "Go on."
HELP = "Help with this."
# The arguments of `Bash` in docs/gate.md.
SHELL = {
    "command": "string",
    "description": "string",
    "timeout": "number",
    "run_in_background": "boolean",
    "dangerouslyDisableSandbox": "boolean",
}


def program(pattern: str) -> str:
    found = sorted(MODULES.glob(pattern))
    assert found, f"not installed: {pattern}"
    return str(found[0])


class Claude:
    name = "claude-code"
    binary = program("@anthropic-ai/claude-code-linux-*/claude")
    edits = has_on_failure = has_failures = True
    write_tool = "Write"

    @staticmethod
    def shell(command: str) -> Call:
        return "Bash", {"command": command, "description": "A command."}

    @staticmethod
    def write(path: Path, line: str) -> Call:
        return "Write", {"file_path": str(path), "content": line + "\n"}

    @staticmethod
    def ask_mcp(key: str) -> Call:
        return "mcp__fake__add", {"key": key}

    @staticmethod
    def delegate(task: str) -> Call:
        words = {"description": "A task", "prompt": task, "subagent_type": "general-purpose", "run_in_background": False}
        return "Agent", words

    def set_up(self, run: "Run") -> None:
        settings = {"permissions": {"allow": run.permissions}, **run.hooks}
        (run.project / ".claude").mkdir()
        (run.project / ".claude" / "settings.json").write_text(json.dumps(settings))
        trusted = {"projects": {str(run.project): {"hasTrustDialogAccepted": True}}}
        (run.home / ".claude.json").write_text(json.dumps(trusted))

    def command(self, run: "Run") -> list[str]:
        servers = ["--mcp-config", json.dumps({"mcpServers": run.servers}), "--strict-mcp-config"]
        return [self.binary, "-p", GO, *servers, *run.options]

    def environment(self, model: FakeModel) -> dict[str, str]:
        off = ["DISABLE_TELEMETRY", "DISABLE_ERROR_REPORTING", "DISABLE_AUTOUPDATER"]
        off.append("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC")
        return {"ANTHROPIC_BASE_URL": model.url, "ANTHROPIC_API_KEY": "none", **dict.fromkeys(off, "1")}


class Codex:
    name = "codex"
    binary = program("@openai/codex-linux-*/vendor/*/bin/codex")
    edits = has_on_failure = has_failures = False
    write_tool = "apply_patch"

    @staticmethod
    def shell(command: str, **more: object) -> Call:
        return "exec_command", {"cmd": command, **more}

    @staticmethod
    def write(path: Path, line: str) -> Call:
        return "apply_patch", f"*** Begin Patch\n*** Add File: {path}\n+{line}\n*** End Patch\n"

    @staticmethod
    def ask_mcp(key: str) -> Call:
        return "mcp__fake/add", {"key": key}

    @staticmethod
    def delegate(task: str) -> Call:
        return "multi_agent_v1/spawn_agent", {"message": task}

    def set_up(self, run: "Run") -> None:
        home = run.home / ".codex"
        home.mkdir()
        (home / "hooks.json").write_text(json.dumps(run.hooks))
        settings = {
            "model": '"gpt-5.5"',  # a model that is offered `apply_patch`
            "model_provider": '"fake"',
            "approval_policy": '"never"',
            "sandbox_mode": '"danger-full-access"',  # these tests do not test the sandbox
            "check_for_update_on_startup": "false",
            "analytics.enabled": "false",
            "features": "{ plugins = false, apps = false }",
            "model_providers.fake": f'{{ name = "fake", base_url = "{run.model.url}/v1", wire_api = "responses" }}',
        }
        for name, server in run.servers.items():
            # In JSON, strings and lists of strings are also valid TOML.
            command, arguments = json.dumps(server["command"]), json.dumps(server["args"])
            settings[f"mcp_servers.{name}"] = f"{{ command = {command}, args = {arguments} }}"
        (home / "config.toml").write_text("".join(f"{name} = {value}\n" for name, value in settings.items()))

    def command(self, run: "Run") -> list[str]:
        trust = ["--dangerously-bypass-hook-trust"] if run.trusted else []
        return [self.binary, "exec", "--skip-git-repo-check", *trust, *run.options, GO]

    def environment(self, model: FakeModel) -> dict[str, str]:
        return {}


Agent = Claude | Codex
AGENTS: list[Agent] = [Claude(), Codex()]


class Run:
    """A run of a coding agent in a project of its own."""

    def __init__(self, gate: "Gate", agent: Agent, place: Path, model: FakeModel, **more: Any) -> None:
        self.gate, self.agent, self.place, self.model = gate, agent, place, model
        self.wait: str = more.get("wait", "60s")
        self.url: str = more.get("url", gate.url)
        self.permissions: list[str] = more.get("permissions", ["Bash", "Write", "Edit", "mcp__fake"])
        self.options: list[str] = more.get("options", [])
        self.servers: dict[str, dict] = more.get("servers", {})
        self.trusted: bool = more.get("trusted", True)
        self.project, self.home, self.programs = place / "project", place / "home", place / "bin"
        for path in (self.project, self.home, self.programs):
            path.mkdir()
        if more.get("installed", True):
            (self.programs / "holdpoint").symlink_to(BINARY)
        self.hooks = self.printed()
        agent.set_up(self)
        self.output = ""

    def printed(self) -> dict:
        command = [BINARY, "gate", "print", self.agent.name]
        done = subprocess.run(command, env={"HOLDPOINT_WAIT": self.wait}, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    def environment(self) -> dict[str, str]:
        outside = dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), self.model.url)
        inside = dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1,localhost")
        gate = {"HOLDPOINT_URL": self.url, "HOLDPOINT_KEY": AGENT, "HOLDPOINT_GATE": "coding"}
        shell = {"PATH": f"{self.programs}:/usr/local/bin:/usr/bin:/bin", "HOME": str(self.home), "SHELL": "/bin/sh"}
        return {**shell, "LANG": "C.UTF-8", **outside, **inside, **gate, **self.agent.environment(self.model)}

    def go(self) -> None:
        """Runs the coding agent until it ends by itself."""
        quiet = {"stdin": subprocess.DEVNULL, "stderr": subprocess.STDOUT, "stdout": subprocess.PIPE}
        command = self.agent.command(self)
        with subprocess.Popen(
            command, cwd=self.project, env=self.environment(), text=True, start_new_session=True, **quiet
        ) as child:
            try:
                self.output, _ = child.communicate(timeout=120)
            finally:
                if child.poll() is None:
                    os.killpg(child.pid, signal.SIGKILL)
        assert child.returncode == 0 and LAST_WORD in self.output, self.output[-3000:]
        assert not self.model.mistakes, self.model.mistakes[0]
        assert not self.model.others, f"asked other hosts: {self.model.others}"

    @property
    def ran(self) -> int:
        """Returns how many of the model's commands have run."""
        path = self.project / "ran"
        return len(path.read_text().splitlines()) if path.exists() else 0

    def told(self, word: str = GO) -> str:
        return "\n".join(self.model.told[word])

    def has_told(self, text: str, word: str = GO) -> None:
        assert text in self.told(word), f"the model was told: {self.told(word)}\n{self.output[-1500:]}"

    def kill_hook(self, with_shell: bool = False) -> None:
        """Kills the hook that waits. If `with_shell`, first kills the shell that runs the hook."""
        hook = until("a hook runs", lambda: self.processes(lambda words: Path(words[0]).name == "holdpoint"))
        shell = self.processes(lambda words: words[0].endswith("sh") and any("gate hook" in word for word in words))
        for process in [*(shell if with_shell else []), *hook]:
            os.kill(process, signal.SIGKILL)

    def processes(self, is_meant: Callable[[list[str]], bool]) -> list[int]:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_text().split("\0")
                is_ours = f"HOME={self.home}" in (process / "environ").read_text().split("\0")
            except (OSError, UnicodeDecodeError):  # it has ended, or is not ours
                continue
            if is_ours and is_meant(words):
                found.append(int(process.name))
        return found


class Gate:
    def __init__(self, service: Service) -> None:
        self.service = service
        self.url = f"http://127.0.0.1:{service.port}"

    @contextmanager
    def run(self, agent: Agent, steps: list[Step], help_with: list[Step] | None = None, **more: Any) -> Iterator[Run]:
        """Prepares a run. The model makes the calls in `steps`; in a sub-agent, it makes the calls in `help_with`."""
        with folder() as place, fake_model({HELP: help_with or [], GO: steps}) as model:
            yield Run(self, agent, place, model, **more)

    def questions(self, mark: str) -> list[dict]:
        page = self.service.get("/v1/requests?status=pending&limit=100")
        return [request for request in page["requests"] if mark in json.dumps(request)]

    def question(self, mark: str) -> dict:
        return until(f"a person is asked about {mark}", lambda: self.questions(mark))[0]

    def decide(self, mark: str, action: str, **more: object) -> dict:
        request = self.question(mark)
        call = request["tool_calls"][0]["tool_call_id"]
        body = {"digest": request["digest"], "decisions": {call: {"action": action, **more}}}
        status, answer = self.service.ask("POST", f"/resume/{request['request_id']}", body, 0)
        assert status < 300, answer
        return request

    def reports(self, task_id: str) -> str:
        """Returns the outcomes that were reported for the call after the gate let it through."""
        return json.dumps(self.service.items({"task_id": task_id}, "late_result"))


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Runs `work` in a thread while the block runs. A failure of `work` fails the block."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join()
    if failures:
        raise failures[0]


def note(mark: str) -> str:
    """Returns a command that adds a line to the file `ran`, and prints the file."""
    return f"echo {mark} >> ran; cat ran"


@contextmanager
def gate() -> Iterator[Gate]:
    with folder() as name:
        place = Place(name)
        place.offered = []
        arguments = {name: {"type": kind} for name, kind in SHELL.items()}
        shell = {"type": "object", "properties": arguments, "required": ["command"]}
        described = {"description": "The shell of a coding agent.", "external": {}, "parameters": shell}
        agent = {"user": "agent", "tenant": "acme", "key": AGENT, "may": ["gate"]}
        person = {"user": "alice", "tenant": "acme", "groups": ["ops"], "key": KEY, "admin": True}
        denied = {"name": "never", "tools": ["Bash"], "when": 'args.command.contains("forbidden")', "decide": "deny"}
        looks = {"name": "looks", "tools": ["Bash"], "when": 'args.command.startsWith("cat ")', "decide": "allow"}
        ops = {"name": "all", "tools": ["*"], "decide": "hold", "approvers": {"groups": ["ops"]}}
        place.more = {
            "auth": {"api_keys": [agent, person]},
            "tools": {"Bash": described},
            "gates": {
                "coding": {
                    "description": "Coding agents.",
                    "tools": ["Bash"],
                    "other_tools": "judge",
                    "report": "optional",
                    "max_open": 100,
                }
            },
            "policy": [denied | {"reason": "Not this one."}, looks, ops],
        }
        with place.serve() as service:
            yield Gate(service)

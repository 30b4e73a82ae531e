"""Processes of a bench: a throwaway Postgres, servers, their CPU time, and a proxy that counts messages."""

import asyncio
import glob
import json
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request

TICKS = os.sysconf("SC_CLK_TCK")
# The number of processors that other processes may use. A run is refused if they use more.
MOST_FOREIGN_CORES = 0.3


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def status_of(url):
    """Returns the HTTP status of a GET; None if there is no answer."""
    try:
        with urllib.request.urlopen(url, timeout=1) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return None


class Process:
    """A process of this bench. Only this process is signalled, by its id."""

    def __init__(self, command, log, ending=signal.SIGTERM, **options):
        self.command, self.log, self.ending = command, log, ending
        with open(log, "ab") as output:
            self.popen = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, **options)
        self.pid = self.popen.pid

    def wait_until(self, is_ready, seconds=60):
        deadline = time.monotonic() + seconds
        while not is_ready():
            if self.popen.poll() is not None or time.monotonic() > deadline:
                with open(self.log, errors="replace") as log:
                    raise RuntimeError(f"{self.command[0]} does not start:\n{log.read()[-2000:]}")
            time.sleep(0.01)

    def stop(self):
        if self.popen.poll() is None:
            self.popen.send_signal(self.ending)
            try:
                self.popen.wait(20)
            except subprocess.TimeoutExpired:
                self.popen.kill()
                self.popen.wait()


def processes():
    """Returns for each process its parent, and its CPU seconds including those of its ended children."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat") as file:
                    fields = file.read().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it has ended since
            found[int(name)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICKS)
    return found


def memory_of(pid):
    """Returns the resident memory of a process in KiB."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))


def cpu_of(roots, table):
    """Returns the CPU seconds of these processes and of all their descendants."""
    seconds, ids = 0.0, set(roots)
    for pid, (_, used) in table.items():
        ancestor = pid
        while ancestor and ancestor not in ids:
            ancestor = table.get(ancestor, (0, 0))[0]
        seconds += used if ancestor else 0
    return seconds


def busy_seconds():
    """Returns the CPU seconds of all processes of the machine."""
    with open("/proc/stat") as file:
        fields = [int(field) for field in file.readline().split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / TICKS


class Postgres:
    """A throwaway server on loopback. Its data are on the disk of TMPDIR and not in memory (as in the tests), because
    the time of flushing is measured, too. The server never runs as root, which Postgres refuses."""

    def __init__(self, folder):
        self.bin = self.find_programs()
        self.port = free_port()
        self.account = {}
        self.data = data = os.path.join(folder, "postgres")
        os.mkdir(data, 0o700)
        if os.geteuid() == 0:
            user = self.find_account()
            os.chown(data, user.pw_uid, user.pw_gid)
            self.account = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
        init = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync", "-D", data]
        subprocess.run([f"{self.bin}/initdb", *init], check=True, stdout=subprocess.DEVNULL, cwd=data, **self.account)
        library = subprocess.run([f"{self.bin}/pg_config", "--pkglibdir"], capture_output=True, text=True).stdout.strip()
        self.counts_statements = bool(glob.glob(f"{library}/pg_stat_statements.so")) if library else False
        # Autovacuum is off, because it would run during some measurements of a few seconds and not during others.
        settings = {
            "autovacuum": "off", "port": self.port, "listen_addresses": "127.0.0.1", "unix_socket_directories": data, "max_connections": 300,
            "shared_buffers": "512MB", "max_wal_size": "4GB", "checkpoint_timeout": "15min", "jit": "off",
        }
        if self.counts_statements:
            settings |= {"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "all"}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        # SIGQUIT shuts Postgres down at once, without flushing its data. The data are not needed any more.
        self.process = Process(
            [f"{self.bin}/postgres", "-D", data, *options], f"{folder}/postgres.log", signal.SIGQUIT, cwd=data, **self.account
        )
        self.process.wait_until(self.is_ready)
        if self.counts_statements:
            self.sql("create extension pg_stat_statements")

    @staticmethod
    def find_programs():
        """Returns the folder of Postgres' programs: the folder of the `initdb` in PATH (after links are resolved), or
        else Debian's folder."""
        named = [os.path.dirname(os.path.realpath(path)) for path in filter(None, [shutil.which("initdb")])]
        debian = sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True)
        for folder in named + debian:
            if all(os.path.exists(f"{folder}/{name}") for name in ("initdb", "postgres", "psql")):
                return folder
        raise SystemExit("bench: Postgres is missing: run scripts/setup")

    @staticmethod
    def find_account():
        for name in ("postgres", "nobody"):
            try:
                return pwd.getpwnam(name)
            except KeyError:
                pass
        raise SystemExit("bench: Postgres does not run as root, and there is no user postgres")

    def is_ready(self):
        try:
            self.sql("select 1")
            return True
        except RuntimeError:
            return False

    def sql(self, text, database="postgres"):
        """Runs statements. Returns the rows of the last statement, each as a list of texts."""
        command = [f"{self.bin}/psql", "-XAtq", "-v", "ON_ERROR_STOP=1", "-d", self.url(database), "-f", "-"]
        done = subprocess.run(command, input=text, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(done.stderr)
        return [line.split("|") for line in done.stdout.splitlines()]

    def url(self, database, port=None):
        return f"postgres://postgres@127.0.0.1:{port or self.port}/{database}"

    def create(self, database):
        self.sql(f"drop database if exists {database} with (force)")
        self.sql(f"create database {database}")

    def counters(self, database):
        """Returns the counts so far: commits that wrote, bytes of the write-ahead log, and statements."""
        [row] = self.sql("select pg_snapshot_xmax(pg_current_snapshot()), pg_current_wal_insert_lsn() - '0/0'")
        counted = {"commits": int(row[0]), "wal": int(row[1])}
        if self.counts_statements:
            [[calls]] = self.sql(
                "select coalesce(sum(calls), 0) from pg_stat_statements s join pg_database d on d.oid = s.dbid"
                f" where d.datname = '{database}'"
            )
            counted["statements"] = int(calls)
        return counted

    def log_position(self):
        [[position]] = self.sql("select pg_current_wal_insert_lsn()")
        return position

    def log_by_table(self, database, since):
        """The bytes and the records of the write-ahead log since a position: those of each table with its values out of
        line, those of its indexes, and those of all else, which are mostly commits."""
        tables = self.sql(
            "select c.relfilenode, coalesce(m.oid, i.indrelid, c.oid)::regclass, i.indexrelid is not null from pg_class c"
            " left join pg_index i on i.indexrelid = c.oid left join pg_class m on m.reltoastrelid = coalesce(i.indrelid, c.oid)"
            " where c.relfilenode <> 0",
            database,
        )
        names = {node: (table, is_index == "t") for node, table, is_index in tables}
        [[number]] = self.sql(f"select oid from pg_database where datname = '{database}'")
        self.sql("select pg_switch_wal()")
        command = [f"{self.bin}/pg_waldump", "-p", f"{self.data}/pg_wal", "-s", since, "-e", self.log_position()]
        dump = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, **self.account)
        found = {}
        for line in dump.stdout:
            record = re.search(r"len \(rec/tot\): +\d+/ *(\d+),", line)
            relation = re.search(r" rel \d+/(\d+)/(\d+)", line)
            if record and "SWITCH" not in line:
                is_ours = relation and relation[1] == number
                name = names.get(relation[2], ("other", False)) if is_ours else ("other", False)
                size, records = found.get(name, (0, 0))
                found[name] = (size + int(record[1]), records + 1)
        dump.wait()
        return found

    def task_updates(self, database):
        """Returns the number of updates of task rows, and how many of them changed no index. A session reports its
        updates when it ends."""
        rows = self.sql(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname in ('agent_task', 'task')", database
        )
        return [int(count) for count in rows[0]] if rows else [0, 0]


class CountingProxy:
    """A proxy between a server and Postgres that counts statements and pings. An Execute or a simple query counts as a
    statement. A Sync with nothing before it counts as a ping."""

    def __init__(self, port):
        self.target = port
        self.statements = self.pings = 0
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        threading.Thread(target=self.run, args=(started,), daemon=True).start()
        started.wait()

    def run(self, started):
        server = self.loop.run_until_complete(asyncio.start_server(self.connection, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        started.set()
        self.loop.run_forever()

    async def connection(self, client, to_client):
        server, to_server = await asyncio.open_connection("127.0.0.1", self.target)
        backwards = asyncio.ensure_future(self.copy(server, to_client))
        try:
            await self.count(client, to_server)
        except (asyncio.IncompleteReadError, ConnectionError):
            to_server.close()
        await backwards

    @staticmethod
    async def copy(source, sink):
        try:
            while data := await source.read(65536):
                sink.write(data)
        except ConnectionError:
            pass
        sink.close()

    async def count(self, client, server):
        while True:  # the start message and earlier requests for encryption have no type byte
            head = await client.readexactly(8)
            server.write(head + await client.readexactly(int.from_bytes(head[:4], "big") - 8))
            if int.from_bytes(head[4:], "big") not in (80877103, 80877104):
                break
        is_idle = True
        while True:
            head = await client.readexactly(5)
            server.write(head + await client.readexactly(int.from_bytes(head[1:], "big") - 4))
            kind = head[:1]
            self.statements += kind in b"EQ"
            self.pings += kind == b"S" and is_idle
            is_idle = kind in b"SQ"

    def counted(self):
        return {"statements": self.statements, "pings": self.pings}


class Load:
    """Runs the load generator once. Samples CPU times at both ends of its window."""

    def __init__(self, program, targets, concurrency, seconds, warmup, groups, model, rate=0, call=None):
        command = [program, "--targets", ",".join(targets), "--concurrency", str(concurrency)]
        command += ["--seconds", str(seconds), "--warmup", str(warmup), "--rate", str(rate)]
        if call:
            command += ["--tool", call[0], "--decision", call[1]]
        self.groups, self.model = groups, model
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as load:
            self.own = load.pid
            samples = []
            try:
                for line in load.stdout:
                    if line.startswith("{"):
                        self.report = json.loads(line)
                    else:
                        samples.append(self.sample())
            except BaseException:
                load.kill()
                raise
        [begin, end] = samples
        self.used = {name: end[name] - begin[name] for name in begin}

    def sample(self):
        table, stats = processes(), self.model_stats()
        sampled = {name: cpu_of(pids, table) for name, pids in self.groups.items()}
        everything = [pid for pids in self.groups.values() for pid in pids] + [self.own, os.getpid()]
        sampled["others"] = busy_seconds() - cpu_of(set(everything), table)
        return sampled | {"model_us": stats["cpu_us"], "model_cycles": stats["finals"]}

    def model_stats(self):
        with urllib.request.urlopen(f"http://{self.model}/stats", timeout=10) as answer:
            return json.load(answer)

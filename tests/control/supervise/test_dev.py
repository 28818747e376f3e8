"""`tidewheel dev` in a real terminal, on the tests' stack unless the test is about the stack."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

import httpx
import psutil
import pytest

from tests.fixtures.services import until
from tests.fixtures.terminal import CTRL_C, Terminal, terminal
from tidewheel.clock import monotonic_seconds
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.local.daemon import free_port, is_free
from tidewheel.local.stack import LocalStack, StackInfo, running_stack
from tidewheel.local.state import locked

pytestmark = [pytest.mark.slow, pytest.mark.kafka]

TIDEWHEEL = str(Path(sys.executable).parent / "tidewheel")
READY = "Ctrl-C stops all"
ROLES = ("intake", "scheduler", "relay", "executor", "api")
HANDLERS = """
import os
import threading

import greeting
import psycopg
import tidewheel


@tidewheel.handler("dev-greet")
def greet(ctx, payload):
    return greeting.TEXT


@tidewheel.handler("dev-database")
@tidewheel.handler("dev-database-alone", isolation="process")
def find_runs(ctx, payload):
    urls = os.environ["TIDEWHEEL_DATABASE_URL"], ctx.database_url
    counts = [psycopg.connect(url).execute("SELECT count(*) FROM job_runs").fetchone()[0] for url in urls]
    return [count > 0 for count in counts]


@tidewheel.handler("dev-hang")
def hang(ctx, payload):
    print("hanging", flush=True)
    threading.Event().wait(600)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(HANDLERS)
    (tmp_path / "greeting.py").write_text('TEXT = "hello"\n')
    return tmp_path


@pytest.fixture
def home(stack: LocalStack, info: StackInfo) -> Iterator[Path]:
    """The home of the tests' stack, on which no other worker runs `dev` meanwhile."""
    del info  # it runs
    with locked(stack.home / "tests.lock"):
        yield stack.home
        for handler in ("dev-greet", "dev-hang"):  # the database is that of the pages' tests too
            subprocess.run(
                [TIDEWHEEL, "job", "delete", handler], env=variables(stack.home), capture_output=True, check=False
            )


def variables(home: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    return {
        **kept,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{kept['PATH']}",
        "TERM": "xterm",
        "TIDEWHEEL_HOME": str(home),
        "TIDEWHEEL_API_PORT": str(free_port()),
        **more,
    }


@contextmanager
def dev(folder: Path, home: Path, *flags: str, **more: str) -> Generator[Terminal]:
    """Run `tidewheel dev` until it is ready."""
    command = ["tidewheel", "dev", "--handlers", "shop", *flags]
    with terminal(command, folder=folder, environment=variables(home, **more)) as opened:
        opened.until(READY)
        yield opened


def command(home: Path, *arguments: str) -> str:
    done = subprocess.run([TIDEWHEEL, *arguments], env=variables(home), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def result_of(home: Path, handler: str = "dev-greet") -> str:
    """Trigger a job of a handler, and return the result of its run."""
    trigger(home, handler)
    code = f"""
import tidewheel
with tidewheel.Client() as client:
    print(client.runs.wait(client.trigger({handler!r})).result.decode())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], env=variables(home), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def trigger(home: Path, handler: str) -> None:
    """Make the job of a handler."""
    subprocess.run(
        [TIDEWHEEL, "job", "create", handler, "--manual", "--handler", handler],
        env=variables(home),
        capture_output=True,
        check=False,
    )


def services_of(opened: Terminal) -> list[psutil.Process]:
    """Return the processes of its services: not those of the stack."""
    children = psutil.Process(opened.pid).children(recursive=True)
    return [child for child in children if "tidewheel.control.supervise.child" in " ".join(child.cmdline())]


def service(opened: Terminal, role: str) -> psutil.Process:
    [found] = [process for process in services_of(opened) if role in process.cmdline()]
    return found


def test_first_run_succeeds_and_ctrl_c_keeps_the_data(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("dev-home")
    try:
        with dev(folder, home) as opened:
            assert "dev-greet, dev-hang" in opened.screen
            assert "API_TOKEN" not in opened.screen, "no warning of a setting that dev itself has set"
            assert opened.colours
            assert result_of(home) == '"hello"'
            opened.until("succeeded in")
            opened.press(CTRL_C)
            assert opened.wait() == 0
            opened.until(f"stopped; the data in {home} is kept")
        assert running_stack(home) is None
        assert not LocalStack(home).status().is_running
        with dev(folder, home) as opened:
            assert "dev-greet" in command(home, "job", "list")
            services = services_of(opened)
            opened.signal(signal.SIGKILL)
            psutil.wait_procs(services, timeout=60)
            assert not [process for process in services if process.is_running()]
        assert running_stack(home) is not None
        with dev(folder, home) as opened:  # it stops the stack that the killed one had started
            assert result_of(home) == '"hello"'
            opened.press(CTRL_C)
            assert opened.wait() == 0
        assert not LocalStack(home).status().is_running
    finally:
        LocalStack(home).down(erase=True)


def test_other_users_of_the_machine_find_no_door(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """They reach the loopback address, and read no file of the stack's home: issue 39, N5."""
    home = tmp_path_factory.mktemp("dev-home")
    home.chmod(0o755)
    try:
        with dev(folder, home) as opened:
            api = api_of(opened)
            for method, path in (("GET", "jobs"), ("POST", "keys"), ("POST", "executors"), ("GET", "status")):
                body = {"name": "x", "scopes": ["admin"], "all_tenants": True} if method == "POST" else None
                assert httpx.request(method, f"{api}/api/v1/{path}", json=body).status_code == HTTPStatus.UNAUTHORIZED
            [link] = re.findall(rf"console +({api}/sign-in\?link=\S+)", opened.screen)
            kept = [home / name for name in ("api-headers", "api-token", "stack.json")]
            assert [oct(path.stat().st_mode & 0o777) for path in kept] == ["0o600"] * 3
            shown = exported(command(home, "env", "--secrets"))
            assert shown["TIDEWHEEL_API_URL"] == api
            curl = ["curl", "-sS", "-f", "-H", f"@{shown['TIDEWHEEL_API_HEADERS']}", f"{api}/api/v1/status"]
            assert subprocess.run(curl, check=False, capture_output=True).returncode == 0
            key = {"Authorization": f"Bearer {shown['TIDEWHEEL_API_KEY']}"}
            assert httpx.get(f"{api}/api/v1/jobs", headers=key).status_code == HTTPStatus.OK
            executor = {"Authorization": f"Bearer {shown['TIDEWHEEL_API_TOKEN']}"}
            assert httpx.get(f"{api}/api/v1/jobs", headers=executor).status_code == HTTPStatus.FORBIDDEN
            assert "tw_" not in command(home, "env")
            with httpx.Client() as browser:
                assert browser.get(link).status_code == HTTPStatus.SEE_OTHER
                assert browser.get(f"{api}/", headers={"Accept": "text/html"}).status_code == HTTPStatus.OK
            assert "was opened before" in httpx.get(link, headers={"Accept": "text/html"}).text
            opened.press(CTRL_C)
            assert opened.wait() == 0
        with dev(folder, home) as opened:
            assert httpx.get(f"{api_of(opened)}/api/v1/jobs", headers=key).status_code == HTTPStatus.OK, "the key stays"
    finally:
        LocalStack(home).down(erase=True)


def api_of(opened: Terminal) -> str:
    [api] = re.findall(r"console +(http://[0-9.]+:[0-9]+)", opened.screen)
    return str(api)


def exported(text: str) -> dict[str, str]:
    pairs = (line.removeprefix("export ").partition("=") for line in text.splitlines())
    return {name: value.strip("'") for name, _, value in pairs}


def test_a_stack_of_which_a_part_ran_goes_on(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("dev-home")
    stack = LocalStack(home)
    try:
        stack.up()
        kill(stack, "Kafka node 1")
        with dev(folder, home) as opened:
            opened.press(CTRL_C)
            assert opened.wait() == 0
            opened.until("stopped; PostgreSQL and Kafka keep running")
        assert stack.status().is_running
    finally:
        stack.down(erase=True)


def test_saved_files_replace_the_executor_and_errors_do_not(folder: Path, home: Path) -> None:
    with dev(folder, home) as opened:
        first = service(opened, "executor")
        assert result_of(home) == '"hello"'
        (folder / "shop.py").write_text(HANDLERS.replace("def greet(ctx", "def greet(ctx,,"))
        shown = opened.until("keeps the previous handlers")
        line = HANDLERS[: HANDLERS.index("def greet(ctx")].count("\n") + 1
        assert f"SyntaxError: invalid syntax ({folder}/shop.py, line {line})" in shown
        assert result_of(home) == '"hello"'
        assert service(opened, "executor") == first
        (folder / "shop.py").write_text(HANDLERS)
        opened.until("executor started", after="handlers changed")
        assert service(opened, "executor") != first
        (folder / "new.py").write_text('TEXT = "moin"\n')
        before = opened.screen
        (folder / "new.py").replace(folder / "greeting.py")  # as editors save; a module that the handlers import
        opened.until("executor started", after=before)
        assert result_of(home) == '"moin"'
        opened.press(CTRL_C)
        assert opened.wait() == 0
    assert running_stack(home) is not None  # it ran before


def test_faulty_handlers_at_the_start_wait_for_their_correction(folder: Path, home: Path) -> None:
    (folder / "shop.py").write_text("import missing_module\n")
    command = ["tidewheel", "dev", "--handlers", "shop"]
    with terminal(command, folder=folder, environment=variables(home)) as opened:
        shown = opened.until(READY)
        assert "No module named 'missing_module'" in shown
        assert "no executor runs until the handlers are corrected" in shown
        (folder / "shop.py").write_text(HANDLERS)
        opened.until("executor started")
        assert result_of(home) == '"hello"'
        opened.press(CTRL_C)
        assert opened.wait() == 0


def test_a_shell_that_evaluates_env_allows_the_targets_that_dev_allows(folder: Path, home: Path) -> None:
    create = f"{TIDEWHEEL} job create dev-hook --manual --url http://127.0.0.1:9/"
    script = f'{create} 2>/dev/null || eval "$({TIDEWHEEL} env)"; {create} && {TIDEWHEEL} job delete dev-hook'
    with dev(folder, home, TIDEWHEEL_HTTP_ALLOW_PRIVATE="true"):
        done = subprocess.run(
            ["/bin/sh", "-c", script], env=variables(home), capture_output=True, text=True, check=False
        )
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "dev-hook: created, version 1"), done.stderr


def test_handlers_find_the_database_of_the_local_stack(folder: Path, home: Path) -> None:
    """As under any other supervisor: the examples read this variable, and it was missing."""
    with dev(folder, home):
        assert [result_of(home, name) for name in ("dev-database", "dev-database-alone")] == ["[true,true]"] * 2


def test_a_service_that_dies_starts_again(folder: Path, home: Path) -> None:
    with dev(folder, home) as opened:
        killed = service(opened, "scheduler")
        killed.kill()
        opened.until("scheduler started", after="scheduler ended by SIGKILL; restarting in 0.5 s")
        assert service(opened, "scheduler") != killed
        opened.signal(signal.SIGTERM)
        assert opened.wait() == 0


def test_a_service_whose_settings_are_refused_ends_dev_at_once(folder: Path, home: Path) -> None:
    command = ["tidewheel", "dev", "--handlers", "shop"]
    port = next(port for port in iter(free_port, 0) if is_free(port - 1) and is_free(port - 2))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        flags = ["--metrics-port", str(port - 2)]  # the third role's
        with terminal([*command, *flags], folder=folder, environment=variables(home)) as opened:
            shown = opened.until("stopping everything")
            assert f"relay cannot start: metrics cannot be served on 127.0.0.1 port {port}" in shown
            assert opened.wait() == 1
            assert "restarting in" not in opened.screen
        assert not psutil.pid_exists(opened.pid)


def test_postgresql_and_kafka_start_again_unless_a_command_has_stopped_them(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    home = tmp_path_factory.mktemp("dev-home")
    stack = LocalStack(home)
    try:
        with dev(folder, home, TIDEWHEEL_QUEUES="default,reports") as opened:
            assert result_of(home) == '"hello"'
            assert "are missing: only the sweep" not in opened.screen
            for part in ("PostgreSQL", "Kafka node 1"):
                kill(stack, part)
                opened.until(f"{part} is running again", after=f"{part} has ended unexpectedly; restarting in 0.5 s")
                assert result_of(home) == '"hello"'
            assert "tidewheel.runs.reports.standard" in command(home, "admin", "topics", "list")
            command(home, "down")
            assert opened.wait() == 0
            opened.until("PostgreSQL was stopped by another command; stopping everything")
        with dev(folder, home) as opened:
            (home / "postgres/data/global/pg_control").unlink()
            kill(stack, "PostgreSQL")
            shown = opened.until("PostgreSQL has ended 5 times in a row; stopping everything")
            assert shown.count("restarting in") == 4
            assert "pg_control" in shown
            assert opened.wait() == 1
        assert not stack.status().is_running
    finally:
        stack.down(erase=True)


def kill(stack: LocalStack, part: str) -> None:
    """Kill a part of the stack, as a crash does."""
    [pid] = [each.pid for each in stack.status().parts if each.name == part]
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def test_a_second_dev_is_refused_and_a_closed_window_stops_the_first(folder: Path, home: Path) -> None:
    with dev(folder, home) as opened:
        services = services_of(opened)
        second = ["tidewheel", "dev", "--handlers", "shop"]
        with terminal(second, folder=folder, environment=variables(home)) as other:
            assert other.wait() == 1
            other.until(f"`tidewheel dev` is already running on the stack in {home} (pid {opened.pid}")
        opened.close_window()
        assert opened.wait() == 0
        assert not [process for process in services if process.is_running()]


def test_a_port_in_use_is_refused(folder: Path, home: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        environment = variables(home, TIDEWHEEL_API_PORT=str(port))
        with terminal(["tidewheel", "dev"], folder=folder, environment=environment) as opened:
            assert opened.wait() == ExitCode.REFUSED
            opened.until(f"TIDEWHEEL_API_PORT: port {port} is in use")


def test_a_second_ctrl_c_ends_at_once(folder: Path, home: Path) -> None:
    with dev(folder, home, TIDEWHEEL_DRAIN_TIMEOUT="60s") as opened:
        trigger(home, "dev-hang")
        command(home, "job", "trigger", "dev-hang")
        opened.until("hanging")
        services = services_of(opened)
        opened.press(CTRL_C)
        opened.until("executor   stop requested")
        began = monotonic_seconds()
        opened.press(CTRL_C)
        assert opened.wait() == 130
        assert monotonic_seconds() - began < 30, "half of the drain's time; a busy machine included"
        psutil.wait_procs(services, timeout=60)
        assert not [process for process in services if process.is_running()]


def test_without_a_terminal_every_line_is_json(folder: Path, home: Path) -> None:
    log = folder / "dev.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [TIDEWHEEL, "dev", "--handlers", "shop"],
            cwd=folder,
            env=variables(home),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=output,
        )
    try:
        until(lambda: '"message": "ready"' in log.read_text(), "dev is ready")
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {line["service"] for line in lines} == {"dev", *ROLES}
    assert all({"time", "level", "message"} <= set(line) for line in lines)
    [ready] = [line for line in lines if line["message"] == "ready"]
    assert ready["handlers"] == ["dev-database", "dev-database-alone", "dev-greet", "dev-hang"]
    ends = [line["service"] for line in lines if line["message"].startswith("stop requested")]
    assert set(ends[:3]) == {"api", "intake", "scheduler"}
    assert ends[3:] == ["executor", "relay"]

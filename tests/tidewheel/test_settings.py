"""Settings: flags before environment before file, and refusals that say what to do."""

import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from psycopg.conninfo import conninfo_to_dict

from tests.strict_types import ROOT
from tidewheel.errors import SettingsError
from tidewheel.local.stack import LocalStack, running_stack
from tidewheel.local.state import HOME_VARIABLE
from tidewheel.settings.connections import Connections
from tidewheel.settings.executor import ExecutorSettings
from tidewheel.settings.services import ApiSettings, ArchiveSettings, IntakeSettings, RelaySettings, SchedulerSettings
from tidewheel.settings.sources import client_config, client_variables, unknown_variables

SECRET = "hunter2hunter2"
URL = f"postgresql://ann:{SECRET}@db.example:5432/jobs"
NAMED = ("PGHOST", "PGHOSTADDR", "PGSERVICE", "PGDATABASE")


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """An environment that says nothing, and a home without a stack."""
    for name in [name for name in os.environ if name.startswith("TIDEWHEEL_") or name in NAMED]:
        monkeypatch.delenv(name)
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path / "no-stack"))
    return monkeypatch


@pytest.fixture
def file(environment: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The file that TIDEWHEEL_CONFIG names."""
    path = tmp_path / "tidewheel.toml"
    environment.setenv("TIDEWHEEL_CONFIG", str(path))
    return path


def refusal(settings: type[Connections] = Connections, **flags: object) -> str:
    with pytest.raises(SettingsError) as caught:
        settings.load(**flags)
    return str(caught.value)


def test_flags_override_environment_and_environment_the_file(environment: pytest.MonkeyPatch, file: Path) -> None:
    file.write_text('topic_prefix = "file"\nsource = "file"\nreplication = 3\nmisfire_after = "PT30S"\n')
    environment.setenv("TIDEWHEEL_TOPIC_PREFIX", "environment")
    environment.setenv("TIDEWHEEL_SOURCE", "environment")
    read = Connections.load(topic_prefix="flag", source=None)
    assert (read.topic_prefix, read.source, read.replication) == ("flag", "environment", 3)
    assert read.misfire_after == timedelta(seconds=30)
    assert read.events_encoding == "avro"


def test_one_file_configures_every_service(file: Path) -> None:
    file.write_text('slots = 7\nrelay_batch = 9\nlookahead = "PT1S"\n')
    assert ExecutorSettings.load().slots == 7
    assert RelaySettings.load().relay_batch == 9
    assert SchedulerSettings.load().lookahead == timedelta(seconds=1)


def test_unprefixed_variables_and_dotenv_files_are_ignored(tmp_path: Path, environment: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("TIDEWHEEL_SOURCE=dotenv\n")
    environment.chdir(tmp_path)
    environment.setenv("SOURCE", "without the prefix")
    assert Connections.load().source == "tidewheel"


def test_a_missing_file_is_refused_with_its_variable_and_a_remedy(file: Path) -> None:
    assert refusal() == f"TIDEWHEEL_CONFIG names {file}, which is not a file; correct the path or unset the variable"


@pytest.mark.parametrize("content", [b"topic_prefix = \n", b"\xff\xfe", b"[unclosed"])
def test_invalid_toml_is_refused_by_variable_and_place(file: Path, content: bytes) -> None:
    file.write_bytes(content)
    message = refusal()
    assert message.startswith(f"TIDEWHEEL_CONFIG names {file}, which cannot be read: ")
    assert "correct it" in message


@pytest.mark.parametrize(
    ("settings", "variable", "value", "wanted"),
    [
        (Connections, "TOPIC_PREFIX", "a/b", "match pattern"),
        (Connections, "REPLICATION", "many", "write a whole number; the default is 1"),
        (Connections, "EVENTS_ENCODING", "xml", "'avro', 'json' or 'registry'"),
        (Connections, "MISFIRE_AFTER", "PT0.999S", "greater than or equal to 1 second"),
        (Connections, "MISFIRE_AFTER", "soon", "duration"),
        (ExecutorSettings, "EXECUTOR_GROUP", "share", "'auto', 'consumer' or 'classic'"),
        (ExecutorSettings, "HTTP_ALLOW_PRIVATE", "perhaps", "write true or false; the default is false"),
        (Connections, "HTTP_HOSTS", "*example.org", "not a host name"),
        (Connections, "HTTP_HOSTS", "*.127.0.0.1", "write only the address"),
        (Connections, "HTTP_PORTS", "80,0", "not a port"),
        (Connections, "SHELL_ALLOW", "backup", "not an absolute path"),
        (Connections, "SHELL_ALLOW", "/srv/bin/*", "name each program"),
        (Connections, "SHELL_ALLOW", "/bin/sh ... -c", "last word"),
        (Connections, "SHELL_ALLOW", "/bin/sh 'a", "quotation"),
        (Connections, "SHELL_CWD", "/srv/../etc", "'..'"),
    ],
)
def test_invalid_value_is_refused_by_variable_with_a_remedy(
    environment: pytest.MonkeyPatch, settings: type[Connections], variable: str, value: str, wanted: str
) -> None:
    environment.setenv(f"TIDEWHEEL_{variable}", value)
    message = refusal(settings)
    assert message.startswith(f"TIDEWHEEL_{variable}: ")
    assert wanted in message
    assert "(read " in message


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("10s", 10), ("5m", 300), ("1m30s", 90), ("1500ms", 1.5), ("PT10S", 10), ("10", 10), ("1.5", 1.5), (" 10s ", 10)],
)
def test_a_duration_is_written_as_in_requests(environment: pytest.MonkeyPatch, text: str, seconds: float) -> None:
    environment.setenv("TIDEWHEEL_MISFIRE_AFTER", text)
    assert Connections.load().misfire_after == timedelta(seconds=seconds)


@pytest.mark.parametrize(("text", "seconds"), [('"250ms"', 0.25), ("2", 2), ("0.5", 0.5)])
def test_a_duration_in_the_file_is_text_or_a_number_of_seconds(file: Path, text: str, seconds: float) -> None:
    file.write_text(f"lookahead = {text}\n")
    assert SchedulerSettings.load().lookahead == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ['"soon"', '"-5s"', '"1:30:00"', '"P1M"', "-1", "true", "[1]"])
def test_invalid_duration_is_refused_by_variable_with_an_example(file: Path, text: str) -> None:
    file.write_text(f"member_timeout = {text}\n")
    message = refusal(SchedulerSettings)
    assert message.startswith("TIDEWHEEL_MEMBER_TIMEOUT: ")
    assert "such as 10s" in message or "count days" in message


def test_lease_shorter_than_heartbeats_is_refused() -> None:
    said = refusal(ExecutorSettings, heartbeat="20s")
    assert said.startswith("TIDEWHEEL_LEASE: must be longer than TIDEWHEEL_HEARTBEAT, 20s")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("leese = '10s'", "there is no setting 'leese'; did you mean 'lease'?"),
        ("TIDEWHEEL_SLOTS = 3", "there is no setting 'TIDEWHEEL_SLOTS'; did you mean 'slots'?"),
        ("zzz = 1", "there is no setting 'zzz'; docs/settings.md lists all settings"),
        ("kafka_config_acks = '1'", "read from the environment: TIDEWHEEL_KAFKA_CONFIG_<KEY>"),
        ("[intake]\nintake_batch = 1", "there is no setting 'intake'; did you mean 'intake_batch'?"),
    ],
)
def test_unknown_setting_in_the_file_is_refused_with_the_nearest(file: Path, line: str, words: str) -> None:
    file.write_text(f"slots = 3\n{line}\n")
    for settings in (Connections, SchedulerSettings, ExecutorSettings):
        message = refusal(settings)
        assert message.startswith(f"TIDEWHEEL_CONFIG names {file}: ")
        assert words in message


MODELS = (ApiSettings, ArchiveSettings, ExecutorSettings, IntakeSettings, RelaySettings, SchedulerSettings)
FIELDS = {name: model for model in MODELS for name in model.model_fields}


@pytest.mark.parametrize("value", ["abc", "-1", "", "1e999", "[1]", "{", "\udcff", "9" * 5000])
def test_every_refused_value_is_one_sentence_about_its_variable(
    environment: pytest.MonkeyPatch, value: str, tmp_path: Path
) -> None:
    environment.chdir(tmp_path)
    for name, model in FIELDS.items():
        with environment.context() as one:
            one.setenv(f"TIDEWHEEL_{name.upper()}", value)
            try:
                model.load()
            except SettingsError as refused:
                message = str(refused)
                assert message.startswith("TIDEWHEEL_"), message
                assert f"TIDEWHEEL_{name.upper()}" in message, message
                for raw in ("Input", "should", "pydantic", "unable to", "\n"):
                    assert raw not in message, message


@pytest.mark.parametrize(
    ("variable", "words"),
    [
        (
            "TIDEWHEEL_SLOT",
            "TIDEWHEEL_SLOT is not a setting and has no effect; did you mean TIDEWHEEL_SLOTS?",
        ),
        ("TIDEWHEEL_LOOKAHED", "did you mean TIDEWHEEL_LOOKAHEAD?"),
        ("TIDEWHEEL_ZZZ", "docs/settings.md lists all settings"),
    ],
)
def test_unknown_variable_is_reported_with_the_nearest_by_every_process_once(
    environment: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, words: str
) -> None:
    environment.setenv(variable, "5")
    for model in MODELS:
        model.load()
    [line] = [record.getMessage() for record in caplog.records if variable in record.getMessage()]
    assert words in line


@pytest.mark.parametrize("folder", ["tools", "chart", "compose", "control", "docs", "executor", "tidewheel"])
def test_no_variable_of_the_code_and_the_pages_is_unknown(folder: str) -> None:
    named: set[str] = set()
    for path in (ROOT / folder).rglob("*"):
        if path.suffix in {".py", ".yaml", ".yml", ".tpl", ".sh"} or (
            path.suffix == ".md" and path.parent.name != "adr"
        ):
            named |= set(re.findall(r"\bTIDEWHEEL_[A-Z_]*[A-Z]\b", path.read_text(encoding="utf-8")))
    assert unknown_variables(dict.fromkeys(named - {"TIDEWHEEL_SLOT"}, "")) == []  # of a doctest


def test_variables_that_kubernetes_sets_for_services_are_no_settings() -> None:
    # Source: Kubernetes documentation, "Service", "Environment variables", of a Service named tidewheel-console
    address = {
        "SERVICE_HOST": "10.0.0.11",
        "SERVICE_PORT": "80",
        "SERVICE_PORT_HTTP": "80",
        "PORT": "tcp://10.0.0.11:80",
    }
    port = {"": "tcp://10.0.0.11:80", "_PROTO": "tcp", "_PORT": "80", "_ADDR": "10.0.0.11"}
    names = {**address, **{f"PORT_80_TCP{name}": value for name, value in port.items()}}
    assert unknown_variables({f"TIDEWHEEL_CONSOLE_{name}": value for name, value in names.items()}) == []


def test_all_invalid_settings_are_reported_together(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TIDEWHEEL_REPLICATION", "9")
    environment.setenv("TIDEWHEEL_TOPIC_PREFIX", "")
    assert re.findall(r"TIDEWHEEL_\w+", refusal()) == ["TIDEWHEEL_TOPIC_PREFIX", "TIDEWHEEL_REPLICATION"]


@pytest.mark.parametrize(
    "url",
    [
        pytest.param(f"postgres//ann:{SECRET}@h/db", id="a colon is missing"),
        pytest.param(f"postgresql://ann:{SECRET} {SECRET}@h/db", id="a space"),
        pytest.param(f"postgresql://ann:%zz{SECRET}@h/db", id="a percent sign"),
        pytest.param(f"postgresql://h/db?passwort={SECRET}", id="an unknown parameter"),
    ],
)
def test_invalid_url_is_refused_without_being_shown(environment: pytest.MonkeyPatch, url: str) -> None:
    environment.setenv("TIDEWHEEL_DATABASE_URL", url)
    message = refusal()
    assert message.startswith("TIDEWHEEL_DATABASE_URL: ")
    assert "postgresql://user:password@host:5432/name" in message
    assert SECRET not in message


def test_passwords_are_shown_nowhere(environment: pytest.MonkeyPatch, file: Path) -> None:
    file.write_text(f'database_url = ["{URL}"]\n')
    assert SECRET not in refusal()
    file.write_text("")
    environment.setenv("TIDEWHEEL_DATABASE_URL", URL)
    read = Connections.load()
    assert read.database() == URL
    for shown in (repr(read), str(read), str(read.model_dump()), read.model_dump_json()):
        assert SECRET not in shown


@pytest.mark.parametrize("name", NAMED)
def test_libpq_variables_replace_a_missing_url(environment: pytest.MonkeyPatch, name: str) -> None:
    environment.setenv(name, "given")
    assert Connections.load().database() == ""
    environment.setenv("TIDEWHEEL_DATABASE_URL", URL)
    assert Connections.load().database() == URL


def test_missing_url_is_refused_with_a_remedy() -> None:
    read = Connections.load()
    with pytest.raises(
        SettingsError, match=r"no database: run `tidewheel dev` or `tidewheel up`, or set TIDEWHEEL_DATABASE_URL"
    ):
        read.database()
    with pytest.raises(
        SettingsError, match=r"no Kafka broker: run `tidewheel dev` or `tidewheel up`, or set TIDEWHEEL_KAFKA_BOOTSTRAP"
    ):
        read.bootstrap()


def test_running_local_stack_replaces_a_missing_url(stack: LocalStack, environment: pytest.MonkeyPatch) -> None:
    environment.setenv(HOME_VARIABLE, str(stack.home))
    running = running_stack(stack.home)
    assert running is not None
    assert (Connections.load().database(), Connections.load().bootstrap()) == (running.database_url, running.bootstrap)


def test_kafka_settings_are_passed_through_except_the_brokers(environment: pytest.MonkeyPatch) -> None:
    environment.setenv("TIDEWHEEL_KAFKA_BOOTSTRAP", "one:9092,two:9092")
    environment.setenv("TIDEWHEEL_KAFKA_CONFIG_SECURITY_PROTOCOL", "SASL_SSL")
    environment.setenv("TIDEWHEEL_KAFKA_CONFIG_BOOTSTRAP_SERVERS", "elsewhere:9092")
    assert Connections.load().kafka_config() == {
        "bootstrap.servers": "one:9092,two:9092",
        "security.protocol": "SASL_SSL",
    }


@pytest.mark.parametrize(
    ("url", "refused"),
    [
        ("postgresql://ann@127.0.0.1/jobs", False),
        ("host=/run/postgresql", False),
        ("postgresql://ann@db.example/jobs", True),
        ("postgresql://ann@localhost,db.example/jobs?sslmode=require", True),
        ("postgresql://ann@db.example/jobs?sslmode=verify-full", False),
        ("service=jobs", True),
        ("service=jobs sslmode=verify-ca", False),
        ("postgresql://ann@db.example/jobs?sslrootcert=system", False),
    ],
)
def test_database_elsewhere_that_is_not_verified_is_refused_by_a_setting(url: str, *, refused: bool) -> None:
    assert Connections.load(database_url=url).database() == url
    strict = Connections.load(database_url=url, verify_servers=True)
    if refused:
        with pytest.raises(SettingsError, match=r"TIDEWHEEL_DATABASE_URL names \S+ without sslmode.*VERIFY_SERVERS"):
            strict.database()
    else:
        assert strict.database() == url


@pytest.mark.parametrize(
    ("brokers", "properties", "refused"),
    [
        ("localhost:9092,[::1]:9093", {}, False),
        ("localhost:9092,kafka.example:9092", {}, True),
        ("PLAINTEXT://kafka.example", {}, True),
        ("kafka.example:9092", {"SECURITY_PROTOCOL": "SASL_PLAINTEXT"}, True),
        ("kafka.example:9092", {"SECURITY_PROTOCOL": "SASL_SSL"}, False),
        ("kafka.example:9092", {"SECURITY_PROTOCOL": "ssl", "ENABLE_SSL_CERTIFICATE_VERIFICATION": "false"}, True),
    ],
)
def test_broker_elsewhere_that_is_not_verified_is_refused_by_a_setting(
    environment: pytest.MonkeyPatch, brokers: str, properties: dict[str, str], *, refused: bool
) -> None:
    for name, value in properties.items():
        environment.setenv(f"TIDEWHEEL_KAFKA_CONFIG_{name}", value)
    assert Connections.load(kafka_bootstrap=brokers).bootstrap() == brokers
    strict = Connections.load(kafka_bootstrap=brokers, verify_servers=True)
    if refused:
        with pytest.raises(SettingsError, match=r"broker kafka\.example is not verified.*SASL_SSL.*VERIFY_SERVERS"):
            strict.bootstrap()
    else:
        assert strict.bootstrap() == brokers


@pytest.mark.parametrize(
    ("endpoint", "refused"),
    [("http://127.0.0.1:8080/token", False), ("https://id.example/token", False), ("http://id.example/token", True)],
)
def test_token_endpoint_elsewhere_without_tls_is_refused_by_a_setting(
    environment: pytest.MonkeyPatch, endpoint: str, *, refused: bool
) -> None:
    environment.setenv("TIDEWHEEL_KAFKA_CONFIG_SECURITY_PROTOCOL", "SASL_SSL")
    environment.setenv("TIDEWHEEL_KAFKA_CONFIG_SASL_OAUTHBEARER_TOKEN_ENDPOINT_URL", endpoint)
    brokers = "kafka.example:9092"
    assert Connections.load(kafka_bootstrap=brokers).bootstrap() == brokers
    strict = Connections.load(kafka_bootstrap=brokers, verify_servers=True)
    if refused:
        with pytest.raises(SettingsError, match=r"id\.example is not verified.*TOKEN_ENDPOINT_URL.*VERIFY_SERVERS"):
            strict.bootstrap()
    else:
        assert strict.bootstrap() == brokers


def test_only_prefixed_names_are_kafka_settings() -> None:
    environment = {"TIDEWHEEL_KAFKA_BOOTSTRAP": "one:9092", "KAFKA_CONFIG_ACKS": "0", "HOME": "/"}
    assert client_config(environment) == {}
    assert client_config({"TIDEWHEEL_KAFKA_CONFIG_SSL_CA_LOCATION": "/Ca.pem"}) == {"ssl.ca.location": "/Ca.pem"}


def test_password_of_the_database_is_read_from_its_file(environment: pytest.MonkeyPatch, tmp_path: Path) -> None:
    secret = tmp_path / "password"
    environment.setenv("TIDEWHEEL_DATABASE_PASSWORD_FILE", str(secret))
    environment.setenv("TIDEWHEEL_DATABASE_URL", "postgresql://ann@db.example/jobs?require_auth=scram-sha-256")
    with pytest.raises(SettingsError, match=r"TIDEWHEEL_DATABASE_PASSWORD_FILE cannot be read: .*No such file"):
        Connections.load().database()
    secret.write_text("it's a \\ secret\n")
    assert conninfo_to_dict(Connections.load().database()) == {
        "user": "ann",
        "password": "it's a \\ secret",
        "host": "db.example",
        "dbname": "jobs",
        "require_auth": "scram-sha-256",
    }


def test_file_of_kafka_settings_is_read_and_the_environment_wins(
    environment: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    properties = tmp_path / "client.properties"
    environment.setenv("TIDEWHEEL_KAFKA_PROPERTIES", str(properties))
    with pytest.raises(SettingsError, match=r"TIDEWHEEL_KAFKA_PROPERTIES names .* cannot be read"):
        Connections.load().kafka_config()
    properties.write_text("# mine\n\nbootstrap.servers=one:9092\nsasl.username = ann\nsasl.password=a=b\n")
    environment.setenv("TIDEWHEEL_KAFKA_CONFIG_SASL_USERNAME", "bob")
    read = {"bootstrap.servers": "one:9092", "sasl.username": "bob", "sasl.password": "a=b"}
    assert Connections.load().kafka_config() == read
    assert client_config(client_variables(read | {"log_level": "7"})) == read | {"log_level": "7"}
    environment.setenv("TIDEWHEEL_KAFKA_BOOTSTRAP", "two:9092")
    assert Connections.load().bootstrap() == "two:9092"
    properties.write_text(f"sasl.username=ann\n{SECRET}\n")
    with pytest.raises(SettingsError, match="line 2 is not `name=value`") as refused:
        Connections.load().kafka_config()
    assert SECRET not in str(refused.value)

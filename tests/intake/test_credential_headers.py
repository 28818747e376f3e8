"""Targets that no job may name, and literal credentials, are refused by every way in."""

import json
from collections.abc import Mapping
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import Any, cast

import pytest

from tests.control.api.answering import answering
from tests.control.cli.command import tidewheel
from tests.fixtures.acts import about, submission
from tests.fixtures.database import Database
from tests.tidewheel.jobs.submitting import refused_job, submitted
from tidewheel.control.client.bulk_load import BulkLoader, JobText, LoadResult
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, Refused
from tidewheel.intake.request import read_request
from tidewheel.jobs.http_values import read_url
from tidewheel.jobs.targets import HttpTargetSpec
from tidewheel.nouns.jobs.reads import show_job
from tidewheel.redaction import CREDENTIAL_HEADERS, REDACTED
from tidewheel.schemas.codec import decode, encode_fields
from tidewheel.schemas.generated.records import JobDefinition
from tidewheel.settings.connections import Connections

CANARY = "canary-3f1c9a"
REMEDY = 'write {"secret": "NAME"} and set TIDEWHEEL_SECRET_NAME on the executors'


def target(**headers: object) -> dict[str, object]:
    return {"type": "http", "url": "https://example.org/report", "headers": headers}


@pytest.mark.parametrize("name", [*CREDENTIAL_HEADERS, "AUTHORIZATION", "X-Api-Key"])
@pytest.mark.parametrize("value", [f"Bearer {CANARY}", f"{CANARY}\n", CANARY * 100, 31, [CANARY], None], ids=repr)
def test_literal_credential_is_refused_by_its_name(name: str, value: object) -> None:
    """The error names the field and the remedy, and shows no value, whatever else is wrong with it."""
    assert refused_job(target=target(**{name: value})) == {f"job.target.headers.{name}": f"is a credential; {REMEDY}"}


def test_every_literal_credential_is_refused_at_once() -> None:
    errors = refused_job(target=target(Authorization=CANARY, Cookie=CANARY, **{"X-Day": "1"}))
    assert list(errors) == ["job.target.headers.Authorization", "job.target.headers.Cookie"]


def test_proxy_authorization_is_refused_as_a_header_of_tidewheel() -> None:
    errors = refused_job(target=target(**{"Proxy-Authorization": CANARY}))
    assert errors == {"job.target.headers.Proxy-Authorization": "Tidewheel sets this header itself; leave it out"}


def test_values_of_other_headers_are_not_examined() -> None:
    given = target(**{"X-Day": f"Bearer {CANARY}", "Authorization": {"secret": "CRM"}})
    assert submitted(target=given).target.type == "http"


@pytest.mark.parametrize(
    "url",
    [
        f"http://ann:{CANARY}@example.org/",
        f"http://ann:{CANARY} @example.org/",
        f"ftp://ann:{CANARY}@example.org/",
        f"http://ann:{CANARY}@[::1/",
        f"http://example.org\\@{CANARY}@a/",
        f"ftp://example.org/?token={CANARY}",
    ],
)
def test_refused_url_shows_neither_its_user_nor_its_query(url: str) -> None:
    [(path, shown)] = refused_job(target={"type": "http", "url": url}).items()
    assert path == "job.target.url"
    assert CANARY not in shown


def test_refused_variable_of_a_program_does_not_show_its_value() -> None:
    given = {"type": "shell", "argv": ["/bin/true"], "env": {"PASSWORD": f"{CANARY}\0"}}
    [(path, shown)] = refused_job(target=given).items()
    assert path == "job.target.env.PASSWORD"
    assert CANARY not in shown


def test_every_way_in_refuses_a_literal_credential(database: Database) -> None:
    """Kafka in JSON and Avro, the client, files by submit, dry run and bulk load, the commands."""
    job: dict[str, object] = {"key": "a", "schedule": "manual", "target": target(Authorization=CANARY)}
    said = f"job.target.headers.Authorization: is a credential; {REMEDY}"
    in_avro = encode_fields("Request", {"type": "job_submit", "job": {**job, "schedule": {"text": "manual"}}})
    for message in (json.dumps({"type": "job.submit", "job": job}).encode(), in_avro):
        with pytest.raises(InvalidInput) as caught:
            read_request(message)
        assert str(caught.value) == said
    with Client(database.url) as client, pytest.raises(InvalidInput) as caught:
        client.submit(job)
    assert str(caught.value) == said
    assert CANARY not in repr(rejected_by_a_load(database, job))
    for arguments in (("job", "create", "-f", "-"), ("job", "preview", "-f", "-"), ("apply", "-")):
        done = tidewheel(database, *arguments, stdin=json.dumps(job))
        assert done.code == (1 if arguments[0] == "apply" else 5)
        assert "headers.Authorization" in done.err + done.out
        assert REMEDY in done.err + done.out
        assert CANARY not in done.err + done.out
    assert database.value("SELECT count(*) FROM jobs") == 0


def rejected_by_a_load(database: Database, job: Mapping[str, object]) -> list[LoadResult]:
    """Load a job in each way; return what the loads report of its rejection."""
    given = [JobText("1", dict(job))]
    with BulkLoader(database.url) as loader:
        results = [loader.apply(given), loader.apply(given, dry_run=True), loader.load(given)]
    assert [(done.rejected, done.created) for done in results] == [(1, 0)] * 3
    return results


def store_literal(database: Database, **headers: str) -> None:
    """Store a job as a release without this rule did."""
    spec = submitted(key="old", target=target())
    old = cast("HttpTargetSpec", spec.target).model_copy(update={"headers": headers})
    old.model_fields_set.add("headers")
    database.accept({"type": "job.submit", "job": spec.model_copy(update={"target": old})})


def test_stored_literal_is_redacted_in_every_output_and_its_job_still_runs(database: Database) -> None:
    store_literal(database, Authorization=f"Bearer {CANARY}", **{"X-Day": "1"})
    database.trigger("old")
    [request] = database.requests()
    definition = decode(request.definition, JobDefinition)
    assert definition.target.http is not None
    assert definition.target.http.headers == {"Authorization": f"Bearer {CANARY}", "X-Day": "1"}
    shown = cast("dict[str, Any]", database.within(show_job, "default", "old").job)
    assert shown["target"]["headers"] == {"Authorization": REDACTED, "X-Day": "1"}
    for command in ("show old", "list", "versions old", "explain old", "next old"):
        assert not shows_canary(database, command)
    with Client(database.url) as client:
        read = (client, client.versions("old"), client.next("old"), client.preview(shown | {"target": "a"}))
        assert CANARY not in repr(read)


def shows_canary(database: Database, command: str) -> bool:
    outputs = [tidewheel(database, "job", *command.split(), "--output", each) for each in ("text", "json")]
    return any(CANARY in done.out + done.err for done in outputs)


def test_stored_literal_cannot_be_submitted_again_nor_rolled_back_to(database: Database) -> None:
    """The export is no job that can be submitted, and each error says how to write it."""
    store_literal(database, Authorization=CANARY)
    shown = database.within(show_job, "default", "old").job
    with pytest.raises(InvalidInput, match="is a credential"):
        database.apply_batch({"type": "job.submit", "job": dict(shown)})
    done = tidewheel(database, "job", "update", "old", "--url", "https://example.org/other")
    assert (done.code, REMEDY in done.err) == (5, True)
    database.submit("old", target=target(Authorization={"secret": "CRM"}))
    error = database.refuse(about("job.rollback", "old", version=1))
    assert (error.path, error.remedy) == ("version", REMEDY)
    assert "headers.Authorization of version 1: is a credential" in error.problem


@pytest.mark.landing
def test_secret_in_the_query_of_a_url_is_shown_nowhere_and_kept_by_a_change(database: Database) -> None:
    url = f"https://example.org/hook?day=1&access_token={CANARY}"
    database.submit("old", target={"type": "http", "url": url})
    with Client(database.url) as client, answering(database) as http:
        client.patch("old", {"description": "new"})
        merge = {"Content-Type": "application/merge-patch+json"}
        patched = http.patch("/api/v1/jobs/old", json={"labels": {"a": "b"}}, headers=merge)
        assert patched.status_code == HTTPStatus.OK
        assert tidewheel(database, "job", "update", "old", "--label", "c=d").code == 0
        for command in ("show old", "versions old", "explain old", "next old", "diff old 1 3"):
            assert not shows_canary(database, command)
        for path in ("/api/v1/jobs/old", "/api/v1/jobs/old/versions/1", "/api/v1/jobs", "/jobs/old", "/jobs/old/edit"):
            assert CANARY not in http.get(path).text
        shown = http.get("/api/v1/jobs/old").json()["job"]
    assert shown["target"]["url"] == f"https://example.org/hook?day=1&access_token={REDACTED}"
    # The change has kept the secret; what output shows is no job to submit.
    database.trigger("old")
    definition = decode(database.requests()[0].definition, JobDefinition)
    assert definition.target.http is not None
    assert definition.target.http.url == url
    with pytest.raises(InvalidInput, match="in place of a secret"):
        database.apply_batch({"type": "job.submit", "job": shown})


LISTS = {
    "http_hosts": "*.example.org",
    "kafka_topics": "orders.*",
    "lambda_functions": "report",
    "shell_allow": "/bin/echo --day=*",
    "shell_cwd": "/srv/jobs",
    "shell_job_env": "MODE",
}
ALLOWED = [
    {"type": "http", "url": "https://a.example.org/x"},
    {"type": "kafka", "topic": "orders.new", "await_reply": True},
    {"type": "lambda", "function": "report"},
    {"type": "shell", "argv": ["/bin/echo", "--day=1"], "cwd": "/srv/jobs/a", "env": {"MODE": "x"}},
    "send-email",
]
REFUSED = [
    ({"type": "http", "url": "https://example.com/"}, "url", "TIDEWHEEL_HTTP_HOSTS"),
    ({"type": "http", "url": "https://a.example.org:8443/"}, "url", "TIDEWHEEL_HTTP_PORTS"),
    ({"type": "http", "url": "http://0x7f.1/"}, "url", "TIDEWHEEL_HTTP_ALLOW_PRIVATE"),
    ({"type": "http", "url": "http://[::ffff:169.254.169.254]/"}, "url", "TIDEWHEEL_HTTP_ALLOW_PRIVATE"),
    ({"type": "kafka", "topic": "invoices"}, "topic", "TIDEWHEEL_KAFKA_TOPICS"),
    ({"type": "kafka", "topic": "tidewheel.requests"}, "topic", "does not begin with 'tidewheel'"),
    ({"type": "kafka", "topic": "Tidewheel.Runs.standard"}, "topic", "does not begin with 'tidewheel'"),
    ({"type": "lambda", "function": "delete-all"}, "function", "TIDEWHEEL_LAMBDA_FUNCTIONS"),
    ({"type": "shell", "argv": ["/bin/sh", "--day=1"]}, "argv", "TIDEWHEEL_SHELL_ALLOW"),
    ({"type": "shell", "argv": ["/bin/echo", "--day=1", "x"]}, "argv", "TIDEWHEEL_SHELL_ALLOW"),
    ({"type": "shell", "argv": ["/bin/echo", "--day=1"], "cwd": "/srv"}, "cwd", "TIDEWHEEL_SHELL_CWD"),
    ({"type": "shell", "argv": ["/bin/echo", "--day=1"], "env": {"PATH": "/"}}, "env.PATH", "TIDEWHEEL_SHELL_JOB_ENV"),
]  # fmt: skip


@pytest.fixture
def limited(database: Database) -> Database:
    """A database whose intake has every list."""
    database.installation = replace(database.installation, allow_lists=Connections.load(**LISTS).allow_lists())
    return database


@pytest.mark.parametrize("target", ALLOWED, ids=str)
def test_named_target_is_accepted(limited: Database, target: object) -> None:
    limited.submit(target=target)


@pytest.mark.parametrize(("target", "path", "remedy"), REFUSED, ids=str)
def test_other_target_is_refused_when_a_job_is_created_or_edited(
    limited: Database, target: object, path: str, remedy: str
) -> None:
    """Nothing is stored, and the job that exists keeps its version."""
    limited.submit("old")
    for key in ("new", "old"):
        error = limited.refuse(submission(key, target=target))
        assert error.path == f"job.target.{path}"
        assert remedy in error.remedy
    assert limited.rows("SELECT key, version FROM jobs") == [("old", 1)]


def test_rollback_does_not_bring_a_refused_target_back(database: Database) -> None:
    database.submit(target=REFUSED[0][0])
    database.submit()
    database.installation = replace(database.installation, allow_lists=Connections.load(**LISTS).allow_lists())
    error = database.refuse(about("job.rollback", version=1))
    assert (error.path, error.remedy) == ("version", "use a host that TIDEWHEEL_HTTP_HOSTS allows")


def test_every_way_in_checks(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client, and files by submit, dry run and bulk load: by the settings of their own process."""
    private = {"key": "a", "schedule": "manual", "target": {"type": "http", "url": "http://127.0.0.1/"}}
    with Client(database.url) as client, pytest.raises(Refused, match="targets must not reach"):
        client.submit(private)
    rejected_by_a_load(database, private)
    monkeypatch.setenv("TIDEWHEEL_HTTP_ALLOW_PRIVATE", "true")
    with Client(database.url) as client:
        assert client.submit(private).version == 1


def test_one_file_serves_every_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lists are lists there; an entry may have a comma."""
    file = tmp_path / "tidewheel.toml"
    file.write_text(
        'targets = ["handler", "shell"]\nshell_allow = ["/bin/echo --days=1,2", "/bin/true"]\nhttp_ports = [8080]\n'
    )
    monkeypatch.setenv("TIDEWHEEL_CONFIG", str(file))
    lists = Connections.load().allow_lists()
    lists.check_program(["/bin/echo", "--days=1,2"], None, {})
    lists.check_url(read_url("http://a.example:8080/"))
    assert lists.ports == {8080}

"""Submits whose target the allow-lists do not name: refused by path, on every way in."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.database import Database
from tidewheel.control.client.bulk_load import BulkLoader, JobText
from tidewheel.control.client.client import Client
from tidewheel.errors import Refused
from tidewheel.jobs.hosts import read_url
from tidewheel.schemas.generated.records import Reply, ReplyStatus
from tidewheel.settings.connections import Connections

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


def refusal(reply: Reply) -> tuple[str, str]:
    assert (reply.status, reply.code) == (ReplyStatus.REJECTED, "invalid")
    [error] = reply.errors
    return error.path, error.remedy


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
        [reply] = limited.apply_batch(submission(key, target=target))
        at, said = refusal(reply)
        assert at == f"job.target.{path}"
        assert remedy in said
    assert limited.rows("SELECT key, version FROM jobs") == [("old", 1)]


def test_neighbours_of_a_refused_job_are_accepted(limited: Database) -> None:
    replies = limited.apply_batch(submission("a"), submission("b", target=REFUSED[0][0]), submission("c"))
    assert [reply.status for reply in replies] == ["accepted", "rejected", "accepted"]


def test_rollback_does_not_bring_a_refused_target_back(database: Database) -> None:
    database.submit(target=REFUSED[0][0])
    database.submit()
    database.installation = replace(database.installation, allow_lists=Connections.load(**LISTS).allow_lists())
    [reply] = database.apply_batch(about("job.rollback", version=1))
    assert refusal(reply) == ("version", "TIDEWHEEL_HTTP_HOSTS names those")


def test_every_way_in_checks(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Client, and files by submit, dry run and bulk load: by the settings of their own process."""
    private = {"key": "a", "schedule": "manual", "target": {"type": "http", "url": "http://127.0.0.1/"}}
    with Client(database.url) as client, pytest.raises(Refused, match="targets must not reach"):
        client.submit(private)
    given = [JobText("1", dict(private))]
    with BulkLoader(database.url) as loader:
        results = [loader.apply(given), loader.apply(given, dry_run=True), loader.load(given)]
    assert [(done.rejected, done.created) for done in results] == [(1, 0)] * 3
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

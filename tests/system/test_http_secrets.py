"""Secrets named in jobs of every way in reach their receiver; only the names are stored and published."""

import json
from pathlib import Path

import pytest

from tests.control.cli.command import tidewheel
from tests.executor.http_target import HttpTarget, serving
from tests.fixtures.services import Fleet
from tidewheel import Client
from tidewheel.schemas.codec import encode_fields

pytestmark = [pytest.mark.postgres, pytest.mark.kafka]

HEADERS = {"Authorization": {"secret": "BILLING"}, "X-Team": "a"}
WAYS = {"json", "avro", "client", "yaml", "file"}


def submit_every_way(fleet: Fleet, url: str) -> None:
    target = {"type": "http", "url": url, "headers": HEADERS}
    fleet.ask({"type": "job.submit", "job": {"key": "json", "schedule": "manual", "target": target}})
    named = {"type": "http", "url": url, "headers": {"X-Team": "a"}, "secret_headers": {"Authorization": "BILLING"}}
    job = {"key": "avro", "schedule": {"text": "manual"}, "target": named}
    in_avro = encode_fields("Request", {"type": "job_submit", "request_id": "a", "job": job})
    fleet.produce(fleet.topics.requests, b"avro", in_avro)
    fleet.flush()
    with Client(fleet.database.url) as client:
        client.submit({"key": "client", "schedule": "manual", "target": target})
    yaml, file = fleet.folder / "jobs.yaml", fleet.folder / "job.json"
    yaml.write_text(
        "key: yaml\nschedule: manual\ntarget:\n  type: http\n"
        f"  url: {url}\n  headers:\n    Authorization: {{secret: BILLING}}\n    X-Team: a\n"
    )
    file.write_text(json.dumps({"key": "file", "schedule": "manual", "target": target}))
    assert tidewheel(fleet.database, "apply", yaml).code == 0
    done = tidewheel(fleet.database, "job", "create", "file", "--file", file)
    assert done.code == 0, done.err


def credentials(target: HttpTarget) -> dict[str, str | None]:
    return {call.headers["tidewheel-job-key"]: call.headers.get("authorization") for call in target.received}


def test_secret_of_every_way_in_is_sent_and_replaced_without_a_restart(fleet: Fleet, tmp_path: Path) -> None:
    folder = tmp_path / "secrets" / "default"
    folder.mkdir(parents=True)
    (folder / "BILLING.hosts").write_text("127.0.0.1\n")
    (folder / "BILLING").write_text("Bearer first-s3cr3t\n")
    with serving() as target, Client(fleet.database.url) as client:
        settings = {"SECRETS_DIR": str(folder.parent), "HTTP_ALLOW_PRIVATE": "true"}
        fleet.start_all("intake", "relay", "executor", **settings)
        fleet.wait_started()
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("TIDEWHEEL_HTTP_ALLOW_PRIVATE", "true")
            submit_every_way(fleet, target.url())
        fleet.until(lambda: fleet.database.count("jobs") == len(WAYS), "every job is stored")
        for key in WAYS:
            client.trigger(key)
        fleet.until(lambda: credentials(target) == dict.fromkeys(WAYS, "Bearer first-s3cr3t"), "all are called")
        assert all(request.headers["x-team"] == "a" for request in target.received)
        (folder / "next").write_text("Bearer second-s3cr3t\n")
        (folder / "next").rename(folder / "BILLING")

        def is_replaced() -> bool:
            client.runs.wait(client.trigger("json"), timeout=30)
            return credentials(target)["json"] == "Bearer second-s3cr3t"

        fleet.until(is_replaced, "the new value is sent")
        for key in WAYS:
            shown = tidewheel(fleet.database, "job", "show", key, "--output", "json").json["job"]
            assert shown["target"]["headers"] == HEADERS
        definitions = fleet.database.rows("SELECT definition FROM job_versions")
        assert all(b"BILLING" in row[0] and b"s3cr3t" not in row[0] for row in definitions)
    assert not any("s3cr3t" in service.log.read_text() for service in fleet.services)


def test_broken_secret_of_the_environment_ends_the_start_by_its_name(fleet: Fleet) -> None:
    service = fleet.start("executor", SECRET_BILLING="Bearer s3cr3t")
    service.meant_to_die = True
    fleet.until(lambda: not service.alive, "the executor has ended")
    assert service.process.exitcode == 1
    log = service.log.read_text()
    assert "TIDEWHEEL_SECRET_BILLING: names no host" in log
    assert "s3cr3t" not in log

"""The time zone of a tenant: the default of submits, and of nothing that is stored."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.control.api.answering import answer_of, answering
from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.database import Database
from tests.fixtures.examples import examples
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput
from tidewheel.schedules.zones import zone_names

BERLIN, TOKYO = "Europe/Berlin", "Asia/Tokyo"


@pytest.fixture
def client(database: Database) -> Iterator[Client]:
    with Client(database.url, tenant="acme") as made:
        made.tenants.create("acme", timezone=BERLIN)
        yield made


def job(schedule: object = "0 8 * * *", key: str = "report") -> dict[str, object]:
    return {"key": key, "schedule": schedule, "target": "tidy"}


def zone_of(client: Client, key: str = "report") -> object:
    found: Any = client.jobs.get(key).job["schedule"]
    return found.get("timezone")


@given(st.sampled_from(sorted(zone_names())), st.integers(0, 59), st.integers(0, 23), st.booleans())
@settings(examples(40, quick=5), suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
def test_schedule_without_a_zone_fires_as_one_that_names_that_of_its_tenant(
    client: Client,
    zone: str,
    minute: int,
    hour: int,
    whole: bool,  # noqa: FBT001 - drawn
) -> None:
    client.tenants.limit("acme", timezone=zone)
    cron = f"{minute} {hour} * * *"
    # `max_runs` makes intake read the whole job: the other jobs come from the cache of specs.
    more = {"max_runs": 9} if whole else {}
    plain, named = job(cron, "plain") | more, job({"cron": cron, "timezone": zone}, "named") | more
    shown = [client.preview(each, 3) for each in (plain, named)]
    assert [each.at for each in shown[0].occurrences] == [each.at for each in shown[1].occurrences]
    assert shown[0].zone == zone
    first, second = client.submit(plain), client.submit(named)
    assert first.next_run_at == second.next_run_at == shown[0].occurrences[0].at
    assert zone_of(client, "plain") == zone
    assert client.submit(plain).unchanged
    assert client.submit(client.jobs.get("plain").job).unchanged, "what is shown can be submitted again"


def test_change_of_the_zone_changes_no_job_until_a_submit_without_one(client: Client) -> None:
    client.submit(job())
    before = client.jobs.get("report")
    client.tenants.limit("acme", timezone=TOKYO)
    assert client.jobs.get("report") == before
    client.patch("report", {"labels": {"team": "stock"}})
    client.pause("report")
    client.resume("report")
    assert zone_of(client) == BERLIN
    assert client.preview(job()).zone == TOKYO
    assert not client.submit(job()).unchanged
    assert zone_of(client) == TOKYO
    client.rollback("report", 1)
    assert zone_of(client) == BERLIN
    client.tenants.limit("acme", timezone=None)
    client.submit(job("30 8 * * *"))
    assert zone_of(client) is None, "UTC, as it is not stored by tenants without a zone"


def test_job_from_before_stays_in_utc_when_it_is_patched(client: Client) -> None:
    client.tenants.limit("acme", timezone=None)
    client.submit(job())
    client.submit(job("@every 1h", "hourly"))
    client.tenants.limit("acme", timezone=TOKYO)
    before = client.jobs.get("report").summary.next_at
    client.patch("report", {"labels": {"team": "stock"}})
    assert client.jobs.get("report").summary.next_at == before
    client.patch("hourly", {"schedule": {"interval": None, "cron": "0 8 * * *"}})
    assert zone_of(client, "hourly") == TOKYO, "its schedule names no zone, and it had none"


def test_job_from_before_stays_in_utc_when_it_is_edited(client: Client, database: Database) -> None:
    client.tenants.limit("acme", timezone=None)
    client.submit(job())
    client.submit(job("CRON_TZ=Asia/Tokyo 0 8 * * *", "inline"))
    client.tenants.limit("acme", timezone=BERLIN)
    for key in ("report", "inline"):
        before = client.jobs.get(key).summary
        assert tidewheel(database, "job", "update", key, "--description", "of stock", "--tenant", "acme").code == 0
        after = client.jobs.get(key).summary
        assert (after.version, after.next_at) == (before.version + 1, before.next_at)


def test_every_door_resolves_the_zone(client: Client, database: Database, tmp_path: Path) -> None:
    lines = '{"key": "loaded", "schedule": "0 8 * * *", "target": "tidy"}'
    (file := tmp_path / "jobs.jsonl").write_text(lines)
    assert tidewheel(database, "apply", "-f", file, "--bulk", "--tenant", "acme").code == 0
    tidewheel(database, "job", "create", "flags", "--cron", "0 8 * * *", "--handler", "tidy", "--tenant", "acme")
    message = {"type": "job.submit", "tenant": "acme", "job": job(key="topic")}
    database.apply_batch(message)
    with answering(database) as http:
        http.put("/api/v1/jobs/rest", params={"tenant": "acme"}, json={**job(), "key": "rest"})
    assert [zone_of(client, key) for key in ("loaded", "flags", "topic", "rest")] == [BERLIN] * 4
    client.submit(job("@every 10s", "interval"))
    client.submit(job("CRON_TZ=Asia/Tokyo 0 8 * * *", "inline"))
    assert client.preview(job("CRON_TZ=Asia/Tokyo 0 8 * * *")).zone == TOKYO


def test_unknown_zone_is_refused_with_the_nearest(client: Client, database: Database) -> None:
    with pytest.raises(InvalidInput) as refused:
        client.tenants.limit("acme", timezone="Europe/Berlim")
    [error] = refused.value.errors
    assert error.path == "timezone"
    assert BERLIN in error.remedy
    [line] = tidewheel(database, "admin", "tenant", "limits", "acme", "--timezone", "Europe/Berlim").refusals
    assert line.startswith("timezone: 'Europe/Berlim'")
    with answering(database) as http:
        answer = http.patch("/api/v1/tenants/acme", json={"timezone": "Europe/Berlim"})
        assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, "timezone")
        assert answer_of(http.get("/api/v1/tenants/acme"))["timezone"] == BERLIN
    assert json_output(database, "admin", "tenant", "show", "acme")["timezone"] == BERLIN
    assert tidewheel(database, "admin", "tenant", "limits", "acme", "--timezone", "none").code == 0
    assert client.tenants.get("acme").timezone is None

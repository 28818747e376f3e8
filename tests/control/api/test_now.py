"""The present of a tenant over REST: figures, bins, what comes due, what waits, the slowest runs."""

from collections.abc import Iterator
from datetime import timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.control.api.answering import ApiClient, answering
from tests.control.console.pages import HTML, key_of
from tests.control.test_doctor import set_aside
from tests.fixtures.acts import about
from tests.fixtures.database import Database
from tests.transitions.figures import finish, forget_figures
from tests.transitions.test_tenant_places import Executor
from tidewheel.runs import RunState

HOSTILE = "<script>\u05d0\u05d1" + "k" * 200


@pytest.fixture
def client(database: Database) -> Iterator[ApiClient]:
    forget_figures(database)
    with answering(database) as made:
        yield made


def read(client: ApiClient, path: str, **query: object) -> Any:  # noqa: ANN401 - as of JSON
    answer = client.get(f"/api/v1/{path}?{urlencode({name: str(value) for name, value in query.items()})}")
    assert answer.status_code == HTTPStatus.OK, answer.text
    return answer.json()


def test_empty_installation_needs_nobody(client: ApiClient) -> None:
    found = read(client, "now")
    assert (found["findings"], found["open"], found["ended_hour"], found["on_time_rate"]) == ([], {}, 0, None)
    assert found["due_next_minute"] == {"jobs": 0, "at_least": False}
    assert read(client, "backlog") == {"backlog": []}
    assert read(client, "runs/slowest") == {"runs": []}
    assert len(read(client, "activity")["bins"]) == 60


def test_now_counts_what_ended_and_what_is_open(client: ApiClient) -> None:
    client.database.submit("job", retry={"max_attempts": 1})
    client.database.submit("soon", schedule={"interval": "30s"})
    finish(client.database, "job", RunState.SUCCEEDED, RunState.FAILED, RunState.TIMED_OUT, RunState.SUCCEEDED)
    client.database.begin(client.database.trigger())
    client.database.trigger()
    found = read(client, "now")
    assert (found["ended_hour"], found["failed_hour"], found["running"]) == (4, 2, 1)
    assert (found["open"], found["open_at_least"]) == ({"running": 1, "queued": 1}, False)
    assert found["due_next_minute"] == {"jobs": 1, "at_least": False}
    assert found["on_time_rate"] == 1.0
    client.database.execute("UPDATE job_runs SET publish_at = publish_at - interval '1 min' WHERE state = 'queued'")
    assert read(client, "now")["on_time_rate"] == found["claimed_hour"] / (found["claimed_hour"] + 1), "one is overdue"
    assert found["slots"] == {"busy": 1, "all": 0}


def test_waiting_runs_a_freeze_and_a_job_set_aside_are_findings(database: Database, client: ApiClient) -> None:
    database.submit("render", queue="reports", schedule={"interval": "1h"})
    run = database.trigger("render")
    database.execute("UPDATE job_runs SET publish_at = publish_at - interval '1 min'")
    [backlog] = read(client, "backlog")["backlog"]
    assert (backlog["queue"], backlog["count"], backlog["oldest_run_id"]) == ("reports", 1, str(run))
    assert backlog["why"]["code"] == "no_executor"
    with answering(database, token="correct-horse-battery") as keyed:
        keyed.headers["Authorization"] = f"Bearer {key_of(database)}"
        [waits] = read(keyed, "now")["findings"]
        assert (waits["kind"], waits["count"]) == ("waiting_runs", 1)
        assert waits["words"] == "no live executor serves queue reports"
        database.apply_batch({"type": "freeze", "queue": "reports", "reason": "printer swap"})
        [freeze] = read(keyed, "now")["findings"]
        assert (freeze["kind"], freeze["severity"]) == ("freeze", "warning")
        assert "printer swap" in freeze["evidence"]
        assert freeze["remedy"] == "tidewheel thaw --tenant default --queue reports"
        set_aside(database)
        assert [each["kind"] for each in read(keyed, "now")["findings"]] == ["set_aside", "freeze"]
    assert {"fleet", "set_aside"} <= {each["kind"] for each in read(client, "now")["findings"]}


def test_runs_that_a_limit_holds_are_backlog_and_a_finding_after_a_minute(client: ApiClient) -> None:
    database = client.database
    database.submit("job", overlap="allow_all")
    database.client.tenants.limit("default", in_flight=1)
    Executor(database).claim(*(database.trigger() for _ in range(3)))
    [held] = read(client, "backlog")["backlog"]
    assert (held["state"], held["count"]) == ("buffered", 2)
    assert held["why"]["words"] == "tenant default has 1 of 1 active runs; the oldest waiting run starts when one ends"
    kinds = {each["kind"] for each in read(client, "now")["findings"]}
    assert "held_runs" not in kinds
    with answering(database) as pages:
        overview = pages.get("/", headers=HTML).text
        assert 'href="/runs?group=held&amp;queue=default&amp;lane=standard" data-figure="backlog"' in overview
        tab = 'aria-current="page">Buffered <span class="caption number">2</span></a>'
        assert tab in pages.get("/runs?status=buffered", headers=HTML).text
        assert "No run is due" not in overview
        assert 'href="/?tenant=default#backlog">2 wait<' in pages.get("/admin/tenants/default", headers=HTML).text
    then = database.now() - timedelta(minutes=2)
    database.execute("UPDATE job_runs SET scheduled_at = %s, created_at = %s", [then, then])
    [finding] = [each for each in read(client, "now")["findings"] if each["kind"] == "held_runs"]
    assert (finding["count"], finding["counted"]) == (2, "waiting")
    assert finding["words"] == "tenant default has 1 of 1 active runs"
    assert "--in-flight" in finding["remedy"]


def test_activity_has_bins_with_states_and_stages(client: ApiClient) -> None:
    client.database.submit("job", retry={"max_attempts": 1})
    finish(client.database, "job", RunState.SUCCEEDED, RunState.SUCCEEDED, RunState.FAILED)
    now = client.database.now()
    since, until = (now - timedelta(hours=1)).isoformat(), (now + timedelta(hours=1)).isoformat()
    found = read(client, "activity", since=since, until=until, step=600, stages="true")
    assert len(found["bins"]) == 12
    assert (sum(each["succeeded"] for each in found["bins"]), sum(each["failed"] for each in found["bins"])) == (2, 1)
    stages = next(each["stages"] for each in found["bins"] if each["succeeded"])
    assert set(stages) == {"claimed", "ended"}
    assert stages["ended"]["p50"] <= stages["ended"]["p99"]
    assert read(client, "activity")["bins"][0]["stages"] is None
    span = {"since": since, "until": until, "step": 7200, "stages": "true"}
    [mine] = read(client, "activity", **span, queue="default", lane="standard")["bins"]
    assert (mine["succeeded"], mine["stages"]["ended"]["runs"]) == (2, 3)
    for other in ({"queue": "reports"}, {"lane": "batch"}):
        [none] = read(client, "activity", **span, **other)["bins"]
        assert (none["succeeded"], none["failed"], none["stages"]) == (0, 0, {})


def test_spans_are_bounded_and_refusals_name_the_field(client: ApiClient) -> None:
    now = client.database.now()
    for path, query, field in (
        ("activity", {"since": (now - timedelta(days=30)).isoformat(), "step": 5}, "step"),
        ("activity", {"since": now.isoformat(), "until": now.isoformat()}, "until"),
        ("activity", {"step": 1}, "step"),
        ("upcoming", {"until": (now - timedelta(days=1)).isoformat()}, "until"),
        ("runs/slowest", {"limit": 0}, "limit"),
    ):
        answer = client.get(f"/api/v1/{path}?{urlencode(query)}")
        assert answer.status_code == HTTPStatus.UNPROCESSABLE_ENTITY, path
        assert field in answer.text, path


def test_upcoming_counts_each_job_at_its_next_time(client: ApiClient) -> None:
    for number in range(5):
        client.database.submit(f"every-{number}", schedule={"interval": "10m"})
    client.database.submit("paused", schedule={"interval": "10m"})
    client.database.apply_batch(about("job.pause", "paused"))
    found = read(client, "upcoming", step=300)
    assert (found["jobs"], found["at_least"], len(found["bins"])) == (5, False, 12)
    assert sum(each["jobs"] for each in found["bins"]) == 5


def test_slowest_runs_are_those_with_the_longest_attempts(client: ApiClient) -> None:
    client.database.submit(HOSTILE)
    ended = finish(client.database, HOSTILE, *[RunState.SUCCEEDED] * 2)
    found = read(client, "runs/slowest")["runs"]
    assert {each["run"]["run_id"] for each in found} == set(ended)
    assert [each["took"] for each in found] == sorted((each["took"] for each in found), reverse=True)
    assert found[0]["run"]["key"] == HOSTILE
    ago = (client.database.now() - timedelta(days=1)).isoformat()
    assert read(client, "runs/slowest", since=ago, until=ago.replace("+00:00", "Z"))["runs"] == []


def test_tenant_sees_its_own_figures_alone(database: Database, client: ApiClient) -> None:
    database.submit("job")
    finish(database, "job", RunState.SUCCEEDED)
    database.trigger()
    database.execute("INSERT INTO tenants (tenant) VALUES ('acme')")
    with answering(database, token="correct-horse-battery") as keyed:
        keyed.headers["Authorization"] = f"Bearer {key_of(database, tenant='acme')}"
        found = read(keyed, "now")
        assert found["slots"] == {"busy": 0, "all": None}
        assert (found["ended_hour"], found["open"], found["findings"]) == (0, {}, [])
        assert read(keyed, "runs/slowest")["runs"] == []
        assert keyed.get("/api/v1/now?tenant=default").status_code == HTTPStatus.NOT_FOUND

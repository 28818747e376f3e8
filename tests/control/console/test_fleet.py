"""The fleet page: executors with their runs, groups, the checks of doctor."""

import re
from http import HTTPStatus
from typing import Any, LiteralString, cast
from uuid import uuid4

import pytest

from tests.control.api.answering import ApiClient, answering
from tests.control.console.pages import HTML, assert_has, fields_of, shown, signed_console
from tests.control.reads.test_waits import executor
from tests.fixtures.acts import HANDLER
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.control.reads.fleet import LOOKED_AT
from tidewheel.jobs.strict_json import as_object
from tidewheel.postgres.statements import Statements
from tidewheel.runs import OWNED

_SQL = Statements("tidewheel.control")
_EXPLAIN: LiteralString = "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "
_ADD_RUNS_AHEAD: LiteralString = """
INSERT INTO job_runs
SELECT (jsonb_populate_record(r, jsonb_build_object(
           'run_id', gen_random_uuid(), 'state', 'queued', 'executor_id', NULL, 'queue', q.queue,
           'publish_at', r.publish_at + interval '1 day'))).*
  FROM job_runs AS r CROSS JOIN unnest('{default,a,z}'::text[]) AS q (queue) CROSS JOIN generate_series(1, 5000)
"""


def tile(page: str, label: str) -> str:
    """Return the text of a figure."""
    part = page.partition(f"<small>{label}</small>")[2].partition('class="tile"')[0].partition("</section>")[0]
    return " ".join(re.sub(r"<[^>]+>", " ", part.rpartition("<")[0]).split())


def test_executor_opens_to_the_runs_that_it_has(pages: ApiClient) -> None:
    pages.database.submit("<script>nightly")
    started = pages.database.begun("<script>nightly")
    own = pages.database.value("SELECT executor_id FROM job_runs WHERE executor_id IS NOT NULL")
    pages.database.execute(
        "INSERT INTO executors (executor_id, name, queues, handlers, slots, last_heartbeat_at, started_at)"
        " VALUES (%s, '<b>host-1', '{default}', '{send-email}', 4, tidewheel_now(), tidewheel_now())"
        " ON CONFLICT (executor_id) DO UPDATE SET name = excluded.name, queues = excluded.queues, slots = 4",
        (own,),
    )
    page = shown(pages, "/fleet", "1 of 4", "&lt;b&gt;host-1")
    assert str(started.run_id) not in page
    opened = shown(pages, f"/fleet?executor={own}", f'href="/runs/{started.run_id}"', without="<script>nightly")
    assert 'aria-expanded="true"' in opened


@pytest.mark.landing
def test_runs_ahead_of_their_time_are_not_walked(database: Database) -> None:
    database.submit()
    database.begun()
    database.execute(_ADD_RUNS_AHEAD)
    database.execute("ANALYZE job_runs")
    own = database.value("SELECT executor_id FROM job_runs WHERE executor_id IS NOT NULL")
    looks = {"look": LOOKED_AT, "parts": 5_000, "states": OWNED, "queues": ["default"], "executor_id": own, "limit": 50}
    for name in ("count_runs_of_executors", "list_runs_of_executor"):
        with database.transaction() as connection:
            [(plan,)] = connection.execute(_EXPLAIN + _SQL[name], looks).fetchall()
        assert cast("Any", plan)[0]["Plan"]["Actual Rows"] == 1, name
        assert cast("Any", plan)[0]["Plan"]["Shared Hit Blocks"] < 60, name


def test_silent_executors_come_first_and_many_are_grouped(pages: ApiClient) -> None:
    for _ in range(51):
        executor(pages.database, HANDLER)
    executor(pages.database, "other", queue="reports", silent="1 h")
    page = shown(pages, "/fleet", "51 executors")
    assert page.index("silent 1 h") > page.index("51 executors")
    assert_has(page, "Executor worker-1 is silent</bdi>.", "No heartbeat since")
    assert '<a href="/fleet"><bdi>Executor worker-1 is silent</bdi></a>' in pages.get("/").text, "it needs attention"
    executor(pages.database, "other", queue="reports", silent="2 h")
    shown(pages, "/", "2 executors are silent</bdi></a>")
    shown(pages, "/fleet?find=reports", "reports", without="51 executors")


def test_waiting_runs_without_a_handler_have_a_number_and_idle_executors_a_reason(pages: ApiClient) -> None:
    database = pages.database
    executor(database, HANDLER)
    for key, runs, handler in (("known", 1, HANDLER), ("lost", 2, "lost")):
        database.submit(key, overlap="allow_all", target=handler)
        for _ in range(runs):
            database.trigger(key)
    database.execute("UPDATE job_runs SET publish_at = publish_at - interval '1 min'")
    shown(pages, "/fleet", "2 of 3 runs need a handler that no executor has", "idle while runs wait")
    database.execute("DELETE FROM job_runs WHERE handler <> 'lost'")
    shown(pages, "/fleet", "0 of 4, runs need lost")
    database.execute("UPDATE executors SET queues = '{reports}'")
    shown(pages, "/fleet", "0 of 4, runs wait in other queues")
    database.apply_batch({"type": "freeze", "scope": "fleet"})
    shown(pages, "/fleet", "0 of 4, 1 queue frozen")


def test_executor_that_renews_no_lease_while_its_process_lives_is_stuck(pages: ApiClient) -> None:
    stuck = uuid4()
    executor(pages.database, HANDLER, executor_id=stuck, silent="1 h")
    executor(pages.database, HANDLER)
    pages.database.execute(
        "INSERT INTO processes SELECT %s, 'executor', 'host-1', 7, '0.1.0', '{}', at, at, at"
        " FROM tidewheel_now() AS at",
        [stuck],
    )
    page = shown(pages, "/fleet", "stuck 1 h")
    assert tile(page, "Slots used") == "0 of 4 on live executors", "a silent executor has none"


def test_silent_executor_has_its_runs_the_end_of_its_lease_and_what_becomes_of_them(pages: ApiClient) -> None:
    lost = uuid4()
    executor(pages.database, HANDLER, executor_id=lost)
    pages.database.submit()
    for _ in range(2):
        pages.database.begin(pages.database.trigger(), executor_id=lost)
    pages.database.execute("UPDATE executors SET last_heartbeat_at = tidewheel_now() - interval '1 h'")
    shown(pages, f"/fleet?executor={lost}", "Its lease ended", "2 runs held: the next executor ends the attempts")
    executor(pages.database, HANDLER)
    shown(pages, f"/fleet?executor={lost}", "2 runs held: a live executor ends the attempts as lost;")
    assert "2 runs held: a live executor" in pages.get("/").text.replace("</bdi>", "")


@pytest.mark.landing
def test_figures_are_shown_without_kafka_and_name_its_absence(database: Database) -> None:
    database.submit()
    database.trigger()
    with answering(database, kafka_bootstrap="127.0.0.1:1") as client:
        client.headers.update(HTML)
        page = client.get("/fleet").text
        assert re.fullmatch(r"[1-9]\d* .+, oldest .+", tile(page, "Outbox"))
        assert tile(page, "PostgreSQL").startswith("up")
        assert tile(page, "Kafka") == "checking no answer yet"
        until(lambda: tile(client.get("/fleet").text, "Kafka").startswith("down"), "Kafka is known to be down")


def test_doctor_runs_on_request_and_the_page_keeps_its_findings(pages: ApiClient) -> None:
    assert pages.get("/api/v1/doctor").json() == {"report": None, "checked_at": None, "is_running": False}
    answer = pages.post("/fleet/doctor", data=fields_of(pages.get("/fleet")))
    assert (answer.status_code, answer.headers["location"]) == (HTTPStatus.SEE_OTHER, "/fleet")
    found = pages.post("/api/v1/doctor:run", json={}).json()
    while found["is_running"]:
        found = pages.post("/api/v1/doctor:run", json={}).json()
    report = as_object(found["report"])
    assert report is not None
    assert "database" in str(report["passed"])
    shown(pages, "/fleet", "Run doctor again", "Passed: ")
    assert pages.get("/api/v1/doctor").json() == found


def test_fleet_is_for_keys_of_all_tenants_and_doctor_for_admins(database: Database) -> None:
    executor(database, HANDLER)
    with signed_console(database, "read", all_tenants=True) as client:
        page = client.get("/fleet")
        assert page.status_code == HTTPStatus.OK
        assert_has(page.text, HANDLER, without="doctor")
        assert client.post("/fleet/doctor", data=fields_of(client.get("/"))).status_code == HTTPStatus.FORBIDDEN
    with signed_console(database, "admin") as client:
        assert client.get("/fleet").status_code == HTTPStatus.FORBIDDEN
        assert client.get("/fleet/doctor").status_code == HTTPStatus.FORBIDDEN

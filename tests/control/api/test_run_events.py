"""The stream of changes of runs: each end once it has happened, from where the client left off."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import Any

import httpx
import pytest

from tests.control.api.answering import answering, enter, refusal
from tests.fixtures.database import Database
from tests.transitions.acts import begun, submit, succeed, trigger
from tidewheel.control.api import run_events

PATH = "/api/v1/run-events"


@pytest.fixture
def client(database: Database) -> Iterator[httpx.Client]:
    submit(database)
    with answering(database) as made:
        yield made


@contextmanager
def following(client: httpx.Client, last: str | None = None, query: str = "") -> Generator[Iterator[dict[str, Any]]]:
    headers = {"Last-Event-ID": last} if last else {}
    with client.stream("GET", PATH + query, headers=headers) as answer:
        assert answer.status_code == HTTPStatus.OK
        yield events(answer)


def events(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    event: dict[str, Any] = {}
    for line in answer.iter_lines():
        name, _, text = line.partition(": ")
        if name == "retry":
            yield {"opened": True}
        elif name in {"id", "data"}:
            event[name] = json.loads(text) if name == "data" else text
        elif not line and "data" in event:
            yield event
            event = {}


def test_changes_of_a_run_are_streamed_in_order_and_a_new_stream_goes_on_after_the_last(
    client: httpx.Client, database: Database
) -> None:
    with following(client) as stream:
        assert next(stream) == {"opened": True}
        started = begun(database)
        assert next(stream)["data"]["status"] == "running"
        succeed(database, started)
        ended = next(stream)
        assert (ended["data"]["run_id"], ended["data"]["status"]) == (str(started.run_id), "succeeded")
    missed = begun(database)
    succeed(database, missed)
    with following(client, ended["id"]) as stream:
        seen: list[str] = []
        while str(missed.run_id) not in seen:
            event = next(stream)
            seen += [event["data"]["run_id"]] if "data" in event else []


def test_stream_of_a_job_has_no_other_jobs_runs(client: httpx.Client, database: Database) -> None:
    submit(database, "other")
    with following(client, query="?job=other") as stream:
        next(stream)
        succeed(database, begun(database))
        mine = begun(database, "other")
        assert next(stream)["data"]["run_id"] == str(mine.run_id)


def test_stream_that_cannot_be_opened_is_refused(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    refusal(client.get(PATH + "?job=nope"), HTTPStatus.NOT_FOUND)
    told = refusal(client.get(PATH, headers={"Last-Event-ID": "x"}), HTTPStatus.UNPROCESSABLE_ENTITY)
    assert told["errors"][0]["path"] == "Last-Event-ID"
    monkeypatch.setattr(run_events, "_STREAMS", 0)
    refusal(client.get(PATH), HTTPStatus.SERVICE_UNAVAILABLE)


def test_streams_and_lists_leave_heartbeats_their_threads(client: httpx.Client, database: Database) -> None:
    """While every thread of reads and streams waits for a lock, beats go on."""
    executor = enter(client)
    trigger(database)
    with database.transaction() as held:
        held.execute("LOCK TABLE job_runs IN ACCESS EXCLUSIVE MODE")
        waiting = [httpx.Client(base_url=client.base_url, timeout=0.5, trust_env=False) for _ in range(10)]
        for each in waiting:
            with pytest.raises(httpx.ReadTimeout):
                each.get("/api/v1/runs")
        assert executor.heartbeat() == []
    for each in waiting:
        each.close()

"""Every view answers for jobs that have every field, in every state.

The routes are those of the OpenAPI document, the commands those of the table, the pages those of the console and the
reads those of `Client`: a new one fails this test until it is named here.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import unescape
from http import HTTPStatus
from importlib import import_module
from inspect import getmembers
from itertools import product
from typing import Any
from urllib.parse import quote
from uuid import UUID

import pytest

from tests.control.api.answering import ApiClient, answering
from tests.control.cli.command import tidewheel
from tests.control.console.pages import HTML
from tests.control.console.seeded import Ids, seed
from tests.control.every_field import (
    Installation,
    bring_into_every_state,
    fields_of_jobs,
    fields_of_requests,
    fields_written,
)
from tests.fixtures.database import ClockedDatabase
from tidewheel.control.cli.commands import every_command
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.control.client.client import Client
from tidewheel.control.console.urls import PATHS
from tidewheel.control.reads.waits import WaitCode, read_waits
from tidewheel.errors import Refused
from tidewheel.ids import job_id
from tidewheel.nouns.operation import Operation
from tidewheel.runs import RunState
from tidewheel.testing.databases import Template


@dataclass(frozen=True)
class Places:
    """An installation, and what names its rows in the views."""

    made: Installation
    ids: Ids
    client: ApiClient

    @property
    def runs(self) -> list[UUID]:
        """Each run of the jobs with every field."""
        return [*self.made.runs.values()]

    def routes(self) -> list[str]:
        """Return the paths of the routes that read."""
        document = self.client.get("/api/v1/openapi.json").json()
        routes = [path for path, methods in document["paths"].items() if "get" in methods and path not in _NOT_READ]
        return [path for path in routes if "{fingerprint}" not in path and "{executor_id}" not in path]

    def values(self, name: str) -> list[object]:
        """Return the values of a parameter of paths."""
        made, ids = self.made, self.ids
        known: Mapping[str, list[object]] = {
            "key": [*made.keys],
            "ref": [f"id:{job_id('default', key)}" for key in made.keys],
            "run_id": [*self.runs, *made.roots],
            "root_run_id": [*made.roots, ids["workflow"]],
            "batch_id": [*made.batches],
            "work_id": [*made.redrives, *made.backfills, ids["redrive"], ids["backfill"]],
            "number": [*self._numbers()],
            "tenant": ["default", "acme", "paused"],
            "key_id": ["aaaaaaaaaa", "bbbbbbbbbb", "cccccccccc"],
        }
        return known[name]

    def _numbers(self) -> list[object]:
        rows = self.made.database.rows("SELECT id FROM dead_letters ORDER BY id")
        return [*(number for (number,) in rows), self.ids["cancellation"]]


@pytest.fixture(scope="module")
def places(clocked_template: Template) -> Iterator[Places]:
    database = ClockedDatabase(clocked_template.copy(), clocked_template.installation)
    ids = seed(database)
    made = bring_into_every_state(database)
    with answering(database) as client:
        yield Places(made, ids, client)
    database.close()


def test_every_field_is_written_out(places: Places) -> None:
    """A new field of a job or of a request has a value in `every_field.py`, or no view here has seen it."""
    assert fields_of_jobs() - fields_written() == set()
    assert fields_of_requests() - places.made.sent == set()


def test_every_state_and_every_reason_to_wait_occurs(places: Places) -> None:
    database = places.made.database
    assert {RunState(state) for (state,) in database.rows("SELECT DISTINCT state FROM runs")} == set(RunState)
    opened = [run_id for (run_id,) in database.rows("SELECT run_id FROM job_runs")]
    codes = {wait.code for wait in database.within(read_waits, opened).values()}
    assert codes == set(WaitCode)


QUERIES: Mapping[str, tuple[str, ...]] = {
    "/api/v1/jobs/{key}/timeline": ("?from=2026-11-20T00:00:00Z&to=2026-11-22T00:00:00Z",),
    "/api/v1/jobs/{key}:explain": ("?at=2026-11-21T12:00:00Z", "?at=2198-12-31T09:59:59.999999Z"),
    "/api/v1/jobs/{key}/calendar": ("", "?month=2027-02"),
    "/api/v1/ask": ("?q=hourly", "?q=root+of/all+50%25", "?q=shell"),
    "/api/v1/freezes/thaw-preview": ("?scope=fleet&queue=none",),
    "/api/v1/workflows": ("", "?limit=500"),
    "/api/v1/runs": ("?limit=500", "?limit=1", "?tenant=limited"),
    "/api/v1/jobs": ("?limit=500", "?limit=1"),
}
_NOT_READ = {"/api/v1/run-events"}  # its answer does not end; test_run_events.py reads it
_ANSWERS = frozenset({HTTPStatus.OK, HTTPStatus.NOT_FOUND})  # a deleted job, a run that is no root


@pytest.mark.landing
def test_every_route_answers(places: Places) -> None:
    failed: list[object] = []
    for route in places.routes():
        answers = [(path, places.client.get(path)) for path in route_paths(places, route)]
        assert any(answer.status_code == HTTPStatus.OK for _, answer in answers), (route, answers)
        failed += [(path, answer.text[:300]) for path, answer in answers if answer.status_code not in _ANSWERS]
    assert not failed, "\n".join(map(str, failed))


def route_paths(places: Places, route: str) -> Iterator[str]:
    """Yield the path of a route with each of the names in it."""
    names = [part.split("}")[0] for part in route.split("{")[1:]]
    step = 1 if route in {"/api/v1/runs/{run_id}", "/api/v1/runs/{run_id}/attempts"} else _STEP
    for values in product(*(places.values(name)[:: step if name == "run_id" else 1] for name in names)):
        path = route
        for name, value in zip(names, values, strict=True):
            path = path.replace(f"{{{name}}}", quote(str(value), safe=":"))
        for query in QUERIES.get(route, ("",)):
            yield path + query


_RUN, _ROOT = "{run}", "{root}"
_COMMANDS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "status": ((),), "freeze list": ((),), "admin changes": ((), ("-n", "1")),
    "admin executors": ((),), "admin shards list": ((),), "admin tenant list": ((),),
    "job list": ((), ("-n", "1")), "job show": (("{key}",),), "job next": (("{key}",),), "job stats": (("{key}",),),
    "explain": (("{key}",),), "job versions": (("{key}",),), "job diff": (("hourly/1", "1", "2"),),
    "workflow list": ((),), "workflow show": ((_ROOT,),),
    "batch list": ((),), "batch show": (("{batch}",),),
    "admin calendar list": ((),), "admin calendar show": (("every-day",),),
    "run list": ((), ("-n", "500"), ("--job", "{key}")), "run show": ((_RUN,),), "run attempts": ((_RUN,),),
    "run logs": ((_RUN,),),
    "dlq list": ((),), "dlq groups": ((),), "dlq show": (("{letter}",),),
    "admin limit list": ((),), "admin limit keys": ((),), "admin ordering-key list": ((),), "admin api-key list": ((),),
    "admin tenant show": (("acme",),), "admin tenant usage": (("acme",), ("limited",)),
    "work list": ((),), "work show": (("{work}",),),
}  # fmt: skip
"""The commands that read an installation, each with its arguments."""

_NO_VIEWS: Mapping[str, str] = {
    "": "dev serve up down doctor env migrate apply", "service": "intake scheduler relay executor api",
    "job": "create update release trigger preview", "run": "cancel retry",
    "admin": "failover bench psql audit restore", "admin calendar": "put delete",
    "admin archive": "run list show verify restore forget",
    "admin tenant": "retention delete", "admin cron": "explain", "admin topics": "apply list",
    "admin schemas": "check register", "admin secrets": "rotate",
}  # fmt: skip
"""The commands that change, start or read something else, beside those of operations whose route is no GET."""


def _joined(names: Mapping[str, str], by: str) -> set[str]:
    return {f"{group}{by}{name}".removeprefix(by) for group, listed in names.items() for name in listed.split()}


def _changes(declared: Operation | None) -> bool:
    return declared is not None and not declared.route.startswith("GET")


@pytest.mark.landing
def test_every_list_and_show_of_the_command_line_answers(places: Places) -> None:
    found = {words: getattr(import_module(each.path), each.function) for words, each in every_command()}
    views = {words for words, each in found.items() if not _changes(getattr(each, "declared", None))}
    assert views == set(_COMMANDS) | _joined(_NO_VIEWS, " ")
    fine = {0, ExitCode.NOT_FOUND}
    failed: list[object] = []
    for words in command_lines(places):
        done = tidewheel(places.made.database, *words)
        if done.code not in fine and done.err:  # `status` has found something wrong: 1
            failed.append((words, done.code, done.err[:300]))
    assert not failed, "\n".join(map(str, failed))


def command_lines(places: Places) -> Iterator[list[str]]:
    """Yield each command that reads with each of the names in it, and once with JSON.

    REST writes the JSON of all.
    """
    names = {
        "{key}": "key", _RUN: "run_id", _ROOT: "root_run_id", "{batch}": "batch_id", "{work}": "work_id",
    }  # fmt: skip
    letter = places.made.database.value("SELECT max(id) FROM dead_letters WHERE run_id IS NOT NULL")
    for command, given in _COMMANDS.items():
        for arguments in given:
            name = next((names[each] for each in arguments if each in names), None)
            values = [letter] if name is None else places.values(name)[:: _STEP if name == "run_id" else 1]
            lines = [
                [*command.split(), *(str(value) if each.startswith("{") else each for each in arguments)]
                for value in values
            ]
            yield from lines
            yield [*lines[0], "--output", "json"]


_STEP = 7  # of the runs: a prime to the number of states, so that each job and each state occur


_PAGES_APART = frozenset({"api", "live", "sign_in", "sign_out", "static", "theme"})  # no pages of rows
PAGE_QUERIES: Mapping[str, tuple[str, ...]] = {
    "job_skip": ("?at=2026-11-21T15:00:00Z",), "job_move": ("?at=2026-11-21T16:00:00Z",),
    "job_unskip": ("?at=2026-11-21T16:00:00Z",), "job_rollback": ("?version=1",), "ask": ("?q=root+of/all+50%25",),
    "freeze_scope": ("?queue=reports",), "thaw": ("?scope=tenant&queue=none",),
    "runs_cancel": ("?run={run_id}",), "runs_retry": ("?run={run_id}",),
    "run_log": ("?attempt=1",), "run_lines": ("?attempt=1",), "runs_cancel_matching": ("?job=slow",),
    "jobs_pause": ("?job=hourly",), "jobs_resume": ("?job=hourly",), "runs": ("", "?limit=500", "?tenant=limited"),
}  # fmt: skip


@pytest.mark.landing
def test_every_page_answers(places: Places) -> None:
    failed = [
        (page, answer.status_code, answer.text[-300:])
        for page in page_paths(places)
        if (answer := places.client.get(page, headers=HTML)).status_code >= HTTPStatus.INTERNAL_SERVER_ERROR
    ]
    assert not failed, "\n".join(map(str, failed))


def page_paths(places: Places) -> Iterator[str]:
    """Yield the path of every page, with each of the names in it."""
    for name, path in PATHS.items():
        if name not in _PAGES_APART:
            yield from _page_paths(places, name, path)


@pytest.mark.slow
def test_no_page_links_to_a_page_that_is_not_there(places: Places) -> None:
    """A link to a deleted job leads to a page that says so, and has its runs."""
    linked: dict[str, str] = {}
    for page in page_paths(places):
        answer = places.client.get(page, headers=HTML)
        if answer.status_code == HTTPStatus.OK:
            linked |= dict.fromkeys(map(unescape, _HREF.findall(answer.text)), page)
    assert len(linked) > 100
    answers = {href: places.client.get(href, headers=HTML) for href in linked}
    broken = [
        (linked[href], href)
        for href, answer in answers.items()
        if answer.status_code in _BROKEN and "Runs of this key" not in answer.text
    ]
    assert not broken, "\n".join(map(str, broken))


_HREF = re.compile(r'href="(/[^"#]*)')
_BROKEN = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})


def test_page_of_a_batchs_run_names_the_batch(places: Places) -> None:
    run_id = places.made.runs["batch", "run of a batch"]
    page = places.client.get(f"/runs/{run_id}", headers=HTML).text
    assert f'href="/batches/{places.made.batches[0]}"' in page
    assert "Part of a workflow" not in page
    shown = places.client.get(f"/api/v1/runs/{run_id}").json()
    assert (shown["batch_id"], shown["workflow_run_id"]) == (str(places.made.batches[0]), None)


def _page_paths(places: Places, name: str, path: str) -> Iterator[str]:
    kinds = {
        "{kind}/{id}": [
            *(f"backfill/{each}" for each in places.made.backfills),
            *(f"redrive/{each}" for each in places.values("work_id")),
            f"cancellation/{places.ids['cancellation']}",
        ],
        "{name}": ["every-day", "default", "acme"],
        "{run_id}": places.values("run_id")[:: 1 if name == "run" else _STEP],
        "{key_id}": ["bbbbbbbbbb"],
        "{ref}": places.values("ref"), "{root_run_id}": places.values("root_run_id"),
        "{number}": places.values("number"),
    }  # fmt: skip
    held = next((each for each in kinds if each in path), None)
    for value in [""] if held is None else kinds[held]:
        for query in PAGE_QUERIES.get(name, ("",)):
            page = path if held is None else path.replace(held, quote(str(value), safe=":/"))
            yield page + query.replace("{run_id}", str(places.runs[0]))


@pytest.mark.landing
def test_every_read_of_the_client_answers(places: Places) -> None:
    with Client(places.made.database.url) as client:
        parts = {"": client, **{name: each for name, each in vars(client).items() if not name.startswith("_")}}
        methods = {
            f"{part}.{name}".lstrip(".")
            for part, each in parts.items()
            for name, method in getmembers(each)
            if callable(method)
            and not name.startswith("_")
            and name not in parts
            and not _changes(getattr(method, "operation", None))
        }
        assert methods == set(READS) | _joined(_WRITES, ".")
        for name, given in READS.items():
            part, _, method = name.rpartition(".")
            read: Any = getattr(parts[part], method)
            for arguments in _arguments(places, given):
                with suppress(Refused):  # a job that is deleted, a run that is no root
                    read(*arguments)


def _arguments(places: Places, given: tuple[object, ...]) -> Iterator[Sequence[object]]:
    lists = [places.values(each[1:]) if isinstance(each, str) and each.startswith(":") else [each] for each in given]
    yield from product(*lists)


_AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
READS: Mapping[str, tuple[object, ...]] = {
    "audit": (_AT - timedelta(hours=1), _AT + timedelta(hours=1)), "diff": (":key", 1, 1), "explain": (":key", _AT),
    "next": (":key",), "preview": ({"schedule": "@every 400d", "target": "x", "key": "k", "window": "90d"},),
    "statistics": (":key",), "versions": (":key",),
    "jobs.list": (), "jobs.get": (":key",),
    "runs.cancellation": (1,), "runs.cancellations": (), "runs.detail": (":run_id",),
    "runs.get": (":run_id",), "runs.list": (), "runs.logs": (":run_id",),
    "dead_letters.get": (":number",), "dead_letters.groups": (), "dead_letters.list": (),
    "works.get": (":work_id",), "works.list": (),
    "workflows.get": (":root_run_id",), "workflows.list": (), "workflows.parents": (":run_id",),
    "batches.get": (":batch_id",), "batches.list": (),
    "calendars.get": ("every-day",), "calendars.list": (), "freezes.list": (),
    "limits.keys": (), "limits.list": (), "ordering_keys.blocked": (),
    "tenants.get": (":tenant",), "tenants.list": (), "tenants.retention": (":tenant",), "tenants.usage": (":tenant",),
    "api_keys.list": (), "audit_log.list": (),
}  # fmt: skip
"""The reads of `Client` with their arguments; one that begins with a colon is each value of a parameter of paths."""

_WRITES: Mapping[str, str] = {
    "": "close patch release run_later submit trigger trigger_deduped",
    "runs": "follow_logs retry retry_now wait", "works": "wait", "batches": "wait",
    "task_tokens": "complete fail heartbeat", "calendars": "delete put", "freezes": "preview_thaw",
    "tenants": "delete grant_role revoke_role",
}  # fmt: skip
"""The methods of `Client` that change something or wait for an end, beside operations whose route is no GET."""

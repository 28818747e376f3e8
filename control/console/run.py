"""One run: what happened, how far it is, why it waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import ClassVar

from starlette.requests import Request

from tidewheel.control.api.callers import Caller
from tidewheel.control.api.queries import Flag, TenantQuery, Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.log_lines import Log
from tidewheel.control.console.run_log import attempts_with_logs, is_over, more_of, read_log, run_id_of
from tidewheel.control.console.sentences import about_run
from tidewheel.control.console.timing import timing
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, page_now, part
from tidewheel.control.console.words import target
from tidewheel.control.explain.job_timeline import why_late
from tidewheel.control.reads.fleet import AbleExecutors, able_executors
from tidewheel.control.reads.stored import Payload, read_run_payload
from tidewheel.control.reads.waits import WaitCode
from tidewheel.errors import UnknownRun
from tidewheel.jobs.values import RESERVED
from tidewheel.nouns.freezes.model import FreezeChange
from tidewheel.nouns.freezes.reads import freeze_changes
from tidewheel.nouns.jobs.versions import job_at
from tidewheel.nouns.runs.detail import claims_of
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.runs.places import MessagePlace, RunWhere, stored_places
from tidewheel.runs import FINAL
from tidewheel.settings.api import ApiSettings
from tidewheel.transitions.parents import Neighbours, read_neighbours

_NEIGHBOURS = 12  # parents or children that are shown
_LONG_WAIT = timedelta(seconds=1)
_OPEN_ROWS = 5  # attempts that are not folded
_READ = """\
tidewheel env --format kafka --secrets | python -c '
import sys
from confluent_kafka import Consumer, TopicPartition
from tidewheel.schemas.codec import decode, encode_json
from tidewheel.schemas.generated.records import RunCompleted
settings = dict(line.split("=", 1) for line in sys.stdin.read().splitlines())
consumer = Consumer({{**settings, "group.id": "look", "log_level": 0}})
consumer.assign([TopicPartition("{0.topic}", {0.partition}, {0.offset})])
print(encode_json(decode(consumer.poll(30).value(), RunCompleted)).decode())'"""


class RunQuery(TenantQuery):
    """Query of the page of a run."""

    attempt: Whole | None = None  # the one whose output is shown; by default the newest with output
    kafka: Flag = False  # True to look up its messages on Kafka


@dataclass(frozen=True, slots=True)
class RunPage:
    """The page of a run."""

    settings: ApiSettings
    template: ClassVar[str] = "run.html"
    place: ClassVar[str] = "runs"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the run, its payload, the output of an attempt and its places."""
        query, run_id = read_query(request, RunQuery), run_id_of(request)
        now = page_now(connection)
        run = Runs(connection).detail(run_id)
        is_stored = not (run.archived or run.copied)
        with_logs: Sequence[int] = attempts_with_logs(run) if is_stored else ()
        picked = query.attempt or (with_logs[0] if with_logs else None)

        def read_places() -> RunWhere:
            return stored_places(connection, self.settings, run_id, kafka=query.kafka)

        def read_payload() -> Payload | None:
            with connection.snapshot() as reading:
                return read_run_payload(reading, caller.tenant, run_id)

        def read_output() -> Log | None:
            try:
                return None if picked is None else read_log(connection, run, picked)
            except UnknownRun:  # dropped meanwhile
                return None

        def read_neighbours_of() -> Neighbours | None:
            with connection.snapshot() as reading:
                return read_neighbours(reading, run_id, tenant=caller.tenant)

        def read_target() -> str:
            with connection.snapshot() as reading:
                return target(job_at(reading, caller.tenant, run.summary.key, run.summary.job_version))

        def read_able() -> AbleExecutors | None:
            why = run.summary.why
            if not caller.all_tenants or why is None or why.code is not WaitCode.SLOT:
                return None
            with connection.snapshot(all_tenants=True) as reading:
                return able_executors(reading, run.summary.queue, run.handler)

        def read_thaw() -> FreezeChange | None:
            summary = run.summary
            since = max(summary.created_at, summary.scheduled_at)
            starts = (*(each.started_at for each in run.attempts), summary.started_at)
            until = next((each for each in starts if each is not None), None)
            if until is None or until - since < _LONG_WAIT:
                return None
            with connection.snapshot() as reading:
                found = freeze_changes(reading, caller.tenant, since, until)
            names = partial(FreezeChange.names, queue=summary.queue, key=summary.key, labels=run.labels)
            return next((each for each in found if not each.begins and names(each)), None)

        def read_late() -> str | None:
            if run.late is None:
                return None
            with connection.snapshot() as reading:
                return why_late(reading, caller.tenant, run)

        places = part(read_places) if is_stored else None
        neighbours = part(read_neighbours_of) if is_stored and run.workflow_run_id else None
        sentence = about_run(run, now, None if isinstance(neighbours, Failed) else neighbours)
        completion = places.completion if query.kafka and isinstance(places, RunWhere) else None
        log = part(read_output) if is_stored else None
        follows = picked is not None and is_stored and not is_over(run, picked)
        return View(
            {
                "now": now, "run": run, "summary": run.summary, "sentence": sentence,
                "timing": timing(run, now), "thaw": part(read_thaw) if is_stored else None,
                "why_late": part(read_late),
                "is_final": run.summary.status in FINAL, "able": part(read_able),
                "newest": run.attempts[: -_OPEN_ROWS - 1 : -1], "older": run.attempts[: -_OPEN_ROWS][::-1],
                "payload": part(read_payload) if is_stored else None,
                "neighbours": neighbours,
                "target": part(read_target) if run.handler.startswith(RESERVED) else None,
                "most": _NEIGHBOURS, "places": places, "claims": claims_of(run), "looked": query.kafka,
                "command": read_command(completion) if completion else None,
                "picked": picked, "with_logs": with_logs, "log": log,
                "more": more_of(urls, run_id, log) if follows and isinstance(log, Log) else None,
            }
        )  # fmt: skip


def read_command(place: MessagePlace) -> str:
    """Return a command that prints a completion as JSON, with the settings of its machine."""
    return _READ.format(place)

"""One run: what happened, how far it is, and why it waits."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import ClassVar

from starlette.requests import Request

from tidewheel.control.api.authorization import Caller
from tidewheel.control.api.request_input import TenantQuery, Whole, read_query
from tidewheel.control.client.connection import Connection
from tidewheel.control.console.job_lead import is_stuck
from tidewheel.control.console.job_rows import error_lines
from tidewheel.control.console.run_axis import timing
from tidewheel.control.console.run_log import Log, attempts_with_logs, is_over, more_of, read_log, run_id_of
from tidewheel.control.console.runs import PageOfRunsQuery, fold_runs
from tidewheel.control.console.sentences import about_run
from tidewheel.control.console.urls import Urls
from tidewheel.control.console.view import Failed, View, in_snapshot, of_all_tenants, or_else, page_now, part, part_of
from tidewheel.control.console.words import target
from tidewheel.control.reads.fleet import AbleExecutors, able_executors, executor_names
from tidewheel.control.reads.stored import read_run_payload
from tidewheel.control.reads.waits import WaitCode
from tidewheel.errors import UnknownRun
from tidewheel.executor.context_parts import OWN, has_steps
from tidewheel.jobs.values import RESERVED
from tidewheel.nouns.batches.operations import with_causes
from tidewheel.nouns.freezes.model import FreezeChange
from tidewheel.nouns.freezes.reads import thaws_of
from tidewheel.nouns.jobs.versions import job_at
from tidewheel.nouns.runs.model import PageFilter
from tidewheel.nouns.runs.operations import Runs
from tidewheel.nouns.runs.reads import list_runs
from tidewheel.runs import DEAD_LETTERED, FINAL, RunState
from tidewheel.transitions.parents import read_neighbours

_NEIGHBOURS = 12  # parents or children that are shown
_LATEST = 8  # runs of the job
_LONG_WAIT = timedelta(seconds=1)
_OPEN_ROWS = 5  # attempts that are not folded


class RunQuery(TenantQuery):
    """Query of the page of a run."""

    attempt: Whole | None = None  # the one whose output is shown; by default the newest with output


@dataclass(frozen=True, slots=True)
class RunPage:
    """The page of a run."""

    template: ClassVar[str] = "run.html"

    def read(self, connection: Connection, caller: Caller, request: Request, urls: Urls) -> View:
        """Read the run, its payload, and the output of an attempt."""
        query, run_id = read_query(request, RunQuery), run_id_of(request)
        now = page_now(connection)
        run = Runs(connection).detail(run_id)
        is_stored = not (run.archived or run.copied)
        with_logs: Sequence[int] = attempts_with_logs(run) if is_stored else ()
        picked = query.attempt or (with_logs[0] if with_logs else None)

        def read_output() -> Log | None:
            try:
                return None if picked is None else read_log(connection, run, picked)
            except UnknownRun:  # dropped meanwhile
                return None

        def read_target() -> str:
            return target(in_snapshot(connection, job_at, caller.tenant, run.summary.key, run.summary.job_version))

        def read_able() -> AbleExecutors | None:
            why = run.summary.why
            if not caller.all_tenants or why is None or why.code is not WaitCode.SLOT:
                return None
            return of_all_tenants(connection, able_executors, run.summary.queue, run.handler)

        def read_thaw() -> FreezeChange | None:
            summary = run.summary
            since = max(summary.created_at, summary.scheduled_at)
            starts = (*(each.started_at for each in run.attempts), summary.started_at)
            until = next((each for each in starts if each is not None), None)
            if until is None or until - since < _LONG_WAIT:
                return None
            about = partial(thaws_of, queue=summary.queue, key=summary.key, labels=run.labels)
            return next(iter(in_snapshot(connection, about, caller.tenant, since, until)), None)

        ended_by = {each.executor_id for each in run.attempts if each.executor_id}
        neighbours = payload = None
        if is_stored:
            payload = part_of(connection, read_run_payload, caller.tenant, run_id)
            if run.workflow_run_id:
                neighbours = part_of(connection, read_neighbours, run_id, tenant=caller.tenant)
        sentence = about_run(run, now, None if isinstance(neighbours, Failed) else neighbours)
        log = part(read_output) if is_stored else None
        follows = picked is not None and is_stored and not is_over(run, picked)
        of_job: PageFilter = {"key": run.summary.key}
        read = part_of(connection, list_runs, caller.tenant, of_job, limit=_LATEST, counts=False)
        latest = () if isinstance(read, Failed) else or_else(part_of(connection, with_causes, read.runs), read.runs)
        is_troubled = run.summary.status == RunState.RETRYING or is_stuck(run, now)
        family = "bad" if run.status in DEAD_LETTERED else "trouble" if is_troubled else ""
        messages = error_lines(connection, latest)
        return View(
            {
                "now": now, "run": run, "summary": run.summary, "sentence": sentence,
                "family": family,
                "timing": timing(run, now, or_else(log, None)), "thaw": part(read_thaw) if is_stored else None,
                "is_final": run.summary.status in FINAL, "able": part(read_able),
                "newest": run.attempts[: -_OPEN_ROWS - 1 : -1], "older": run.attempts[: -_OPEN_ROWS][::-1],
                "payload": payload, "neighbours": neighbours,
                "own": OWN if has_steps(run.checkpoint) else None,
                "target": part(read_target) if run.handler.startswith(RESERVED) else None,
                "names": or_else(part_of(connection, executor_names, list(ended_by)), {}) if ended_by else {},
                "most": _NEIGHBOURS, "picked": picked, "with_logs": with_logs, "log": log,
                "latest": latest, "messages": messages, "filters": {"job": run.summary.key}, "kept": {},
                "query": PageOfRunsQuery(),
                "folds": fold_runs(latest, messages, now, apart=family == "trouble", of=run_id),
                "more": more_of(urls, run_id, log) if follows and isinstance(log, Log) else None,
            }
        )  # fmt: skip

"""`tidewheel run list | show | attempts | where | cancel | retry`, on a real database."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from importlib import import_module
from typing import get_args, get_type_hints
from uuid import UUID, uuid4

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.acts import ending
from tests.fixtures.bounds import MISTYPED
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.transitions.stepping import in_background
from tidewheel.control.cli.commands import Command, every_command
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.errors import Unavailable
from tidewheel.process.service import Shutdown
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.scheduler.cancels import BulkCancel


@pytest.fixture
def job(database: Database) -> Database:
    database.submit(labels={"team": "billing"})
    return database


@contextmanager
def scheduling(database: Database) -> Generator[None]:
    """The part of a scheduler that carries cancellations out, as long as the block."""
    stop, cancelling = Shutdown(), BulkCancel(database.session(), database.installation)

    def work() -> None:
        while not stop.wait(0.02):
            try:
                cancelling.step()
            except Unavailable:
                return

    ended = in_background(work)
    try:
        yield
    finally:
        stop.request()
        ended.result(30)


def failed(database: Database) -> UUID:
    started = database.begun()
    database.requeue(started, AttemptOutcome.FAILED)
    again = database.begin(started.run_id)
    database.end(ending(again, RunState.FAILED, error_type="ValueError", error_message="no", trace="at 1", output=b"o"))
    return started.run_id


def test_runs_are_listed_a_page_at_a_time(job: Database) -> None:
    runs = [str(job.trigger()) for _ in range(3)]
    page = json_output(job, "run", "list", "-n", 2)
    assert [run["run_id"] for run in page["runs"]] == runs[:0:-1]
    assert (page["total"], page["at_least"], page["next_cursor"].rpartition("/")[2]) == (3, False, runs[1])
    rest = json_output(job, "run", "list", "--after", page["next_cursor"])["runs"]
    assert [run["run_id"] for run in rest] == runs[:1]
    assert tidewheel(job, "run", "list", "--after", runs[1]).refusal.startswith("after: ")
    lines = tidewheel(job, "run", "list", "-n", 2).lines
    assert lines[0].split() == ["run", "key", "status", "cause", "scheduled", "attempt", "duration", "why"]
    assert lines[1].split()[:4] == [runs[2], "job", "queued", "trigger"]
    assert lines[-2] == "2 of 3 runs"
    assert re.fullmatch(rf"more: add --after \S+Z/{runs[1]}", lines[-1])


def test_run_is_shown_with_its_attempts_and_retry_chain(job: Database) -> None:
    run = failed(job)
    new = json_output(job, "run", "retry", run, "--request-id", "again")
    assert new == json_output(job, "run", "retry", run, "--request-id", "again")
    assert new["parent_run_id"] == str(run)
    shown = json_output(job, "run", "show", run)
    assert (shown["status"], shown["error_type"], shown["error_message"]) == ("failed", "ValueError", "no")
    assert [one["run_id"] for one in shown["retry_chain"]["next"]] == [new["run_id"]]
    facts = dict(line.split(maxsplit=1) for line in tidewheel(job, "run", "show", new["run_id"]).lines)
    assert (facts["status"], facts["cause"]) == ("queued", "retry")
    assert any(f"{run}  failed" in line for line in tidewheel(job, "run", "show", new["run_id"]).lines)
    listed = json_output(job, "run", "attempts", run)["attempts"]
    assert [(one["attempt"], one["outcome"], one["trace"], one["output"]) for one in listed] == [
        (1, "failed", None, None),
        (2, "failed", "at 1", "o"),
    ]
    lines = tidewheel(job, "run", "attempts", run).lines
    assert lines[-3:] == ["attempt 2", "trace   at 1", "output  o"]
    assert tidewheel(job, "run", "attempts", new["run_id"]).lines == ["no attempt has started"]


def test_show_counts_attempts_and_lists_the_current_one(job: Database) -> None:
    waiting = job.trigger()
    assert attempt_of(job, waiting) == ("none of 4 yet", "")
    started = job.begun()
    assert attempt_of(job, started.run_id)[0] == "1 of 4"
    job.requeue(started, AttemptOutcome.FAILED)
    job.begin(started.run_id)
    attempt, attempts = attempt_of(job, started.run_id)
    assert attempt == "2 of 4, 1 failed"
    assert attempts.split()[:2] == ["1", "failed"]
    rows = [line.split()[:2] for line in tidewheel(job, "run", "attempts", started.run_id).lines]
    assert rows[1:3] == [["1", "failed"], ["2", "running"]]
    again = job.begun()
    job.requeue(again, AttemptOutcome.LOST)
    job.begin(again.run_id)
    assert attempt_of(job, again.run_id)[0] == "2, 0 of 4 failed, 1 lost"


def attempt_of(database: Database, run_id: UUID) -> tuple[str, str]:
    """The facts about attempts that `run show` prints."""
    found = dict(line.split(maxsplit=1) for line in tidewheel(database, "run", "show", run_id).lines)
    return found["attempt"], found.get("attempts", "")


def test_runs_are_cancelled_by_id(job: Database) -> None:
    first, second = job.trigger(), job.trigger()
    found = json_output(job, "run", "cancel", first, second, "--dry-run")["runs"]
    assert found == [{"run_id": str(run), "found": "queued"} for run in (first, second)]
    assert tidewheel(job, "run", "cancel", first, second, "--reason", "no need").lines == [
        f"run {first}: cancel requested (was queued)",
        f"run {second}: cancel requested (was queued)",
    ]
    assert tidewheel(job, "run", "cancel", first).lines == [f"run {first}: nothing to cancel: already cancelled"]
    assert job.final_state(first) == ("cancelled", "no need")
    assert tidewheel(job, "run", "cancel", uuid4()).refusal.startswith("run_id: ")


def test_runs_are_cancelled_by_filter_until_the_last_has_ended(job: Database) -> None:
    runs = [job.trigger() for _ in range(3)]
    assert tidewheel(job, "run", "cancel", "--job", "job", "--dry-run").lines == ["runs that would be cancelled: 3"]
    with scheduling(job):
        done = json_output(job, "run", "cancel", "--job", "job", "--label", "team=billing", "--reason", "wrong list")
    assert (done["key"], done["cancelled_count"], done["finished_at"] is not None) == ("job", 3, True)
    assert {job.final_state(run) for run in runs} == {("cancelled", "wrong list")}
    running, waiting = job.begun().run_id, job.trigger()
    lines = tidewheel(job, "run", "cancel", "--handler", "send-email", "--not-started", "--no-wait").lines
    assert lines[1:] == ["0 runs cancelled so far; executors no longer start the others"]
    with scheduling(job):
        until(lambda: job.final_state(waiting)[0] == "cancelled", "it ends")
    assert job.open_run(running).state == "running"


def test_missing_or_invalid_cancel_filter_is_refused(job: Database) -> None:
    cases: list[tuple[list[str], str]] = [
        ([], "RUN"),
        ([str(uuid4()), "--job", "job"], "RUN"),
        (["--not-started"], "key"),
        (["--job", "nope"], "key"),
        (["--lane", "fast"], "lane"),
        (["--queue", "q", "--before", "2999-01-01T00:00:00Z"], "created_before"),
    ]
    for flags, path in cases:
        assert tidewheel(job, "run", "cancel", *flags).refusal.startswith(f"{path}: "), flags


TAKES_A_RUN: dict[str, list[str]] = {
    "run show": [], "run attempts": [], "run logs": [], "run cancel": [], "run retry": [],
    "workflow show": [], "workflow pause": [], "workflow resume": [], "workflow cancel": [], "admin archive show": [],
}  # fmt: skip


def takes_a_run(command: Command) -> bool:
    function = getattr(import_module(command.path), command.function)
    hints = get_type_hints(function, include_extras=True).values()
    return any(getattr(part, "metavar", None) == "RUN" for hint in hints for part in get_args(hint)[1:])


def test_every_command_takes_the_first_digits_of_a_run_id(job: Database) -> None:
    found = {words for words, command in every_command() if takes_a_run(command)}
    assert found == {*TAKES_A_RUN, "batch add"}
    for words, flags in TAKES_A_RUN.items():
        done = tidewheel(job, *words.split(), "0000abcd", *flags)
        assert done.code == ExitCode.NOT_FOUND, words
        assert done.refusals == ["run_id: there is no run 0000abcd; copy the id from a reply or an event"], words


def test_first_digits_that_one_run_has_name_it_and_others_list_the_candidates(job: Database) -> None:
    one, other = job.trigger(), job.trigger()
    same = next(str(one)[:length] for length in range(36, 0, -1) if str(other).startswith(str(one)[:length]))
    unique = str(one)[: len(same) + 1]
    assert json_output(job, "run", "show", unique)["run_id"] == str(one)
    assert json_output(job, "run", "show", f"{str(one)[:8]}…{str(one)[-12:]}")["run_id"] == str(one)
    assert json_output(job, "run", "cancel", unique, other, "--dry-run")["runs"][0]["run_id"] == str(one)
    done = tidewheel(job, "run", "show", same)
    assert done.code == ExitCode.REFUSED
    assert f"RUN: {same} matches 2 runs" in done.err
    assert {f"{run} (job, queued)" for run in (one, other)} <= set(re.findall(r"[0-9a-f-]{36} \(.*?\)", done.err))
    for text in ("nightly", *MISTYPED):
        for words in (["run", "show"], ["work", "show"], ["batch", "show"]):
            assert tidewheel(job, *words, "--", text).code == ExitCode.USAGE, (words, text)
    assert tidewheel(job, "run", "show", "0" * 35).code == ExitCode.NOT_FOUND
    tidewheel(job, "admin", "tenant", "create", "acme")
    assert tidewheel(job, "run", "show", unique, "--tenant", "acme").code == ExitCode.NOT_FOUND


def test_next_attempt_of_a_retrying_run_is_started_by_its_number(job: Database) -> None:
    run = job.begun()
    job.requeue(run, AttemptOutcome.FAILED, timedelta(hours=1))
    assert "`attempt: 2`" in tidewheel(job, "run", "retry", run.run_id).refusal
    now = tidewheel(job, "run", "retry", run.run_id, "--attempt", 2)
    assert now.out == f"attempt 2 of run {run.run_id} is due now\n"
    job.begin(run.run_id)
    late = tidewheel(job, "run", "retry", run.run_id, "--attempt", 2)
    assert late.out == f"unchanged: attempt 2 of run {run.run_id} was already due, or has started\n"
    document = {"run_id": str(run.run_id), "attempt": 2, "unchanged": True}
    assert json_output(job, "run", "retry", run.run_id, "--attempt", 2) == document
    assert tidewheel(job, "run", "retry", run.run_id, "--attempt", 2, "--delay", "1s").refusal.startswith("--delay: ")


def test_blocked_key_is_listed_and_skipped(job: Database) -> None:
    trigger_in_order = ("job", "trigger", "job", "--ordering-key", "acme")
    assert tidewheel(job, "admin", "ordering-key", "list").lines == ["no blocked keys"]
    [first, _] = [tidewheel(job, *trigger_in_order).lines[0].removeprefix("run ") for _ in range(2)]
    job.end(ending(job.begin(UUID(first)), RunState.FAILED))
    assert tidewheel(job, "admin", "ordering-key", "list").lines[1].split()[:2] == ["acme", first]
    assert tidewheel(job, "admin", "ordering-key", "unblock", "acme", "--skip").lines == [f"skipped run {first}"]
    assert "not blocked" in tidewheel(job, "admin", "ordering-key", "unblock", "acme").refusal


def test_retry_of_a_run_that_succeeded_needs_a_yes_where_nobody_can_answer(job: Database) -> None:
    run = job.begun()
    job.end(ending(run, RunState.SUCCEEDED))
    [refusal] = tidewheel(job, "run", "retry", run.run_id).refusals
    assert refusal == f"--yes: is missing: run {run.run_id} succeeded. Run it again?; add --yes"
    assert json_output(job, "run", "retry", run.run_id, "--yes")["parent_run_id"] == str(run.run_id)
    assert json_output(job, "run", "retry", failed(job))["run_id"], "a failed run is retried at once"

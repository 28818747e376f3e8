"""Outcomes are written in batches and retried until written or superseded; a bad one harms no other."""

# pyright: reportPrivateUsage=false

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from psycopg import sql

from tests.executor.running import hold_row
from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.errors import Snooze
from tidewheel.executor import completer as completer_module
from tidewheel.executor import record_outcomes
from tidewheel.executor.attempt import Attempt
from tidewheel.executor.completer import Completer, Item
from tidewheel.executor.outcome import CANCELLED, RELEASED, Outcome, failed, from_exception, succeeded, timed_out
from tidewheel.postgres.partitions import day_of
from tidewheel.postgres.session import Conn
from tidewheel.runs import AttemptOutcome
from tidewheel.schemas.codec import decode
from tidewheel.schemas.generated.records import JobDefinition
from tidewheel.transitions.claim import Started
from tidewheel.transitions.finish import Ended, finish_runs
from tidewheel.transitions.installation import Installation

SLOW: dict[str, Any] = {"retry": {"max_attempts": 2, "initial": "1h", "max": "1h", "jitter": "0%"}}


@dataclass
class Flood:
    """A burst of claims, and the number of times a writer has checked for it."""

    lasts: bool = True
    looked: int = 0

    def on(self) -> bool:
        self.looked += 1
        return self.lasts


@contextmanager
def completing(database: Database, in_burst: Callable[[], bool] = lambda: False) -> Generator[Completer]:
    completer = Completer(
        database.session(),
        database.installation,
        EXECUTOR,
        _ignore,
        in_burst=in_burst,
        second_session=database.session(),
    )
    try:
        yield completer
    finally:
        completer.close()


def record(database: Database, attempt: Attempt, outcome: Outcome) -> None:
    with completing(database) as completer:
        completer.add(attempt, outcome)
        assert completer.drain(30)


def succeed_all(completer: Completer, *attempts: Attempt) -> None:
    for attempt in attempts:
        completer.add(attempt, succeeded(None))


def _ignore(*_: object) -> None:
    """Do nothing."""


def attempt_at(database: Database, started: Started) -> Attempt:
    [request] = [r for r in database.requests() if r.run_id == str(started.run_id) and r.attempt == started.attempt]
    definition = decode(request.definition, JobDefinition)
    return Attempt(started, request, definition, on_report=_ignore, on_release=_ignore)


@pytest.fixture
def with_job(database: Database) -> Database:
    database.submit(**SLOW)
    return database


def test_batch_of_different_outcomes_records_each(with_job: Database) -> None:
    told: list[tuple[Any, str]] = [
        (succeeded(b"1"), "succeeded"),
        (failed("ValueError", "no"), "retrying"),
        (failed("ValueError", "no", permanent=True), "failed"),
        (timed_out("start_to_close", 1.0), "retrying"),
        (RELEASED, "queued"),
        (CANCELLED, "cancelled"),
    ]
    items = [(attempt_at(with_job, with_job.begun()), outcome, state) for outcome, state in told]
    with completing(with_job) as completer:
        for attempt, outcome, _ in items:
            completer.add(attempt, outcome)
        assert completer.drain(30)
        assert completer.backlog() == 0
    still_open = {run.run_id: run.state for run in with_job.job_runs()}
    for attempt, _, state in items:
        found = still_open.get(attempt.run_id) or with_job.final_state(attempt.run_id)[0]
        assert found == state


def test_first_outcomes_of_a_burst_wait_for_claims(with_job: Database) -> None:
    first, *others = [attempt_at(with_job, with_job.begun()) for _ in range(3)]

    def flooded() -> bool:
        """As long as others end, which would not have been written with the first one."""
        if others:
            completer.add(others.pop(), succeeded(None))
        return bool(others)

    with completing(with_job, flooded) as completer:
        completer.add(first, succeeded(None))
        assert completer.drain(30)
    [written] = with_job.rows(
        "SELECT count(*), count(DISTINCT xmin::text) FROM finished_runs WHERE state = 'succeeded'"
    )
    assert written == (3, 1)


def test_each_burst_delays_only_its_first_outcomes(with_job: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completer_module, "_CALM_SECONDS", calm := 5.0)
    flood = Flood()
    with completing(with_job, flood.on) as completer:
        for burst in range(2):
            flood.lasts = True
            looks: list[int] = []
            for _ in range(3):
                started = with_job.begun()
                flood.looked = 0
                completer.add(attempt_at(with_job, started), succeeded(None))
                assert completer.drain(30)
                looks.append(flood.looked)
                assert with_job.final_state(started.run_id) == ("succeeded", None)
            first, *others = looks
            assert first > 3, f"in burst {burst} it looked again and again whether the flood was over"
            assert all(each <= 3 for each in others), "who waits looks every hundredth of a second"
            flood.lasts = False
            completer._in_burst_at -= calm  # as if the flood had been over for so long


def test_many_outcomes_end_the_delay(with_job: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(completer_module, "_MAX_DEFERRED", 2)
    monkeypatch.setattr(completer_module, "_DEFER_SECONDS", 3600.0)
    items = [attempt_at(with_job, with_job.begun()) for _ in range(2)]
    with completing(with_job, lambda: True) as completer:
        completer.add(items[0], succeeded(None))
        assert not completer.drain(0.3)
        completer.add(items[1], succeeded(None))
        assert completer.drain(30)


def test_outcome_that_meets_a_flush_is_retried(with_job: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush or a rolled-back cancel frees the row between the two statements that end the run."""
    started = with_job.begun()
    attempt = attempt_at(with_job, started)
    flushing = with_job.connection()
    flushing.execute("SELECT FROM job_runs WHERE run_id = %s FOR SHARE", [started.run_id])

    def end_after_the_flush(*given: Any, **named: Any) -> Ended:  # noqa: ANN401 - passed on
        flushing.rollback()
        return finish_runs(*given, **named)

    monkeypatch.setattr(record_outcomes, "finish_runs", end_after_the_flush)
    record(with_job, attempt, CANCELLED)
    assert with_job.final_state(started.run_id) == ("cancelled", None)


def test_superseded_outcome_is_dropped(with_job: Database) -> None:
    zombie = with_job.begun()
    attempt = attempt_at(with_job, zombie)
    with_job.requeue(zombie, AttemptOutcome.LOST)
    record(with_job, attempt, succeeded(None))
    assert with_job.open_run(zombie.run_id).state == "retrying"
    assert with_job.completions() == []


def test_unrecordable_outcome_fails_only_its_run(fresh_database: Database) -> None:
    """The constraint represents any fault that PostgreSQL may find in a row."""
    fresh_database.execute("ALTER TABLE attempts ADD CONSTRAINT poison CHECK (error_message <> 'poison')")
    fresh_database.submit()
    good, bad, other = (attempt_at(fresh_database, fresh_database.begun()) for _ in range(3))
    with completing(fresh_database) as completer:
        completer.add(good, succeeded(b"1"))
        completer.add(bad, failed("ValueError", "poison", permanent=True))
        completer.add(other, succeeded(b"2"))
        assert completer.drain(30)
    assert [fresh_database.final_state(one.run_id)[0] for one in (good, other)] == ["succeeded", "succeeded"]
    assert fresh_database.final_state(bad.run_id)[0] == "failed"
    assert fresh_database.attempts(bad.run_id) == [(1, "failed")]
    assert (
        fresh_database.value("SELECT error_type FROM ended_attempts WHERE outcome = 'failed'") == "UnrecordableOutcome"
    )


def test_outcome_that_cannot_be_stored_at_all_delays_no_other(fresh_database: Database) -> None:
    fresh_database.submit()
    bad, other, later = (attempt_at(fresh_database, fresh_database.begun()) for _ in range(3))
    forbid = sql.SQL("ALTER TABLE finished_runs ADD CONSTRAINT poison CHECK (run_id <> {})")
    fresh_database.execute(forbid.format(sql.Literal(bad.run_id)))
    with completing(fresh_database) as completer:
        succeed_all(completer, bad, other)
        until(lambda: completer.backlog() == 1, "the other is written")
        completer.add(later, succeeded(None))
        until(lambda: completer.backlog() == 1, "the later one is written")
        assert [fresh_database.final_state(one.run_id)[0] for one in (other, later)] == ["succeeded"] * 2
        fresh_database.execute("ALTER TABLE finished_runs DROP CONSTRAINT poison")
        assert completer.drain(30)
    assert fresh_database.job_runs() == []


def refused_alone(database: Database) -> tuple[Attempt, list[Attempt]]:
    """Begin attempts; PostgreSQL refuses the failure of the first, in a way that is no fault of its data."""
    database.submit(retry={"max_attempts": 1})
    bad, *others = [attempt_at(database, database.begun()) for _ in range(40)]
    database.execute("ALTER TABLE attempts RENAME COLUMN error_message TO elsewhere")
    return bad, others


def test_outcome_that_is_refused_alone_is_set_aside_and_recorded_later(fresh_database: Database) -> None:
    bad, others = refused_alone(fresh_database)
    with completing(fresh_database) as completer:
        completer.add(bad, failed("ValueError", "no"))
        succeed_all(completer, *others)
        until(lambda: completer.backlog() == 1, "the others are recorded")
        until(lambda: bad.key in completer._aside, "it is set aside")
        fresh_database.execute("ALTER TABLE attempts RENAME COLUMN elsewhere TO error_message")
        assert completer.drain(30)
        assert completer._aside == {}
    assert fresh_database.final_state(bad.run_id)[0] == "failed"
    assert {fresh_database.final_state(one.run_id)[0] for one in others} == {"succeeded"}


@pytest.mark.slow
def test_outcome_set_aside_is_counted_once_while_its_row_is_locked(fresh_database: Database) -> None:
    """Counted again and again, it would soon be a backlog above which nothing is claimed."""
    bad, others = refused_alone(fresh_database)
    holding = fresh_database.connection()
    with completing(fresh_database) as completer:
        completer.add(bad, failed("ValueError", "no"))
        succeed_all(completer, *others)
        until(lambda: bad.key in completer._aside, "it is set aside")
        holding.execute("SELECT FROM job_runs WHERE run_id = %s FOR UPDATE", [bad.run_id])
        fresh_database.execute("ALTER TABLE attempts RENAME COLUMN elsewhere TO error_message")
        assert not completer.drain(4.0)
        assert completer.backlog() == 1
        holding.rollback()
        assert completer.drain(30)
    assert fresh_database.final_state(bad.run_id)[0] == "failed"


def test_error_of_the_installation_loses_no_outcome(fresh_database: Database) -> None:
    fresh_database.submit()
    items = [attempt_at(fresh_database, fresh_database.begun()) for _ in range(20)]
    fresh_database.execute("ALTER TABLE finished_runs RENAME COLUMN lane TO elsewhere")
    with completing(fresh_database) as completer:
        succeed_all(completer, *items)
        assert not completer.drain(1.0)
        assert completer.backlog() == len(items)
        fresh_database.execute("ALTER TABLE finished_runs RENAME COLUMN elsewhere TO lane")
        assert completer.drain(30)
    assert {fresh_database.final_state(one.run_id) for one in items} == {("succeeded", None)}


def test_end_of_a_run_that_had_ended_is_counted_and_stops_no_other(
    fresh_database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    fresh_database.submit()
    again, other = (attempt_at(fresh_database, fresh_database.begun()) for _ in range(2))
    fresh_database.execute(
        "INSERT INTO finished_runs (run_id, job_id, tenant, job_version, shard, cause, queue, lane, scheduled_at,"
        " publish_at, created_at, finished_at, state, attempt) SELECT run_id, job_id, tenant, job_version, shard,"
        " cause, queue, lane, scheduled_at, publish_at, created_at, now(), 'cancelled', 0 FROM job_runs"
        " WHERE run_id = %s",
        [again.run_id],
    )
    with completing(fresh_database) as completer:
        succeed_all(completer, again, other)
        assert completer.drain(30)
    assert fresh_database.rows("SELECT state FROM finished_runs WHERE run_id = %s", [again.run_id]) == [("cancelled",)]
    assert fresh_database.final_state(other.run_id)[0] == "succeeded"
    assert fresh_database.job_runs() == []
    assert len(fresh_database.completions()) == 1
    assert "the first end stays" in caplog.text


@pytest.mark.parametrize("tables", [("attempt_outputs", "attempts"), ("finished_runs",)], ids=["attempt", "end"])
def test_outcome_creates_the_missing_partitions_of_its_attempt_or_its_end(
    with_job: Database, tables: Sequence[str]
) -> None:
    started = with_job.begun()
    attempt = attempt_at(with_job, started)
    day = day_of(started.started_at if len(tables) > 1 else with_job.now())
    for table in tables:
        with_job.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(f"{table}_{day:%Y%m%d}")))
    record(with_job, attempt, succeeded(b"1"))
    assert with_job.final_state(started.run_id) == ("succeeded", None)
    assert with_job.attempts(started.run_id) == [(1, "succeeded")]
    assert with_job.rows("SELECT result FROM attempt_outputs") == [(b"1",)]
    assert len(with_job.completions()) == 1


def test_progress_of_a_locked_run_is_saved_later(with_job: Database) -> None:
    held, over = with_job.begun(), with_job.begun()
    with_job.requeue(over, AttemptOutcome.LOST)
    holding = hold_row(with_job, held.run_id)
    with completing(with_job) as completer:
        progress = completer.progress
        for started in (held, over):
            progress.put((started.run_id, started.attempt), b'"half"', None)
        until(lambda: list(progress._unsaved) == [(held.run_id, 1)], "only that of the locked run is left")
        assert with_job.count("run_inputs") == 0
        holding.rollback()
        until(lambda: progress.seconds_until_save() is None, "it is saved")
    assert with_job.rows("SELECT run_id, progress FROM run_inputs") == [(held.run_id, b'"half"')]


def test_progress_that_is_refused_alone_stops_no_other_and_is_saved_later(fresh_database: Database) -> None:
    fresh_database.submit()
    bad, other, ended, later = (attempt_at(fresh_database, fresh_database.begun()) for _ in range(4))
    fresh_database.execute("ALTER TABLE run_inputs ADD CONSTRAINT poison CHECK (progress <> '\"poison\"'::bytea)")
    with completing(fresh_database) as completer:
        for attempt, progress in ((bad, b'"poison"'), (other, b'"half"'), (ended, b'"poison"')):
            completer.progress.put(attempt.key, progress, None)
        until(lambda: saved(fresh_database) == {other.run_id: b'"half"'}, "that of the other is saved")
        completer.add(ended, succeeded(None))
        completer.progress.put(later.key, b'"begun"', None)
        until(lambda: later.run_id in saved(fresh_database), "that of a later one is saved", seconds=12)
        assert completer.drain(30)
        assert fresh_database.final_state(ended.run_id)[0] == "succeeded"
        assert bad.run_id not in saved(fresh_database)
        fresh_database.execute("ALTER TABLE run_inputs DROP CONSTRAINT poison")
        until(lambda: saved(fresh_database).get(bad.run_id) == b'"poison"', "the refused one is saved")
        until(lambda: not completer.progress._unsaved, "nothing is kept")
        assert not completer.progress._aside._tries


def saved(database: Database) -> dict[UUID, bytes]:
    return {run: bytes(progress) for run, progress in database.rows("SELECT run_id, progress FROM run_inputs")}


def test_run_that_is_free_again_does_not_go_on_without_its_checkpoint(
    with_job: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is locked when its checkpoint is saved, and free when its attempt ends."""
    started = with_job.begun()
    attempt = attempt_at(with_job, started)
    holding = hold_row(with_job, started.run_id)

    def end_after_the_lock(*given: Any, **named: Any) -> record_outcomes.Recorded:  # noqa: ANN401 - passed on
        holding.rollback()
        return record_outcomes.record_outcomes(*given, **named)

    monkeypatch.setattr(completer_module, "record_outcomes", end_after_the_lock)
    with completing(with_job) as completer:
        completer.progress.put(attempt.key, None, b'"here"')
        completer.add(attempt, RELEASED)
        assert completer.drain(30)
    assert with_job.open_run(started.run_id).state == "queued"
    assert with_job.rows("SELECT run_id, checkpoint FROM run_inputs") == [(started.run_id, b'"here"')]


def note_writers(monkeypatch: pytest.MonkeyPatch, before: Callable[[str, dict[UUID, str]], None]) -> dict[UUID, str]:
    """Write two outcomes at a time; return the thread that wrote each, which calls `before` first."""
    writers: dict[UUID, str] = {}

    def noted(connection: Conn, installation: Installation, batch: Sequence[Item], *given: Any, **named: Any) -> Any:  # noqa: ANN401
        name = threading.current_thread().name
        before(name, writers)
        writers.update(dict.fromkeys([item[0].run_id for item in batch], name))
        return record_outcomes.record_outcomes(connection, installation, batch, *given, **named)

    monkeypatch.setattr(completer_module, "record_outcomes", noted)
    monkeypatch.setattr(completer_module, "_BATCH", 2)
    return writers


def test_second_writer_leaves_attempts_with_unsaved_progress(
    with_job: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkpoint is written before the end of its attempt, by the one thread that writes checkpoints."""
    items = [attempt_at(with_job, with_job.begun()) for _ in range(6)]
    told = items[2]  # of those that the second writer would take first

    def before(name: str, writers: dict[UUID, str]) -> None:
        if name == "completer" and not writers:
            until(
                lambda: completer._backlog_event.set() or "completer-2" in writers.values(),
                "the second writer has begun",
            )

    writers = note_writers(monkeypatch, before)
    with completing(with_job) as completer:
        completer._items.extend((attempt, RELEASED) for attempt in items)
        completer.progress.put(told.key, b'"half"', b'"here"')
        assert completer.drain(30)
    assert set(writers.values()) == {"completer", "completer-2"}
    assert writers[told.run_id] == "completer"
    assert {run.state for run in with_job.job_runs()} == {"queued"}
    assert with_job.rows("SELECT run_id, checkpoint FROM run_inputs") == [(told.run_id, b'"here"')]


@pytest.mark.parametrize("later", [False, True])
def test_second_writer_helps_until_little_is_left(
    with_job: Database,
    monkeypatch: pytest.MonkeyPatch,
    later: bool,  # noqa: FBT001 - whether all else comes only when the first is at it
) -> None:
    items = [(attempt_at(with_job, with_job.begun()), RELEASED) for _ in range(8)]
    busy, all_came = threading.Event(), threading.Event()

    def before(name: str, writers: dict[UUID, str]) -> None:
        if name == "completer" and not busy.is_set():
            busy.set()
            until(lambda: len(writers) == 6, "the second writer has written all that the first has not in hand")
        elif name == "completer-2":
            assert all_came.wait(30)

    writers = note_writers(monkeypatch, before)
    with completing(with_job) as completer:
        completer._items.extend(items[:2] if later else items)
        completer._wake.set()
        assert busy.wait(30)
        for item in items[2:] if later else []:
            completer.add(*item)
        all_came.set()
        assert completer.drain(30)
    assert sorted(writers.values()) == ["completer"] * 2 + ["completer-2"] * 6


def test_snooze_lasts_a_second_at_least(with_job: Database) -> None:
    """In a loop, a shorter one would keep PostgreSQL busy with one run."""
    before = with_job.now()
    snoozed = {delay: attempt_at(with_job, with_job.begun()) for delay in (0, -5, 0.05, 90)}
    with completing(with_job) as completer:
        for delay, attempt in snoozed.items():
            completer.add(attempt, from_exception(Snooze(delay)))
        assert completer.drain(30)
    for delay, attempt in snoozed.items():
        run = with_job.open_run(attempt.run_id)
        assert (run.state, run.failed_attempts) == ("queued", 0), delay
        assert run.publish_at >= before + timedelta(seconds=max(delay, 1)), delay

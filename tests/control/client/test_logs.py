"""Read runs' output: the stored bytes of each attempt, and the new bytes since the last read."""

from uuid import uuid4

import pytest

from tests.control.cli.command import json_output, tidewheel
from tests.fixtures.acts import EXECUTOR, ending
from tests.fixtures.database import Database
from tidewheel.control.client.client import Client
from tidewheel.errors import InvalidInput, UnknownRun
from tidewheel.nouns.runs.model import LogPiece
from tidewheel.postgres.statements import Statements
from tidewheel.runs import AttemptOutcome, RunState
from tidewheel.transitions.attempts import AttemptOutput, flush_outputs
from tidewheel.transitions.claim import Started

_READ_LOGS = Statements("tidewheel.control")["read_logs"]


def flush(database: Database, started: Started, output: bytes, written: int | None = None) -> None:
    """Let an attempt have written something; `output` is the last of it."""
    told = AttemptOutput(started.run_id, started.attempt, output, len(output) if written is None else written)
    assert database.within(flush_outputs, EXECUTOR, [told])


@pytest.fixture
def started(database: Database) -> Started:
    database.submit()
    return database.begun()


def test_output_of_each_attempt_is_returned_oldest_first(database: Database, client: Client, started: Started) -> None:
    flush(database, started, b"one\n")
    database.requeue(started, AttemptOutcome.FAILED)
    again = database.begin(started.run_id)
    flush(database, again, b"two\n", 1000)
    first, second = LogPiece(1, "failed", 0, b"one\n"), LogPiece(2, None, 996, b"two\n")
    assert client.runs.logs(started.run_id) == [first, second]
    assert client.runs.logs(started.run_id, 1) == [first]
    assert client.runs.logs(started.run_id, 2) == [second]


def test_unknown_run_or_attempt_is_refused(database: Database, client: Client, started: Started) -> None:
    with pytest.raises(UnknownRun):
        client.runs.logs(uuid4())
    with pytest.raises(UnknownRun):
        list(client.runs.follow_logs(uuid4()))
    with pytest.raises(InvalidInput, match="attempt"):
        client.runs.logs(started.run_id, 2)
    with Client(database.url, tenant="other") as stranger, pytest.raises(UnknownRun):
        stranger.runs.logs(started.run_id)


def test_follower_gets_each_byte_once_and_the_count_of_dropped_bytes(
    database: Database, client: Client, started: Started
) -> None:
    pieces = client.runs.follow_logs(started.run_id)
    flush(database, started, b"one\n")
    assert next(pieces) == LogPiece(1, None, 0, b"one\n")
    flush(database, started, b"one\ntwo\n")
    assert next(pieces) == LogPiece(1, None, 0, b"two\n")
    flush(database, started, b"three\n", 100)
    assert next(pieces) == LogPiece(1, None, 86, b"three\n")
    database.requeue(started, AttemptOutcome.FAILED)
    again = database.begin(started.run_id)
    flush(database, again, b"again\n")
    assert next(pieces) == LogPiece(2, None, 0, b"again\n")
    database.end(ending(again, RunState.SUCCEEDED, output=b"again\nend\n", output_bytes=10))
    assert list(pieces) == [LogPiece(2, "succeeded", 0, b"end\n")]


def test_only_what_an_attempt_has_written_since_is_read(database: Database, started: Started) -> None:
    flush(database, started, b"x" * 60_000 + b"new\n", 100_004)
    columns = {"tenant": "default", "run_id": started.run_id, "attempt": 1, "read_attempt": 1, "limit": 20}
    for read, output in ((100_000, b"new\n"), (100_003, b"\n"), (100_004, None), (2**62, None)):
        [row] = database.rows(_READ_LOGS, columns | {"read_bytes": read})
        assert row[-1] == output, read
    [row] = database.rows(_READ_LOGS, columns | {"read_bytes": 10})
    assert len(row[-1]) == 60_004


def test_follower_of_one_attempt_ends_with_it(database: Database, client: Client, started: Started) -> None:
    flush(database, started, b"one\n")
    database.requeue(started, AttemptOutcome.FAILED)
    database.begin(started.run_id)
    assert list(client.runs.follow_logs(started.run_id, 1)) == [LogPiece(1, "failed", 0, b"one\n")]


def test_many_attempts_are_read_page_by_page(database: Database, client: Client, started: Started) -> None:
    for _ in range(44):
        flush(database, started, b"x")
        database.requeue(started, AttemptOutcome.SNOOZED)
        started = database.begin(started.run_id)
    database.succeed(started)
    assert [piece.attempt for piece in client.runs.logs(started.run_id)] == list(range(1, 45))
    assert len(list(client.runs.follow_logs(started.run_id))) == 44


def test_command_prints_only_the_output_to_standard_output(database: Database, started: Started) -> None:
    flush(database, started, "eins\nä".encode(), 100)
    done = tidewheel(database, "run", "logs", started.run_id)
    assert (done.code, done.out) == (0, "eins\nä")
    assert done.err == "-- attempt 1\n-- 93 earlier bytes are no longer stored\n"
    flushed = json_output(database, "run", "logs", started.run_id)
    assert flushed == {
        "run_id": str(started.run_id),
        "attempts": [{"attempt": 1, "outcome": None, "dropped_bytes": 93, "output": "eins\nä"}],
    }


def test_the_command_follows_to_the_end(database: Database, started: Started) -> None:
    flush(database, started, b"one\n")
    database.succeed(started)
    done = tidewheel(database, "run", "logs", started.run_id, "--follow")
    assert (done.code, done.out, done.err) == (0, "one\n", "-- attempt 1, succeeded\n")
    line = {"attempt": 1, "outcome": "succeeded", "dropped_bytes": 0, "output": "one\n"}
    assert json_output(database, "run", "logs", started.run_id, "--follow") == line


def test_run_without_output_has_no_logs(database: Database, client: Client, started: Started) -> None:
    assert client.runs.logs(started.run_id) == []
    done = tidewheel(database, "run", "logs", started.run_id)
    assert (done.code, done.out) == (0, "")
    assert done.err == f"no output of run {started.run_id} is stored\n"
    assert tidewheel(database, "run", "logs", started.run_id, "--attempt", "7").refusals == [
        "attempt: there is no attempt 7; the newest is 1; leave it out to read all attempts"
    ]

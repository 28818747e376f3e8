"""Applications that complete runs in their own transactions: a table of effects, and a process
that dies between any two statements."""

import os
import signal
from typing import Any, LiteralString
from uuid import UUID

import psycopg
from psycopg.abc import PQGen
from psycopg.rows import TupleRow

from tests.fixtures.acts import EXECUTOR
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tidewheel.executor.complete_in import Completion, CompletionConfig
from tidewheel.transitions.claim import Started
from tidewheel.transitions.installation import Installation

MAKE_EFFECTS: LiteralString = """
CREATE TABLE effects (run_id uuid NOT NULL, attempt integer NOT NULL); GRANT ALL ON effects TO tidewheel_application
"""
EFFECT: LiteralString = "INSERT INTO effects VALUES (%s, %s)"
DYING = "dying"
LIVING: LiteralString = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s
"""

Own = psycopg.Connection[TupleRow]


def completion(database: Database, started: Started, executor_id: UUID = EXECUTOR) -> Completion:
    return Completion(CompletionConfig(database.installation, executor_id), started.run_id, started.attempt)


def work(own: psycopg.Connection[Any], done: Completion, result: object = None) -> None:
    """An effect and the completion, in one transaction that is not committed yet."""
    own.execute(EFFECT, [done.run_id, done.attempt])
    done.complete_in(own, result)


def effects(database: Database, run_id: UUID) -> int:
    return database.value("SELECT count(*) FROM effects WHERE run_id = %s", [run_id])


def one_or_none(database: Database, run_id: UUID) -> bool:
    """Return True if effect and completion exist; fail if only one of them does."""
    there = effects(database, run_id)
    ended = database.final_state(run_id) == ("succeeded", None)
    events = database.value("SELECT count(*) FROM outbox WHERE topic = %s", [database.installation.topics.completions])
    succeeded = "SELECT count(*) FROM ended_attempts WHERE run_id = %s AND outcome = 'succeeded'"
    attempts = database.value(succeeded, [run_id])
    assert (there, events, attempts) == ((1, 1, 1) if ended else (0, 0, 0))
    return ended


def wait_gone(database: Database) -> None:
    """Wait until the server has noticed that the dead process is gone."""
    until(
        lambda: not database.value(LIVING, [DYING]),
        "the server has let go",
    )


def die_at(step: int, url: str, installation: Installation, started: Started) -> None:
    """Run the work in this process, which is killed before or after one of its statements."""
    left = [step]
    wait = psycopg.Connection[Any].wait

    def counted(self: psycopg.Connection[Any], gen: PQGen[Any], *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
        _count_down(left)
        answer = wait(self, gen, *arguments, **named)
        _count_down(left)
        return answer

    done = Completion(CompletionConfig(installation, EXECUTOR), started.run_id, started.attempt)
    with psycopg.connect(url, application_name=DYING) as own:
        psycopg.Connection.wait = counted  # type: ignore[method-assign]  # in a process that is made to die
        work(own, done, {"step": step})
        own.commit()
        os._exit(0)


def lose_commit(own: Own) -> None:
    own.pgconn.send_query(b"COMMIT")
    own.pgconn.flush()
    own.pgconn.finish()


def _count_down(left: list[int]) -> None:
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)

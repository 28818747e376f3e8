"""Rotations of the keys of task tokens, which lose nothing in flight."""

from typing import LiteralString

import pytest

from tests.control.cli.command import tidewheel
from tests.fixtures.database import Database
from tests.intake.waiting import waiting
from tidewheel import task_token_keys
from tidewheel.control.cli.admin import rotate_task_tokens
from tidewheel.control.client.client import Client
from tidewheel.errors import Refused, SettingsError
from tidewheel.runs import RunState
from tidewheel.task_tokens import TaskTokens, task_token

AGE: LiteralString = """
UPDATE task_token_keys SET created_at = created_at - interval '61 seconds';
UPDATE job_runs SET started_at = started_at - interval '61 seconds'
"""


def rotated(database: Database, *, revoke: bool = False) -> TaskTokens:
    """Rotate the keys; return what a process reads next."""
    database.within(rotate_task_tokens, revoke=revoke)
    return read(database)


def read(database: Database) -> TaskTokens:
    tokens = TaskTokens()
    with database.transaction() as connection:
        task_token_keys.refresh(tokens, connection)
    return tokens


def test_token_of_before_a_rotation_ends_its_attempt_and_the_next_rotation_waits_for_it(
    fresh_database: Database,
) -> None:
    database = fresh_database
    database.submit()
    started = waiting(database)
    token = database.installation.task_tokens.sign(started.run_id, started.attempt)
    database.execute("UPDATE task_token_keys SET created_at = tidewheel_now()")
    with pytest.raises(SettingsError, match="rotate again in"):
        rotated(database)
    database.execute(AGE)
    after = rotated(database)
    assert after.read(token) == (started.run_id, started.attempt)
    assert after.sign(started.run_id, started.attempt) == token, "the new key signs once all processes know it"
    database.execute(AGE)
    signing = read(database)
    assert signing.sign(started.run_id, started.attempt) != token
    assert signing.read(token) == (started.run_id, started.attempt)
    with pytest.raises(SettingsError, match="1 open attempts may have a task token of the key"):
        rotated(database)
    assert database.client.task_tokens.complete(token) is RunState.SUCCEEDED
    assert rotated(database).read(token) is None


def test_revocation_ends_every_older_token_at_once(fresh_database: Database) -> None:
    fresh_database.submit()
    started = waiting(fresh_database)
    token = fresh_database.installation.task_tokens.sign(started.run_id, started.attempt)
    now = rotated(fresh_database, revoke=True)
    assert now.read(token) is None
    assert now.read(now.sign(started.run_id, started.attempt)) == (started.run_id, started.attempt)
    with Client(fresh_database.url) as client, pytest.raises(Refused, match="not a task token"):
        client.task_tokens.complete(token)


def test_rotation_takes_the_key_of_an_upgraded_database_from_applications(fresh_database: Database) -> None:
    """0.1.0 has it in `settings`, which every role reads; its services need a value there to start."""
    upgraded: LiteralString = """
    UPDATE settings SET value = (SELECT to_jsonb(encode(secret, 'hex')) FROM task_token_keys)
     WHERE name = 'task_token_key'
    """
    readable = "SELECT value #>> '{}' FROM settings WHERE name = 'task_token_key'"
    fresh_database.execute(upgraded)
    fresh_database.submit()
    started = waiting(fresh_database)

    def forged() -> str:
        return task_token(bytes.fromhex(str(fresh_database.value(readable))), started.run_id, started.attempt)

    assert read(fresh_database).read(forged()) is not None
    fresh_database.execute(AGE)
    tokens = rotated(fresh_database)
    assert tokens.read(forged()) is None
    assert len(str(fresh_database.value(readable))) == 64


def test_command_rotates_each_secret_and_names_those_that_there_are(fresh_database: Database) -> None:
    url = fresh_database.url
    for name in ("task-tokens", "run-messages"):
        done = tidewheel(url, "admin", "secrets", "rotate", name, "--revoke")
        assert done.lines == ["added key 2, which signs at once; all other keys are deleted"]
        [refusal] = tidewheel(url, "admin", "secrets", "rotate", name).refusals
        assert "rotate again in" in refusal
    assert tidewheel(url, "admin", "secrets", "rotate", "cookies").refusal.endswith("write run-messages or task-tokens")
    actions = fresh_database.rows("SELECT action, object FROM audit_log ORDER BY at, id")
    assert actions == [("secret.rotate", "secret/task-tokens/2"), ("secret.rotate", "secret/run-messages/2")]

"""Batches of messages, and the two members of a service that apply them."""

import json
import logging
from typing import LiteralString
from uuid import UUID

import pytest

from tests.control.client.test_dead_letters import redrive
from tests.fixtures.acts import about, submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.intake.running import Requests
from tests.intake.test_consume import WAITING
from tests.intake.waiting import token_of, waiting
from tests.relay.topics import delete_topic
from tests.transitions.stepping import in_background
from tidewheel.control.client.client import Client
from tidewheel.errors import UndecodableMessage, Unusable
from tidewheel.ids import RunId
from tidewheel.intake.batch import read_target_reply
from tidewheel.intake.service import Intake
from tidewheel.local.stack import StackInfo
from tidewheel.process.health import health
from tidewheel.process.service import Shutdown
from tidewheel.schemas.generated.records import RunCompleted
from tidewheel.settings.services import IntakeSettings
from tidewheel.task_tokens import TaskTokens, task_token

KEY = b"of this installation"
TOKEN = task_token(KEY, RunId(UUID(int=1)), 1)


@pytest.fixture
def requests(database: Database, info: StackInfo) -> Requests:
    database.submit()
    return Requests(database, info.kafka)


def read(requests: Requests, value: bytes | None, *, key: bytes | None = None, **headers: str) -> None:
    requests.until_read(requests.reply(value, key=key, **headers), topic=requests.topics.target_replies)


def results(requests: Requests) -> list[bytes | None]:
    found = requests.database.messages(requests.topics.completions, RunCompleted)
    return sorted((event.result for event in found), key=str)


def buried(requests: Requests) -> list[tuple[object, ...]]:
    found = requests.database.rows('SELECT topic, partition, "offset", key, value, reason FROM dead_letters')
    return [tuple(row) for row in found]


@pytest.mark.kafka
def test_duplicate_or_late_target_reply_changes_and_blocks_nothing(
    requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    database = requests.database
    first, second = waiting(database), waiting(database)
    with caplog.at_level(logging.INFO, "tidewheel.intake"), requests.running():
        for value in (b"1", b"2"):
            read(requests, value, task_token=token_of(database, first))
        read(requests, b"3", task_token=token_of(database, second))
        until(lambda: "a target's reply is ignored" in caplog.text, "it is told")
    assert results(requests) == [b"1", b"3"]
    assert buried(requests) == []


@pytest.mark.kafka
def test_invalid_target_reply_is_dead_lettered_unchanged(requests: Requests) -> None:
    database = requests.database
    started = waiting(database)
    token = token_of(database, started)
    forged = task_token(b"another installation", started.run_id, 1)
    with requests.running():
        read(requests, b"{}", key=b"none")
        read(requests, b"{}", key=b"forged", task_token=forged)
        read(requests, b'{"rows": ', key=b"broken", task_token=token)
        read(requests, b"{}", key=b"odd", task_token=token, status="perhaps")
        assert database.open_run(started.run_id).state == "waiting"
        read(requests, None, task_token=token)
    assert database.final_state(started.run_id)[0] == "succeeded"
    letters = {row[3]: row for row in buried(requests)}
    assert {key: row[4] for key, row in letters.items()} == {
        b"none": b"{}", b"forged": b"{}", b"broken": b'{"rows": ', b"odd": b"{}",
    }  # fmt: skip
    assert {row[0] for row in letters.values()} == {requests.topics.target_replies}
    said = database.rows("SELECT key, headers FROM outbox WHERE topic = %s", [requests.topics.dead_letters])
    assert {key for key, _ in said} == set(letters)


@pytest.mark.kafka
def test_requests_and_target_replies_in_one_batch_are_applied(requests: Requests) -> None:
    database = requests.database
    started = waiting(database)
    reply = requests.reply(b"1", task_token=token_of(database, started))
    [asked] = requests.send(submission("other"))
    with requests.running():
        requests.until_read(reply, topic=requests.topics.target_replies)
        requests.until_read(asked)
    assert database.final_state(started.run_id)[0] == "succeeded"
    assert database.count("jobs") == 2


@pytest.mark.kafka
def test_redriven_target_reply_ends_its_run(fresh_database: Database, info: StackInfo) -> None:
    """A constraint is the fault, and is removed."""
    database = fresh_database
    database.submit()
    started = waiting(database)
    database.execute("ALTER TABLE attempts ADD CONSTRAINT poison CHECK (error_type <> 'NoPaper')")
    requests = Requests(database, info.kafka)
    headers = {"task_token": token_of(database, started), "status": "failed", "error_type": "NoPaper"}
    with requests.running():
        read(requests, b"empty", key=b"k", **headers)
        [(*_, reason)] = buried(requests)
        assert str(reason).startswith("the request could not be applied")
        told = database.rows("SELECT headers FROM outbox WHERE topic = %s", [requests.topics.dead_letters])
        assert headers["task_token"].encode() not in told[0][0]
        database.execute("ALTER TABLE attempts DROP CONSTRAINT poison")
        with Client(database.url) as client:
            assert redrive(client, fresh_database, kind="message").done_count == 1
        [(key, value, parts)] = database.rows(
            "SELECT key, value, headers FROM outbox WHERE topic = %s", [requests.topics.target_replies]
        )
        names = ("tidewheel-task-token", "tidewheel-status", "tidewheel-error-type")
        sent = [part.encode() for pair in zip(names, headers.values(), strict=True) for part in pair]
        assert (key, value, parts) == (b"k", b"empty", sent)
        read(requests, value, key=key, **headers)  # as the relay does
    assert database.open_run(started.run_id).state == "retrying"


def test_too_large_target_reply_fails_permanently() -> None:
    big = json.dumps("x" * 65_536).encode()
    request = read_target_reply([("tidewheel-task-token", TOKEN.encode())], big, TaskTokens([KEY]))
    assert (request.status, request.error_type, request.permanent) == ("failed", "ResultTooLarge", True)
    assert request.result is None


@pytest.mark.parametrize(("value", "result"), [(None, None), (b"", None), (b"null", b"null"), (b" [1, 2]\n", b"[1,2]")])
def test_target_replys_value_is_stored_as_compact_json(value: bytes | None, result: bytes | None) -> None:
    request = read_target_reply({"Tidewheel-Task-Token": TOKEN}, value, TaskTokens([KEY]))
    assert (request.status, request.result) == ("succeeded", result)


def test_error_texts_of_a_target_reply_are_cut_and_storable() -> None:
    headers = [("tidewheel-task-token", TOKEN.encode()), ("tidewheel-status", b"failed")]
    request = read_target_reply(headers, b"\x00\xff\x1b" + "ü".encode() * 5000, TaskTokens([KEY]))
    message = request.error_message or ""
    assert message.startswith(" \ufffd ü")
    assert len(message) == 4096
    assert request.error_type is None


@pytest.mark.parametrize(
    "value", [b"nope", b'{"a": 1, "a": 2}', b"NaN", b"\xff", b"[" * 5000, b'"\\ud800"', b'{"a": "\\u0000"}']
)
def test_target_reply_with_unstorable_json_is_undecodable(value: bytes) -> None:
    with pytest.raises(UndecodableMessage):
        read_target_reply([("tidewheel-task-token", TOKEN.encode())], value, TaskTokens([KEY]))


@pytest.mark.parametrize("error_type", [b"", b"x" * 300, b"a\nb", b"\xff\x00"])
def test_target_reply_with_an_invalid_error_type_is_undecodable(error_type: bytes) -> None:
    given = {"tidewheel-task-token": TOKEN.encode(), "tidewheel-status": b"failed", "tidewheel-error-type": error_type}
    with pytest.raises(UndecodableMessage, match="error_type"):
        read_target_reply(list(given.items()), b"", TaskTokens([KEY]))


_SECONDS = 30.0
# Alike: the partitions of the replies, which another group reads, are not dealt out together with theirs.
SHARES: LiteralString = "SELECT count(*) FROM intake_offsets WHERE topic LIKE '%.requests' GROUP BY owner"
STANDS: LiteralString = "SELECT owner, epoch FROM intake_offsets WHERE topic LIKE '%.requests' AND partition = 1"
THEFT: LiteralString = "UPDATE intake_offsets SET epoch = epoch + 1 WHERE topic LIKE '%%.requests' AND owner = %s"


def intake(requests: Requests, stop: Shutdown) -> Intake:
    kafka = dict(requests.kafka)
    return Intake(IntakeSettings.load(), requests.database.url, kafka, requests.installation, stop)


@pytest.mark.kafka
def test_failed_member_ends_the_process_with_a_reason(database: Database, info: StackInfo) -> None:
    requests = Requests(database, info.kafka)
    with requests.running():
        requests.until_read(requests.send(submission())[0])
    database.execute("UPDATE intake_offsets SET topic_id = 'another life'")
    with pytest.raises(Unusable, match="deleted and created again"):
        in_background(intake(requests, Shutdown()).run).result(_SECONDS)


@pytest.mark.kafka
def test_member_that_lost_its_partitions_rejoins_and_duplicates_nothing(
    database: Database, info: StackInfo, caplog: pytest.LogCaptureFixture
) -> None:
    """A member that lost its partition must not write the batch; the next owner must.

    It is logged as a rebalance, not as an error that ends later.
    """
    caplog.set_level(logging.INFO)
    requests, stop = Requests(database, info.kafka, partitions=4), Shutdown()
    ended = in_background(intake(requests, stop).run)
    requests.until_read(requests.send(submission())[0])
    for thefts in range(1, 3):
        until(lambda: database.rows(SHARES) == [(2,), (2,)], "the partitions are shared")
        [(owner, epoch)] = database.rows(STANDS)
        taking = database.connection()
        assert taking.execute(THEFT, [owner]).rowcount == 2
        sent = {
            partition: requests.send(*(about("job.trigger") for _ in range(20)), partition=partition)[-1]
            for partition in range(requests.partitions)
        }
        until(lambda: database.value(WAITING), "its batch waits for the row")
        taking.commit()
        for partition, offset in sent.items():
            requests.until_read(offset, partition)
        assert len(database.job_runs()) == database.count("runs") == thefts * 80
        assert database.rows(STANDS)[0][1] > epoch + 1, "it was applied under an assignment after the theft"
    stop.request()
    ended.result(_SECONDS)
    told = [(record.levelno, record.getMessage()) for record in caplog.records if record.name == "tidewheel.intake"]
    name = f"intake of {requests.topics.requests}, member "
    rejoined = "rejoins its group: another intake has acquired"
    moved = [level for level, line in told if line.startswith(name) and rejoined in line]
    assert len(moved) >= 2
    assert set(moved) == {logging.INFO}
    assert "works again" not in caplog.text


@pytest.mark.kafka
def test_member_without_its_topic_is_named_and_others_continue(
    database: Database, info: StackInfo, caplog: pytest.LogCaptureFixture
) -> None:
    requests, stop = Requests(database, info.kafka), Shutdown()
    replies = requests.topics.target_replies
    delete_topic(info.kafka, replies)
    ended = in_background(intake(requests, stop).run)
    requests.until_read(requests.send(submission())[0])
    name = f"intake of {replies}, member 1"
    until(
        lambda: any(line.startswith(f"{name}: {replies} cannot be described") for line in health.not_ready()), "it says"
    )
    until(lambda: f"{name}: {replies} cannot be described" in caplog.text, "it logs it, too")
    assert not [line for line in health.not_ready() if requests.topics.requests in line]
    stop.request()
    ended.result(_SECONDS)

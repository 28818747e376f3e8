"""One intake process has two members with partitions of their own; they end together."""

import logging
from typing import LiteralString

import pytest

from tests.fixtures.acts import about, submission
from tests.fixtures.database import Database
from tests.fixtures.services import until
from tests.intake.running import Requests
from tests.intake.test_consume import WAITING
from tests.relay.topics import delete_topic
from tests.transitions.stepping import in_background
from tidewheel.errors import Unusable
from tidewheel.intake.service import MEMBERS, Intake
from tidewheel.local.stack import StackInfo
from tidewheel.process.health import health
from tidewheel.process.service import Shutdown
from tidewheel.settings.services import IntakeSettings

pytestmark = pytest.mark.kafka

_SECONDS = 30.0
# Alike: the partitions of the replies, which another group reads, are not dealt out together with theirs.
SHARES: LiteralString = "SELECT count(*) FROM intake_offsets WHERE topic LIKE '%.requests' GROUP BY owner"
STANDS: LiteralString = "SELECT owner, epoch FROM intake_offsets WHERE topic LIKE '%.requests' AND partition = 1"
THEFT: LiteralString = "UPDATE intake_offsets SET epoch = epoch + 1 WHERE topic LIKE '%%.requests' AND owner = %s"


def intake(requests: Requests, stop: Shutdown) -> Intake:
    kafka = dict(requests.kafka)
    return Intake(IntakeSettings.load(), requests.database.url, kafka, requests.installation, stop)


def test_both_members_apply_each_request_once_during_a_rebalance(database: Database, info: StackInfo) -> None:
    """A trigger that is applied twice would be two runs, during the rebalance too."""
    requests, stop = Requests(database, info.kafka, partitions=4), Shutdown()
    ended = in_background(intake(requests, stop).run)
    [made] = requests.send(submission())
    requests.until_read(made)
    sent: dict[int, int] = {}
    for _ in range(2):
        for partition in range(requests.partitions):
            sent[partition] = requests.send(*(about("job.trigger") for _ in range(20)), partition=partition)[-1]
        until(lambda: owners(database) == MEMBERS, "the partitions are shared")
    for partition, offset in sent.items():
        requests.until_read(offset, partition)
    stop.request()
    ended.result(_SECONDS)
    assert len(database.job_runs()) == database.count("runs") == 160
    assert database.rows(SHARES) == [(2,), (2,)]


def test_failed_member_ends_the_process_with_a_reason(database: Database, info: StackInfo) -> None:
    requests = Requests(database, info.kafka)
    with requests.running():
        requests.until_read(requests.send(submission())[0])
    database.execute("UPDATE intake_offsets SET topic_id = 'another life'")
    with pytest.raises(Unusable, match="deleted and created again"):
        in_background(intake(requests, Shutdown()).run).result(_SECONDS)


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
    rejoined = "joins its group again: another intake has acquired"
    moved = [level for level, line in told if line.startswith(name) and rejoined in line]
    assert len(moved) >= 2
    assert set(moved) == {logging.INFO}
    assert "works again" not in caplog.text


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
    assert f"{name}: {replies} cannot be described" in caplog.text
    assert not [line for line in health.not_ready() if requests.topics.requests in line]
    stop.request()
    ended.result(_SECONDS)


def owners(database: Database) -> int:
    return database.value("SELECT count(DISTINCT owner) FROM intake_offsets WHERE topic LIKE '%.requests'")

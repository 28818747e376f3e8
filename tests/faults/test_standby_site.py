"""A site is lost, and another one raised from its mirrored topics: two databases and two brokers.

The verdict comes from what handlers recorded at both sites. The mirror copies messages of the two topics, as any
replication between clusters does, and ends some time before the site: what follows is the loss window.
"""

import json
import threading
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import LiteralString

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import (
    AlterConfigOpType,  # type: ignore[attr-defined]
    ConfigEntry,  # type: ignore[attr-defined]
    ConfigResource,  # type: ignore[attr-defined]
    ResourceType,  # type: ignore[attr-defined]
)

from tests.faults.own_server import fleet_on
from tests.fixtures.database import Database
from tests.fixtures.services import PATIENCE_SECONDS, Fleet, admin_of, make_fleet, until
from tidewheel.control.standby import raising, recording
from tidewheel.control.standby.raising import raise_site
from tidewheel.control.standby.state import Recording, read_recording
from tidewheel.errors import SettingsError
from tidewheel.kafka.topics import Topics, create_standby_topics, setting_deviations, topic_statuses
from tidewheel.local.stack import LocalStack, StackInfo
from tidewheel.postgres.session import connect

pytestmark = [pytest.mark.postgres, pytest.mark.kafka, pytest.mark.slow]

_SECOND = timedelta(seconds=1)
_JOBS: tuple[dict[str, object], ...] = (
    {"key": "tick", "schedule": {"interval": "1s"}, "target": "note", "overlap": "allow_all", "catch_up": "fire_all"},
    {"key": "chain", "schedule": {"fixed_delay": "1s"}, "target": "note-sync"},
    {"key": "once-only", "schedule": {"interval": "1s"}, "target": "note", "delivery": "at_most_once"},
    {"key": "resting", "schedule": {"interval": "1s"}, "target": "note", "paused": True},
    {"key": "errand", "schedule": "manual", "target": "note"},
    {"key": "shaky", "schedule": "manual", "target": "shaky", "retry": {"backoff": "fixed", "initial": "1s"}},
)
# By labels or a prefix it waits for transactions that may have missed it.
_FREEZE: LiteralString = (
    "INSERT INTO freezes (tenant, key_prefix, settles_at) VALUES ('default', 'none/', '9999999999')"
)


@dataclass(frozen=True)
class Effect:
    """An effect, as its handler recorded it."""

    run_id: str
    attempt: int
    job_key: str
    scheduled_at: datetime
    at: datetime


def effects(fleet: Fleet) -> list[Effect]:
    """Return the effects at a site so far."""
    lines = fleet.effects.read_text().splitlines() if fleet.effects.exists() else []
    return [
        Effect(
            row["run_id"],
            row["attempt"],
            row["job_key"],
            datetime.fromisoformat(row["scheduled_at"]),
            datetime.fromtimestamp(row["at"], UTC),
        )
        for row in map(json.loads, lines)
    ]


class Mirror:
    """Copies the two topics of a site to another broker, until it is cut."""

    def __init__(self, source: StackInfo, target: StackInfo, topics: Topics) -> None:
        self._names = [topics.jobs, topics.run_states]
        create_standby_topics(target.kafka, topics)
        self._consumer = Consumer({**source.kafka, "group.id": "mirror", "enable.auto.commit": False})
        self._consumer.assign([TopicPartition(name, 0, 0) for name in self._names])
        self._producer = Producer({**target.kafka, "enable.idempotence": True})
        self._cut = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """Cut the line: what comes later never arrives."""
        self._cut.set()
        self._thread.join(PATIENCE_SECONDS)
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        self._consumer.close()

    def _run(self) -> None:
        while not self._cut.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                key, value, headers = message.key(), message.value(), message.headers()
                self._producer.produce(message.topic() or "", value, key, headers=headers)
                self._producer.poll(0)


def set_cleanup(info: StackInfo, topics: Topics, policy: str) -> None:
    """Set the cleanup policy of the topic of jobs, and wait until the broker shows it."""
    entry = ConfigEntry("cleanup.policy", policy, incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topics.jobs, incremental_configs=[entry])
    admin = admin_of(info.kafka)  # kept until the result: its end would abort the request
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)

    def is_shown() -> bool:
        statuses = topic_statuses(dict(info.kafka), topics)
        wrong = {(each.topic, each.setting) for each in setting_deviations(dict(info.kafka), statuses, replication=1)}
        return ((topics.jobs, "cleanup.policy") in wrong) == (policy != "compact")

    until(is_shown, "the broker shows it")


@contextmanager
def other_site(folder: Path) -> Generator[tuple[LocalStack, Fleet]]:
    """A site with servers of its own."""
    local = LocalStack(folder / "servers", lasting=False)
    local.up()
    try:
        with fleet_on(local, folder) as fleet:
            yield local, fleet
    finally:
        local.down(erase=True)


def test_a_site_is_raised_from_mirrored_topics_and_goes_on(
    info: StackInfo, fresh_database: Database, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    lost = make_fleet(fresh_database, info.kafka, tmp_path / "a")
    with other_site(tmp_path / "b") as (servers, raised):
        try:
            _lose_and_raise(lost, raised, info, servers.up())
        finally:
            lost.close()


def _lose_and_raise(lost: Fleet, raised: Fleet, here: StackInfo, there: StackInfo) -> None:
    lost.start_all()
    for job in _JOBS:
        lost.ask({"type": "job.submit", "job": job})
    gate = lost.folder / "gate"
    lost.ask(
        {"type": "job.submit", "job": {"key": "gated", "schedule": "manual", "target": "gated", "payload": str(gate)}}
    )
    lost.ask({"type": "job.trigger", "key": "gated"})
    lost.flush()
    lost.until(lambda: any(each.job_key == "gated" for each in effects(lost)), "the held run has begun")

    lost.database.execute(_FREEZE)
    create_standby_topics(here.kafka, lost.topics)
    mirror = Mirror(here, there, lost.topics)
    with connect(lost.database.url, "test", autocommit=True) as connection:
        recording.enable(connection, lost.topics)
    lost.until(lambda: _state(lost).complete_at, "the topics hold a complete state")
    for number in range(20):
        lost.ask({"type": "job.trigger", "key": "errand", "payload": {"number": number}})
    lost.ask({"type": "job.trigger", "key": "shaky"})
    lost.ask({"type": "job.trigger", "key": "errand", "delay": "40s"})
    lost.ask({"type": "job.submit", "job": {**_JOBS[4], "description": "a second version"}})
    lost.flush()
    lost.until(lambda: len([e for e in effects(lost) if e.job_key == "errand"]) >= 20, "the triggers have run")
    since = lost.database.now()
    lost.until(lambda: (_state(lost).complete_at or since) > since + 2 * _SECOND, "a later state is complete")

    mirror.cut()
    cut_at = lost.database.now()
    lost.until(lambda: any(e.job_key == "tick" and e.at > cut_at + 2 * _SECOND for e in effects(lost)), "it goes on")
    lost.kill()
    died_at = lost.database.now()

    with connect(raised.database.url, "test", autocommit=True) as connection:
        with pytest.raises(SettingsError, match=r"nowhere\.jobs has 0 partitions"):
            raise_site(connection, there.kafka, Topics("nowhere"))
        set_cleanup(there, lost.topics, "delete")
        with pytest.raises(SettingsError, match=r"cleanup\.policy of .*jobs is delete instead of compact; mirror"):
            raise_site(connection, there.kafka, lost.topics)
        set_cleanup(there, lost.topics, "compact")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(raising, "COMPACTION_LAG", timedelta())
            with pytest.raises(SettingsError, match=r"the mirror was .* behind"):
                raise_site(connection, there.kafka, lost.topics)
        report = raise_site(connection, there.kafka, lost.topics)
        assert raise_site(connection, there.kafka, lost.topics).repeated
    with (
        connect(lost.database.url, "test", autocommit=True) as connection,
        pytest.raises(SettingsError, match="already has jobs"),
    ):
        raise_site(connection, there.kafka, lost.topics)
    assert report.as_of <= cut_at
    assert report.until >= died_at
    assert report.paused_jobs == ["default/once-only"]
    assert (report.gaps, report.unchecked) == ([], False)
    assert raised.database.value("SELECT value FROM settings WHERE name = 'epoch'") == 1
    for statement in (
        "SELECT job_id, key, version, shard, tenant FROM jobs ORDER BY 1",
        "SELECT tenant FROM tenants",
    ):
        assert raised.database.rows(statement) == lost.database.rows(statement)

    assert raised.database.value("SELECT settles_at FROM freezes") is None, "transactions are those of a server"

    raised.start_all()
    gate.touch()
    seen_at = raised.database.now()
    raised.until(lambda: any(e.job_key == "tick" and e.scheduled_at > seen_at for e in effects(raised)), "it fires")
    raised.until(lambda: any(e.job_key == "chain" and e.at > seen_at for e in effects(raised)), "the chain goes on")
    raised.until(lambda: len([e for e in effects(raised) if e.job_key == "errand"]) >= 1, "the delayed trigger has run")
    owned = "SELECT NOT EXISTS (SELECT FROM job_runs WHERE created_at < %s)"
    raised.until(lambda: raised.database.value(owned, [report.until]), "the open runs of the lost site have ended")
    raised.kill()
    _judge(effects(lost), effects(raised), report.as_of)


def _state(fleet: Fleet) -> Recording:
    with fleet.database.transaction() as connection:
        found = read_recording(connection)
    assert found is not None
    return found


def _judge(lost: list[Effect], raised: list[Effect], as_of: datetime) -> None:
    """Compare the effects at both sites."""
    by_run: dict[str, list[tuple[str, Effect]]] = defaultdict(list)
    for site, found in (("lost", lost), ("raised", raised)):
        for effect in found:
            by_run[effect.run_id].append((site, effect))
    both = {run: found for run, found in by_run.items() if len({site for site, _ in found}) == 2}
    for run, found in both.items():
        # Twice only if the run was open in the last state, or is of the loss window. A second is for its commit.
        last = max(effect.at for site, effect in found if site == "lost")
        key = found[0][1].job_key
        assert key in {"gated", "shaky"} or last > as_of - _SECOND, f"{key} {run} ran at both sites; as of {as_of}"
        assert key != "once-only", f"{run} began twice"
    ticks = sorted(
        {
            effect.scheduled_at
            for _, effect in (e for found in by_run.values() for e in found)
            if effect.job_key == "tick"
        }
    )
    missing = [at for at, following in pairwise(ticks) if following - at != _SECOND]
    assert not missing, f"occurrences after {missing} did not fire"
    assert len({e.run_id for e in (*lost, *raised) if e.job_key == "tick"}) == len(ticks), "an occurrence has two runs"
    [gated] = {e.run_id for e in lost if e.job_key == "gated"}
    assert [e.attempt for e in raised if e.run_id == gated] == [2]
    assert len({e.run_id for e in (*lost, *raised) if e.job_key == "errand"}) == 21
    assert not [e for e in (*lost, *raised) if e.job_key == "resting"]

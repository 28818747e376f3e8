"""`tidewheel admin topics`: what there is, what would be made, and making it."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from tests.control.cli.command import NO_DATABASE, tidewheel
from tests.fixtures.services import delete_topics, until
from tidewheel.control.cli.exit_codes import ExitCode
from tidewheel.local.stack import StackInfo
from tidewheel.runs import Lane

pytestmark = pytest.mark.kafka


@pytest.fixture
def prefix(info: StackInfo, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Topics of this test's own, deleted at the end."""
    made = f"t{uuid4().hex[:10]}"
    monkeypatch.setenv("TIDEWHEEL_TOPIC_PREFIX", made)
    monkeypatch.setenv("TIDEWHEEL_KAFKA_PROPERTIES", str(info.kafka_properties))
    yield made
    delete_topics(info.kafka, made)


@pytest.mark.landing
def test_topics_are_listed_created_and_listed_again(prefix: str) -> None:
    named = "--queues", "reports,default", "--tenants", "acme,b.c"
    would = tidewheel(NO_DATABASE, "admin", "topics", "apply", *named, "--dry-run").lines
    assert f"{prefix}.runs.reports.batch would be created" in would
    assert would[-2:] == [f"{prefix}.requests.t.{tenant} would be created" for tenant in ("acme", "b.c")]
    done = tidewheel(NO_DATABASE, "admin", "topics", "apply", *named).lines
    assert sorted(done) == sorted(line.replace("would be created", "created") for line in would)

    def listed() -> dict[str, Any]:
        found = tidewheel(NO_DATABASE, "admin", "topics", "list", "--output", "json").json["topics"]
        return {row["topic"]: row for row in found}

    until(lambda: len(listed()) == len(done), "the broker shows them all")
    assert {row["would_be"] for row in listed().values()} == {None}
    assert listed()[f"{prefix}.runs.standard"]["partitions"] == 6
    assert listed()[f"{prefix}.replies.t.acme"]["partitions"] == 1
    [line] = tidewheel(NO_DATABASE, "admin", "topics", "apply", "--tenants", "b_c").refusals
    assert "the topics of 'b_c' and 'b.c' would differ only in '.' and '_'" in line
    text = tidewheel(NO_DATABASE, "admin", "topics", "list", "--queues", "other").lines
    assert [line.split() for line in text if line.startswith(f"{prefix}.runs.other.batch")] == [
        [f"{prefix}.runs.other.batch", "0", "of", "6", "0", "would", "be", "created"]
    ]
    assert tidewheel(NO_DATABASE, "admin", "topics", "apply").lines == ["nothing to do"]


@pytest.mark.parametrize("copies", ["0", "8"])
def test_replication_that_no_cluster_has_is_refused_at_once(copies: str) -> None:
    done = tidewheel(NO_DATABASE, "admin", "topics", "apply", "--replication", copies)
    assert done.code == ExitCode.REFUSED
    [refused] = done.refusals
    assert refused.startswith(f"--replication: {copies} is not a number of copies")
    assert "write 1 to 7" in refused


@pytest.mark.landing
def test_settings_raise_partition_counts_and_never_lower_them(prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tidewheel(NO_DATABASE, "admin", "topics", "apply")
    until(
        lambda: "would be created" not in str(tidewheel(NO_DATABASE, "admin", "topics", "list").lines), "all are listed"
    )
    monkeypatch.setenv("TIDEWHEEL_RUNS_PARTITIONS", "7")
    monkeypatch.setenv("TIDEWHEEL_EVENTS_PARTITIONS", "1")

    def would() -> list[str]:
        return tidewheel(NO_DATABASE, "admin", "topics", "apply", "--dry-run").lines

    more = [f"{prefix}.runs.{lane} would be given more partitions" for lane in Lane]
    until(lambda: would() == more, "the broker shows them all")
    text = tidewheel(NO_DATABASE, "admin", "topics", "list").lines
    assert [line.split()[1:4] for line in text if ".runs." in line] == [["6", "of", "7"]] * 3
    tidewheel(NO_DATABASE, "admin", "topics", "apply")
    until(lambda: would() == ["nothing to do"], "the broker shows the new ones")


def test_invalid_queue_or_tenant_is_refused_by_name(prefix: str) -> None:
    [line] = tidewheel(NO_DATABASE, "admin", "topics", "apply", "--queues", f"{prefix}.Reports").refusals
    assert "is not a queue name" in line
    [line] = tidewheel(NO_DATABASE, "admin", "topics", "apply", "--tenants", "acme,Globex").refusals
    assert "tenants: 'Globex' is not a tenant name" in line

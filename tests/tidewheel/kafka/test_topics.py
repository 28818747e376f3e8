"""Topics are made as planned, and no more than once; queues have names of their own."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fixtures.services import delete_topics, until
from tests.relay.topics import make_topics
from tidewheel.errors import SettingsError
from tidewheel.kafka.topics import Topics, apply_topics, queue_names, queues_with_topics, topic_statuses
from tidewheel.local.stack import StackInfo
from tidewheel.runs import Lane

QUEUES = st.from_regex(r"[a-z0-9._-]{1,64}", fullmatch=True) | st.sampled_from(
    ["default", "critical", "standard", "batch", "a.critical", "critical.batch", "a", "."]
)
LANES = st.sampled_from(list(Lane))


@pytest.fixture
def topics(info: StackInfo) -> Iterator[Topics]:
    """Yield this test's own names; delete the topics at the end, for each partition is files."""
    made = Topics(f"t{uuid4().hex[:10]}")
    yield made
    delete_topics(info.kafka, made.prefix)


@given(QUEUES, LANES, QUEUES, LANES)
def test_each_queue_and_lane_has_its_own_topic(one: str, lane: Lane, other: str, other_lane: Lane) -> None:
    """Parse a topic's name: the last part is the lane, the rest the queue, even if named like a lane."""
    same = Topics().runs(one, lane) == Topics().runs(other, other_lane)
    assert same == ((one, lane) == (other, other_lane))


@given(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True))
def test_topic_of_a_tenant_names_it_and_no_other_topic_names_one(tenant: str) -> None:
    names = Topics()
    planned = [topic.name for topic in names.plan([tenant], tenants=[tenant], outputs=True)]
    assert names.all_requests(planned) == [names.requests, names.requests_of(tenant)]
    assert (names.tenant_of(names.requests_of(tenant)), names.tenant_of(f"{names.requests}.t.")) == (tenant, None)
    assert names.replies_to(names.requests_of(tenant)) == names.replies_of(tenant) in planned


@pytest.mark.parametrize(("text", "what"), [("Reports", "'Reports'"), ("a,b c", "'b c'"), (" ,", "contains no name")])
def test_invalid_queue_is_refused_by_name(text: str, what: str) -> None:
    with pytest.raises(SettingsError, match=what):
        queue_names(text)


@pytest.mark.kafka
def test_missing_topics_are_listed_first_and_created_once(info: StackInfo, topics: Topics) -> None:
    config = dict(info.kafka)
    planned = [topic.name for topic in topics.plan(["default", "reports"])]
    would = apply_topics(config, topics, queues=["default", "reports"], dry_run=True)
    assert would == [f"{name} would be created" for name in planned]
    assert {each.partitions for each in topic_statuses(config, topics)} == {0}
    done = apply_topics(config, topics, queues=["default", "reports"])
    assert sorted(done) == sorted(f"{name} created" for name in planned)
    # An apply that meets a topic that the broker does not list yet has nothing to do either.
    until(
        lambda: all(each.partitions for each in topic_statuses(config, topics, queues=["default", "reports"])),
        "the broker lists all topics",
    )
    assert apply_topics(config, topics, queues=["default", "reports"]) == []
    assert queues_with_topics(config, topics) == ["default", "reports"]
    found = topic_statuses(config, topics, queues=["reports"])
    assert {(each.partitions, each.copies, each.lacks) for each in found if each.topic.name == topics.requests} == {
        (24, 1, None)
    }


@pytest.mark.landing
@pytest.mark.kafka
def test_too_few_partitions_are_increased_and_more_are_kept(info: StackInfo, topics: Topics) -> None:
    make_topics(info.kafka, [topics.runs("default", "batch")], partitions=3)
    make_topics(info.kafka, [topics.runs("default", "critical")], partitions=13)
    config = dict(info.kafka)
    until(lambda: sum(each.partitions for each in topic_statuses(config, topics)) == 16, "both are there")
    done = apply_topics(config, topics)
    assert f"{topics.runs('default', 'batch')} given more partitions" in done
    assert not [line for line in done if line.startswith(topics.runs("default", "critical"))]

"""Defaults that pages show are those of the code."""

import json
import re
from dataclasses import asdict

import pytest

from tests.docs.json_blocks import documents
from tests.strict_types import ROOT
from tidewheel.jobs.retry import RetryPolicy
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.values import format_duration
from tidewheel.kafka.topics import PartitionCounts, Topics
from tidewheel.schemas.definitions import definition_record
from tidewheel.settings.connections import Connections

DOCS = ROOT / "docs"
# A completion of the job `send-email`, which has the default policy.
_COMPLETION = re.compile(r'"job_key":"send-email".*"max_attempts":(\d+)')


def test_row_of_retry_shows_the_defaults() -> None:
    policy = RetryPolicy()
    text = (DOCS / "requests-submit.md").read_text(encoding="utf-8")
    [row] = [line for line in text.splitlines() if "| `retry` |" in line]
    expected = (
        f"`max_attempts` {policy.attempts}, `backoff` `{policy.kind}` (`fixed`, `intervals`), "
        f"`initial` {format_duration(policy.initial)}, `factor` {policy.factor:g}, "
        f"`max` {format_duration(policy.max)}, `jitter` {policy.jitter:.0%}, "
    )
    assert expected in row


@pytest.mark.parametrize("page", ["topics.md", "quickstart.md"])
def test_completion_shows_the_default_number_of_attempts(page: str) -> None:
    shown = _COMPLETION.findall((DOCS / page).read_text(encoding="utf-8"))
    assert shown
    assert set(shown) == {str(RetryPolicy().attempts)}


def test_topics_page_shows_the_default_partition_counts() -> None:
    settings = Connections.load()
    counts = PartitionCounts(settings.runs_partitions, settings.events_partitions, settings.tenant_partitions)
    assert counts == PartitionCounts()
    text = (DOCS / "topics.md").read_text(encoding="utf-8")
    for topic in Topics().plan(tenants=["<tenant>"], outputs=True):
        [row] = [line for line in text.splitlines() if line.startswith(f"| `{topic.name}` |")]
        assert row.split("|")[4].strip() == str(topic.partitions), topic.name


def test_definition_of_the_wire_contract_has_every_default() -> None:
    [shown] = [document for document in documents(DOCS / "wire-contract.md") if "lane" in document]
    job = {
        "key": "send-email",
        "schedule": "manual",
        "target": "send-email",
        "payload": {"to": "a@example.org"},
        "schedule_to_close": "1h",
        "heartbeat": "60s",
    }
    spec = JobSpec.model_validate(job)
    real = definition_record(spec, tenant="default", job_id=shown["job_id"], job_version=1)
    assert shown == json.loads(json.dumps(asdict(real) | {"payload": real.payload.decode()}))

"""Defaults that pages show are those of the code."""

import json
from dataclasses import asdict

from tests.docs.json_blocks import documents
from tests.strict_types import ROOT
from tidewheel.jobs.retry import RetryPolicy
from tidewheel.jobs.spec import JobSpec
from tidewheel.jobs.values import format_duration
from tidewheel.schemas.definitions import definition_record

DOCS = ROOT / "docs"


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

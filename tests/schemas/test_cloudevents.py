"""CloudEvents in binary mode; `tests/transitions/test_after_end.py` has the headers of completions."""

from datetime import UTC, datetime

import pytest

from tidewheel.schemas.generated.records import LifecycleEvent
from tidewheel.schemas.interop import lifecycle_headers

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.mark.parametrize(("run_id", "subject"), [("r", b"r"), (None, b"j")])
def test_subject_of_a_lifecycle_event_is_its_run_or_job(run_id: str | None, subject: bytes) -> None:
    created, at = "io.tidewheel.job.created.v1", datetime(2026, 1, 1, tzinfo=UTC)
    event = LifecycleEvent(
        event_id="e", type=created, occurred_at=at, tenant="default", job_id="j", job_key="k", run_id=run_id, detail={}
    )
    headers = dict(lifecycle_headers(event, "/t", content_type="application/json", traceparent=TRACE))
    assert headers["ce_type"] == created.encode()
    assert headers["ce_subject"] == subject
    assert headers["content-type"] == b"application/json"
    assert headers["ce_dataschema"].startswith(b"urn:tidewheel:schema:lifecycle_event:")
    assert headers["traceparent"] == TRACE.encode()

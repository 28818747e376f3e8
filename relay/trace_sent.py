"""Record the spans of acknowledged messages of runs: their requests, completions and events."""

from collections.abc import Iterable
from uuid import UUID

from tidewheel.process.spans import Spans, harmless
from tidewheel.relay.outbox_rows import HEADERS, KEY, TOPIC, DueRow


@harmless
def trace_sent(spans: Spans, rows: Iterable[DueRow], runs_prefix: str, began: int) -> None:
    """Record a span for each of these rows, produced at `began` nanoseconds since 1970."""
    for row in rows:
        parts = row[HEADERS] or []
        headers = dict(zip(parts[::2], parts[1::2], strict=True))
        if row[TOPIC].startswith(runs_prefix):
            run_id = row[KEY]
        elif headers.get(b"ce_type", b"").startswith(b"io.tidewheel.run."):
            run_id = headers[b"ce_subject"]
        else:
            continue
        given = headers.get(b"traceparent")
        spans.sent(UUID((run_id or b"").decode()), given.decode() if given else None, row[TOPIC], began)

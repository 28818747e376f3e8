"""The handler of these tests: each effect is one line in the oracle's log."""

import os
from pathlib import Path

import tidewheel
from tests.faults.outside.records import SECOND, Log, now_us
from tidewheel.executor.context import Context

_log = Log(Path(os.environ["FAULTS_EFFECTS"]))


@tidewheel.handler("outside-note")
async def note(context: Context, payload: object) -> object:
    """Record one effect."""
    call = f"{os.getpid()}-{context.run_id}-{context.attempt}-{now_us()}"
    at = context.scheduled_at
    _log.append(
        {
            "kind": "received",
            "call": call,
            "run_id": str(context.run_id),
            "attempt": context.attempt,
            "job_key": context.job_key,
            "scheduled_at": int(at.replace(microsecond=0).timestamp()) * SECOND + at.microsecond,
            "received": now_us(),
            "pid": os.getpid(),
        }
    )
    _log.append({"kind": "answered", "call": call, "answered": now_us(), "status": 200})
    return payload

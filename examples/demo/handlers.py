"""The demo's Python handlers: executors import them by `--handlers examples.demo.handlers`.

Each attempt calls the demo's receiver. It refuses as many attempts as the payload says, and then the handler fails.
"""

import asyncio
import os
import threading
import urllib.request

from pydantic import BaseModel

from examples.demo.receiver import HANDLERS_PATH
from tidewheel import Context, handler

RECEIVER_VARIABLE = "TIDEWHEEL_DEMO_RECEIVER"

_TIMEOUT_SECONDS = 10.0


class Errand(BaseModel):
    """The payload: it works for `work_ms`, and its attempts up to `fail` fail."""

    subject: str
    work_ms: int = 0
    fail: int = 0


@handler("demo.on-loop")
async def on_loop(context: Context, errand: Errand) -> dict[str, object]:
    """Take effect, then keep working: a kill in between leaves an effect without an end."""
    await asyncio.to_thread(_call, context, errand)
    await asyncio.sleep(errand.work_ms / 1000)
    return {"done": errand.subject}


@handler("demo.on-thread")
def on_thread(context: Context, errand: Errand) -> dict[str, object]:
    """Work on a thread, then take effect: a kill in between leaves no trace."""
    threading.Event().wait(errand.work_ms / 1000)
    _call(context, errand)
    return {"done": errand.subject}


def _call(context: Context, errand: Errand) -> None:
    """Call the receiver; raise HTTPError if it refuses this attempt."""
    headers = {
        "idempotency-key": context.idempotency_key,
        "tidewheel-run-id": str(context.run_id),
        "tidewheel-attempt": str(context.attempt),
        "tidewheel-scheduled-at": context.scheduled_at.isoformat(),
        "tidewheel-job-key": context.job_key,
    }
    url = f"{os.environ[RECEIVER_VARIABLE]}{HANDLERS_PATH}?fail={errand.fail}"
    request = urllib.request.Request(url, data=b"", headers=headers, method="POST")  # noqa: S310 - the receiver
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    direct.open(request, timeout=_TIMEOUT_SECONDS).close()

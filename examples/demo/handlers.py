"""The demo's handlers, as a user would write them, with effects on the demo's receiver.

Executors import this by `--handlers examples.demo.handlers`. A handler that must fail decides it by the number
of its attempt. It notifies the receiver before it raises, because the receiver counts each attempt.
"""

import asyncio
import os
import threading
import urllib.request

import aiohttp
from pydantic import BaseModel

from examples.demo.receiver import HANDLERS_PATH
from tidewheel import Context, handler

RECEIVER_VARIABLE = "TIDEWHEEL_DEMO_RECEIVER"

_TIMEOUT_SECONDS = 10.0


class Errand(BaseModel):
    """The payload of a handler: it works for `work_ms`, and its attempts up to `fail` fail."""

    subject: str
    work_ms: int = 0
    fail: int = 0


class DeclinedError(Exception):
    """The error that failing handlers raise."""


@handler("demo.send-report")
async def send_report(context: Context, errand: Errand) -> dict[str, object]:
    """Take effect, then keep working: a kill in between leaves an effect without an end."""
    await _post(context, "send-report")
    await asyncio.sleep(errand.work_ms / 1000)
    return {"sent": errand.subject}


@handler("demo.resize-image")
def resize_image(context: Context, errand: Errand) -> dict[str, object]:
    """Work on a thread, then take effect: a kill in between leaves no trace."""
    threading.Event().wait(errand.work_ms / 1000)
    _post_and_wait(context, "resize-image")
    return {"resized": errand.subject}


@handler("demo.charge-card")
async def charge_card(context: Context, errand: Errand) -> dict[str, object]:
    """Fail as often as the payload requires, then succeed; async."""
    if context.attempt <= errand.fail:
        await _post(context, "charge-card?outcome=failed")
        raise DeclinedError(_declined(context, errand))
    await _post(context, "charge-card")
    return {"failed_attempts": errand.subject}


@handler("demo.sync-ledger")
def sync_ledger(context: Context, errand: Errand) -> dict[str, object]:
    """Fail as often as the payload requires, then succeed; on a thread."""
    if context.attempt <= errand.fail:
        _post_and_wait(context, "sync-ledger?outcome=failed")
        raise DeclinedError(_declined(context, errand))
    _post_and_wait(context, "sync-ledger")
    return {"booked": errand.subject}


async def _post(context: Context, path: str) -> None:
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(_TIMEOUT_SECONDS), raise_for_status=True)
    async with session, session.post(_url(path), headers=_headers(context)):
        pass


def _post_and_wait(context: Context, path: str) -> None:
    request = urllib.request.Request(_url(path), data=b"", headers=_headers(context), method="POST")  # noqa: S310 - the receiver
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    direct.open(request, timeout=_TIMEOUT_SECONDS).close()


def _url(path: str) -> str:
    return f"{os.environ[RECEIVER_VARIABLE]}{HANDLERS_PATH}{path}"


def _headers(context: Context) -> dict[str, str]:
    return {
        "idempotency-key": context.idempotency_key,
        "tidewheel-run-id": str(context.run_id),
        "tidewheel-attempt": str(context.attempt),
        "tidewheel-job-key": context.job_key,
        "tidewheel-scheduled-at": context.scheduled_at.isoformat(),
    }


def _declined(context: Context, errand: Errand) -> str:
    return f"{errand.subject}: declined on attempt {context.attempt}"

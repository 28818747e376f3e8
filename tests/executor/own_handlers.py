"""Handlers that complete their runs in transactions of their own, beside an effect."""

from typing import Any

import psycopg

import tidewheel
from tests.executor.own_transactions import EFFECT


@tidewheel.handler("own.thread")
def on_thread(context: tidewheel.Context, payload: dict[str, Any]) -> object:
    with psycopg.connect(payload["url"]) as own:
        own.execute(EFFECT, [context.run_id, context.attempt])
        context.complete_in(own, {"attempt": context.attempt})
    return "said too late"

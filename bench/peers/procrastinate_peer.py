"""procrastinate in the database of PG*: `enqueue JOBS`, then `process JOBS`; says seconds and how many, as JSON.

Its recommended settings for throughput: deferred in batches, one async worker with 32 at once, a poll of 100 ms,
finished jobs deleted. Runs in the peers' own environment, so that nothing here is imported by Tidewheel.
"""

# pyright: basic, reportMissingImports=false
# It is not installed where types are checked.

import asyncio
import json
import sys
import time
from typing import Any

_BATCH = 1000
_CONCURRENCY = 32
_POLL_SECONDS = 0.1


class Peer:
    """The application, with one task."""

    def __init__(self) -> None:
        from procrastinate import App, PsycopgConnector

        self.handled = 0
        self.app: Any = App(connector=PsycopgConnector(min_size=1, max_size=8))
        self.task: Any = self.app.task(name="noop")(self._noop)

    async def enqueue(self, jobs: int) -> float:
        """Make the schema and defer so many jobs; returns seconds, without the schema's."""
        async with self.app.open_async():
            await self.app.schema_manager.apply_schema_async()
            started = time.monotonic()
            for first in range(0, jobs, _BATCH):
                await self.task.batch_defer_async(*({"number": n} for n in range(first, min(first + _BATCH, jobs))))
            return time.monotonic() - started

    async def process(self) -> float:
        """Work until nothing is left; returns seconds."""
        async with self.app.open_async():
            started = time.monotonic()
            await self.app.run_worker_async(
                wait=False,
                concurrency=_CONCURRENCY,
                fetch_job_polling_interval=_POLL_SECONDS,
                delete_jobs="always",
                install_signal_handlers=False,
            )
            return time.monotonic() - started

    async def _noop(self, number: int) -> None:
        self.handled += 1


def main() -> None:
    """As the arguments say."""
    what, jobs = sys.argv[1:]
    peer = Peer()
    seconds = asyncio.run(peer.enqueue(int(jobs)) if what == "enqueue" else peer.process())
    print(json.dumps({"seconds": seconds, "handled": peer.handled}))


if __name__ == "__main__":
    main()
